//! Proofs of presence: asks at the terminal for the PIN or the one-time code that a request needs.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use steprail_engine::Presence;
use steprail_http::Problem;
use steprail_http::views::{Approval, PresenceStatus, SignInLink};

use crate::cli::terminal::{hidden_input, prompt};
use crate::client::{Client, ClientError, percent_encode};

/// The maximum length of a request in a link, in characters.
const CHANGE_CHARS: usize = 8 * 1024;
/// The header that carries a proof.
pub(crate) const HEADER: &str = "x-steprail-presence";

/// Asks for a factor without echo. Returns `None` without a terminal, and if the user interrupts.
pub(crate) async fn ask(factor: Presence) -> Option<String> {
    if !prompt::is_interactive() {
        return None;
    }
    let question = match factor {
        // The browser asks for a passkey.
        Presence::None | Presence::Passkey => return None,
        Presence::Pin => "PIN: ",
        Presence::Totp => "One-time code: ",
    };
    let value = hidden_input::read(question).await.ok()?;
    Some(format!("{} {}", factor.name(), value.trim())).filter(|_| !value.trim().is_empty())
}

/// The problem of a request whose factor cannot be asked for here. The hint of the server is about the HTTP header.
pub(crate) async fn unproved(client: &Client, problem: Problem, request: RequestBuilder) -> ClientError {
    let (factor, set) = match problem.presence {
        Presence::Passkey => return confirm_change(client, problem, request).await,
        Presence::Totp => ("one-time code", "steprail presence enroll-totp"),
        Presence::Pin | Presence::None => ("PIN", "steprail presence set-pin"),
    };
    let hint = format!("run it in a terminal, which asks for your {factor}; if you have none: {set}");
    ClientError::Problem(Box::new(Problem { hint: Some(hint.into()), ..problem }))
}

/// The problem of a change that needs a passkey, with the page that shows the request and makes it.
async fn confirm_change(client: &Client, problem: Problem, request: RequestBuilder) -> ClientError {
    let page = match request.build().ok().and_then(|request| change_fragment(&request)) {
        Some(fragment) => page_url(client, &format!("#change={fragment}")).await.ok().flatten(),
        None => None,
    };
    let hint = match page {
        Some(page) => format!("confirm it in your browser: {page}"),
        None => "confirm it with a client that uses `POST /api/v1/me/presence/challenge`".to_owned(),
    };
    ClientError::Problem(Box::new(Problem { hint: Some(hint.into()), ..problem }))
}

/// A request for the page, unless its body is no JSON.
fn change_fragment(request: &reqwest::Request) -> Option<String> {
    let url = request.url();
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let body = request.body().map_or(Some(&b""[..]), |body| body.as_bytes())?;
    let body = if body.is_empty() { None } else { Some(serde_json::from_slice(body).ok()?) };
    encode_change(request.method().as_str(), &path, body.as_ref())
}

/// A request as the page reads it: JSON in base64url. Requests with secrets, and large ones, do not go into a link.
fn encode_change(method: &str, path: &str, body: Option<&Value>) -> Option<String> {
    let mut change = json!({ "method": method, "path": path });
    body.into_iter().for_each(|body| change["body"] = body.clone());
    let text = URL_SAFE_NO_PAD.encode(change.to_string());
    let has_secret = path.contains("/secrets/") || path.ends_with("/presence/pin");
    (!has_secret && text.len() <= CHANGE_CHARS).then_some(text)
}

/// Address of the page where the user registers and removes passkeys.
pub(crate) async fn passkey_page(client: &Client) -> Result<Option<String>, ClientError> {
    page_url(client, "").await
}

/// Address of the page with a query or a fragment. For the owner it signs the browser in.
async fn page_url(client: &Client, suffix: &str) -> Result<Option<String>, ClientError> {
    let page = format!("/passkeys{suffix}");
    match client.post::<SignInLink>("/links", &json!({ "page": page })).await {
        Ok(link) => Ok(Some(link.url)),
        Err(ClientError::Problem(_)) => {
            let status: PresenceStatus = client.get("/presence").await?;
            Ok(status.passkey_page.map(|page| page + suffix))
        }
        Err(error) => Err(error),
    }
}

/// A decision that is about to be sent.
pub(crate) struct Deciding<'d> {
    pub approval: &'d Approval,
    /// Path below `/api/v1`.
    pub path: &'d str,
    pub body: &'d Value,
}

impl Deciding<'_> {
    /// The page that makes the decision. It approves or denies the request as it is. Anything else, such as changed
    /// arguments or a code, is shown and sent as it was asked for here.
    fn page(&self) -> Option<String> {
        let Approval { run_id, step, .. } = self.approval;
        let query = format!("?run={run_id}&step={}", percent_encode(step));
        let set = self.body.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let is_plain = set.into_iter().all(|(name, _)| matches!(&**name, "step" | "digest"));
        if is_plain {
            return Some(query);
        }
        let change = encode_change("POST", &format!("/api/v1{}", self.path), Some(self.body))?;
        Some(format!("{query}#change={change}"))
    }

    /// The problem of a decision that needs a passkey: it is made in the browser.
    async fn in_browser(&self, client: &Client) -> Result<ClientError, ClientError> {
        let detail = "this decision needs your passkey; nothing was decided yet";
        let mut problem = Problem::new(StatusCode::FORBIDDEN, "presence_required", detail);
        problem.presence = Presence::Passkey;
        problem.hint = Some(match self.page() {
            None => "the decision is too large for a link; decide without changes, or over the API".into(),
            Some(page) => match page_url(client, &page).await? {
                Some(page) => format!("decide in your browser: {page}").into(),
                None => {
                    "passkeys need a port and, for a host other than localhost, an https URL in `http.url`"
                        .into()
                }
            },
        });
        Ok(ClientError::Problem(Box::new(problem)))
    }

    /// The proof that the decision needs, if it needs one and there is a terminal.
    pub(crate) async fn proof(&self, client: &Client) -> Result<Option<String>, ClientError> {
        let status: PresenceStatus = client.get("/presence").await?;
        let of_gate = self.approval.covers.as_ref().map_or(Presence::None, |covers| covers.rules.presence);
        match status.required.or_stronger(of_gate) {
            Presence::Passkey => Err(self.in_browser(client).await?),
            factor => Ok(ask(factor).await),
        }
    }
}
