//! Proofs of presence: asks at the terminal for the PIN or the one-time code that a request needs.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::RequestBuilder;
use serde_json::json;
use steprail_engine::Presence;
use steprail_http::Problem;
use steprail_http::views::{Approval, PresenceStatus, SignInLink};

use super::error::CliError;
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

/// A request as the page reads it: JSON in base64url. Requests with secrets, and large ones, do not go into a link.
fn change_fragment(request: &reqwest::Request) -> Option<String> {
    let url = request.url();
    let has_secret = url.path().contains("/secrets/") || url.path().ends_with("/presence/pin");
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let body = request.body().map_or(Some(&b""[..]), |body| body.as_bytes())?;
    let mut change = json!({ "method": request.method().as_str(), "path": path });
    if !body.is_empty() {
        change["body"] = serde_json::from_slice(body).ok()?;
    }
    let text = URL_SAFE_NO_PAD.encode(change.to_string());
    (!has_secret && text.len() <= CHANGE_CHARS).then_some(text)
}

/// Address of the page where the user registers passkeys, or decides about an approval with one. For the owner it signs the
/// browser in.
pub(crate) async fn passkey_page(
    client: &Client,
    approval: Option<&Approval>,
) -> Result<Option<String>, ClientError> {
    let query = approval.map(|open| format!("?run={}&step={}", open.run_id, percent_encode(&open.step)));
    page_url(client, &query.unwrap_or_default()).await
}

/// Address of the page with a query or a fragment.
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

/// The problem of a decision that needs a passkey: it is made in the browser.
async fn in_browser(client: &Client, approval: &Approval) -> Result<ClientError, ClientError> {
    let detail = "this decision needs your passkey; nothing was decided yet";
    let mut problem = Problem::new(StatusCode::FORBIDDEN, "presence_required", detail);
    problem.presence = Presence::Passkey;
    problem.hint = Some(match passkey_page(client, Some(approval)).await? {
        Some(page) => format!("decide in your browser: {page}").into(),
        None => {
            "passkeys need a port and, for another host than localhost, an https URL in `http.url`".into()
        }
    });
    Ok(ClientError::Problem(Box::new(problem)))
}

/// The proof that a decision about an approval needs, if it needs one and there is a terminal.
pub(crate) async fn proof_for(client: &Client, approval: &Approval) -> Result<Option<String>, ClientError> {
    let status: PresenceStatus = client.get("/presence").await?;
    let of_gate = approval.covers.as_ref().map_or(Presence::None, |covers| covers.rules.presence);
    match status.required.or_stronger(of_gate) {
        Presence::Passkey => Err(in_browser(client, approval).await?),
        factor => Ok(ask(factor).await),
    }
}

/// `proof_for`, as the error of a command.
pub(crate) async fn for_decision(client: &Client, approval: &Approval) -> Result<Option<String>, CliError> {
    Ok(proof_for(client, approval).await?)
}
