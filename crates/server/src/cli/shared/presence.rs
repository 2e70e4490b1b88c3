//! Proofs of presence: asks at the terminal for the PIN or the one-time code that a request needs.

use steprail_engine::Presence;
use steprail_http::Problem;
use steprail_http::views::{Approval, PresenceStatus};

use super::error::CliError;
use crate::cli::terminal::{hidden_input, prompt};
use crate::client::{Client, ClientError};

/// The header that carries a proof.
pub(crate) const HEADER: &str = "x-steprail-presence";

/// Asks for a factor without echo. Returns `None` without a terminal, and if the user interrupts.
pub(crate) async fn ask(factor: Presence) -> Option<String> {
    if !prompt::is_interactive() {
        return None;
    }
    let question = match factor {
        Presence::None => return None,
        Presence::Pin => "PIN: ",
        Presence::Totp => "One-time code: ",
    };
    let value = hidden_input::read(question).await.ok()?;
    Some(format!("{} {}", factor.name(), value.trim())).filter(|_| !value.trim().is_empty())
}

/// The problem of a request whose factor cannot be asked for here. The hint of the server is about the HTTP header.
pub(crate) fn unproved(problem: Problem) -> Problem {
    let (factor, set) = match problem.presence {
        Presence::Totp => ("one-time code", "steprail presence enroll-totp"),
        Presence::Pin | Presence::None => ("PIN", "steprail presence set-pin"),
    };
    let hint = format!("run it in a terminal, which asks for your {factor}; if you have none: {set}");
    Problem { hint: Some(hint.into()), ..problem }
}

/// The proof that a decision about an approval needs, if it needs one and there is a terminal.
pub(crate) async fn proof_for(client: &Client, approval: &Approval) -> Result<Option<String>, ClientError> {
    let status: PresenceStatus = client.get("/presence").await?;
    let of_gate = approval.covers.as_ref().map_or(Presence::None, |covers| covers.rules.presence);
    Ok(ask(status.required.or_stronger(of_gate)).await)
}

/// `proof_for`, as the error of a command.
pub(crate) async fn for_decision(client: &Client, approval: &Approval) -> Result<Option<String>, CliError> {
    Ok(proof_for(client, approval).await?)
}
