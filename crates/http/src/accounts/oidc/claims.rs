//! Claims of a signed token: validity, and the identity of the user.

use serde_json::{Map, Value};

use super::{Identity, OidcSettings, TokenError};

/// Tolerated clock skew between the issuer and us, in seconds.
const LEEWAY: i64 = 60;

/// The maximum length of the name of a user or group, in characters.
const NAME_CHARS: usize = 256;

/// The maximum number of groups of a user.
const GROUPS: usize = 256;

/// The end of the year 9999, in seconds since 1970.
const MAX_TIME: i64 = 253_402_300_799;

/// The claims of a token whose signature was verified.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// Removes an unverified email address: anyone could have claimed it.
    pub(super) fn new(mut claims: Map<String, Value>) -> Self {
        if claims.get("email_verified").is_some_and(|verified| *verified == false || *verified == "false") {
            claims.remove("email");
        }
        Self(claims)
    }

    /// Checks issuer, audience and validity period.
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
        for claim in ["nbf", "iat"] {
            if self.time(claim)?.is_some_and(|start| start > now.saturating_add(LEEWAY)) {
                return Err(TokenError::NotYet);
            }
        }
        Ok(())
    }

    /// The identity in the token.
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

    /// A claim; `null` counts as absent.
    fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim).filter(|value| !value.is_null())
    }

    /// A claim for display; an invalid value counts as absent.
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
        self.time("exp")?.ok_or_else(|| invalid("exp", "is missing"))
    }

    /// A time in seconds since 1970. Fractions, which the standard allows, are dropped.
    fn time(&self, claim: &str) -> Result<Option<i64>, TokenError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "values out of range saturate and are rejected below"
        )]
        let seconds = |value: &Value| value.as_i64().or_else(|| value.as_f64().map(|time| time as i64));
        let Some(value) = self.get(claim) else { return Ok(None) };
        match seconds(value).filter(|time| (0..=MAX_TIME).contains(time)) {
            Some(time) => Ok(Some(time)),
            None => Err(invalid(claim, "is not a valid time")),
        }
    }

    fn user(&self, claim: &str) -> Result<String, TokenError> {
        let value = self.get(claim).ok_or_else(|| invalid(claim, "is missing"))?;
        name(value).map_err(|problem| invalid(claim, problem))
    }

    /// The groups. A list that is too long is rejected: truncating it would silently drop rights.
    fn groups(&self, claim: &str) -> Result<Vec<String>, TokenError> {
        match self.get(claim) {
            None => Ok(Vec::new()),
            Some(Value::Array(groups)) if groups.len() > GROUPS => {
                Err(invalid(claim, "has too many entries"))
            }
            Some(Value::Array(groups)) => {
                let names = groups.iter().map(name).collect::<Result<_, _>>();
                names.map_err(|_| invalid(claim, "has an invalid entry"))
            }
            Some(_) => Err(invalid(claim, "is not a list")),
        }
    }

    /// The scopes: `scope` separated by spaces (RFC 9068), or `scp`, which some issuers use, as a list or as text.
    fn scopes(&self) -> Vec<String> {
        match self.get("scope").or_else(|| self.get("scp")) {
            Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// Validates the name of a user or group.
fn name(value: &Value) -> Result<String, &'static str> {
    let text = value.as_str().ok_or("is not a string")?;
    if text.trim().is_empty() {
        return Err("is empty");
    }
    if text.chars().nth(NAME_CHARS).is_some() {
        return Err("is too long");
    }
    if text.contains(char::is_control) {
        return Err("contains control characters");
    }
    Ok(text.to_owned())
}

fn invalid(claim: &str, problem: &'static str) -> TokenError {
    TokenError::Claim { claim: claim.to_owned(), problem }
}
