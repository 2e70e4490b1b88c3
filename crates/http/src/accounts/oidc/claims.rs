//! What a signed token claims: whether it counts here and now, and whom it names.

use serde_json::{Map, Value};

use super::{Identity, OidcSettings, TokenError};

/// Seconds that the issuer's clock and ours may differ.
const LEEWAY: i64 = 60;

/// Characters of a name, be it of a user or of a group.
const NAME_CHARS: usize = 256;

/// Groups of a user.
const GROUPS: usize = 256;

/// The end of the year 9999, in seconds since 1970.
const LAST_MOMENT: i64 = 253_402_300_799;

/// The claims of a token whose signature is right.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// An email address that nobody verified is anybody's: it is as if the token had none.
    pub(super) fn new(mut claims: Map<String, Value>) -> Self {
        if claims.get("email_verified").is_some_and(|verified| *verified == false || *verified == "false") {
            claims.remove("email");
        }
        Self(claims)
    }

    /// Whether the token is from the issuer, for us, and for this moment.
    pub(super) fn check(&self, settings: &OidcSettings, now: i64) -> Result<(), TokenError> {
        if self.get("iss").is_none_or(|issuer| *issuer != settings.issuer.as_str()) {
            return Err(TokenError::Issuer);
        }
        if !self.is_for(&settings.audience) {
            return Err(TokenError::Audience);
        }
        let expires_at = self.expires_at()?;
        if expires_at.saturating_add(LEEWAY) <= now {
            return Err(TokenError::Expired);
        }
        for start in ["nbf", "iat"] {
            if self.moment(start)?.is_some_and(|start| start > now.saturating_add(LEEWAY)) {
                return Err(TokenError::NotYet);
            }
        }
        Ok(())
    }

    /// Whom it names.
    pub(super) fn identity(&self, settings: &OidcSettings) -> Result<Identity, TokenError> {
        let name = self.text("name").or_else(|| self.text("preferred_username"));
        Ok(Identity {
            user: self.user(&settings.user_claim)?,
            name: name.unwrap_or_default(),
            email: self.text("email").unwrap_or_default(),
            groups: self.groups(&settings.groups_claim)?,
            scopes: self.scopes(),
            expires_at: self.expires_at()?,
        })
    }

    /// A claim; `null` is none.
    fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim).filter(|value| !value.is_null())
    }

    /// A claim that is only shown: one that cannot be shown is none.
    fn text(&self, claim: &str) -> Option<String> {
        self.get(claim).and_then(|value| name(value).ok())
    }

    fn is_for(&self, audience: &str) -> bool {
        match self.get("aud") {
            Some(Value::Array(all)) => all.iter().any(|one| *one == audience),
            Some(one) => *one == audience,
            None => false,
        }
    }

    fn expires_at(&self) -> Result<i64, TokenError> {
        self.moment("exp")?.ok_or_else(|| refused("exp", "is missing"))
    }

    /// A moment in seconds. Issuers may write fractions.
    fn moment(&self, claim: &str) -> Result<Option<i64>, TokenError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "too large becomes the largest, which is refused"
        )]
        let whole = |value: &Value| value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64));
        let Some(value) = self.get(claim) else { return Ok(None) };
        match whole(value).filter(|moment| (0..=LAST_MOMENT).contains(moment)) {
            Some(moment) => Ok(Some(moment)),
            None => Err(refused(claim, "is no moment")),
        }
    }

    fn user(&self, claim: &str) -> Result<String, TokenError> {
        let value = self.get(claim).ok_or_else(|| refused(claim, "is missing"))?;
        name(value).map_err(|problem| refused(claim, problem))
    }

    /// The groups. A list that is too long is refused: what rights would be lost without its end?
    fn groups(&self, claim: &str) -> Result<Vec<String>, TokenError> {
        match self.get(claim) {
            None => Ok(Vec::new()),
            Some(Value::Array(groups)) if groups.len() > GROUPS => {
                Err(refused(claim, "has too many entries"))
            }
            Some(Value::Array(groups)) => {
                let names = groups.iter().map(name).collect::<Result<_, _>>();
                names.map_err(|_| refused(claim, "has an entry that is no name"))
            }
            Some(_) => Err(refused(claim, "is no list")),
        }
    }

    /// The scopes: words in `scope` (RFC 9068), or a list or words in `scp`, as some issuers have it.
    fn scopes(&self) -> Vec<String> {
        match self.get("scope").or_else(|| self.get("scp")) {
            Some(Value::String(words)) => words.split_whitespace().map(str::to_owned).collect(),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// The name of a user or of a group.
fn name(value: &Value) -> Result<String, &'static str> {
    let text = value.as_str().ok_or("is no text")?;
    if text.trim().is_empty() {
        return Err("is empty");
    }
    if text.chars().nth(NAME_CHARS).is_some() {
        return Err("is too long");
    }
    if text.contains(char::is_control) {
        return Err("has control characters");
    }
    Ok(text.to_owned())
}

fn refused(claim: &str, problem: &'static str) -> TokenError {
    TokenError::Claim { claim: claim.to_owned(), problem }
}
