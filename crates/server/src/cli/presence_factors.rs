//! `steprail presence`: sets the factors with which you prove that you are present when you decide.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use steprail_http::views::{NewAuthenticator, PresenceStatus};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::{hidden_input, output, prompt};
use crate::client::percent_encode;

/// Set a PIN or enroll an authenticator that proves your presence
///
/// With `auth.presence` in steprail.toml, or `presence` in a rule of the policy, decisions and account changes need the factor.
/// Set it before you connect agents: a program that runs as you can set a factor as long as there is none.
#[derive(Debug, Args)]
pub(super) struct Presence {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show which factors are set, and which one decisions need
    Status,
    /// Set your PIN; without a terminal, it is read from standard input
    SetPin,
    /// Enroll an authenticator app (TOTP); its first code confirms it
    EnrollTotp,
    /// Remove the factors of another user who lost them
    Reset {
        /// Id of the user
        user: String,
    },
}

impl Presence {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        match &self.action {
            None | Some(Action::Status) => self.status().await,
            Some(Action::SetPin) => self.set_pin().await,
            Some(Action::EnrollTotp) => self.enroll_totp().await,
            Some(Action::Reset { user }) => {
                let client = self.request.connect().await?;
                client.delete(&format!("/users/{}/presence", percent_encode(user))).await?;
                self.request.confirm(&format!("removed the factors of {user}"))
            }
        }
    }

    async fn status(&self) -> Result<ExitCode, CliError> {
        let status: PresenceStatus = self.request.connect().await?.get("/presence").await?;
        self.request.print(&status, |status| {
            let set = |is_set: bool| if is_set { "set" } else { "not set" };
            let required = status.required.name();
            format!("required {required}\npin      {}\ntotp     {}", set(status.pin), set(status.totp))
        })
    }

    async fn set_pin(&self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let pin = ask_secret("New PIN: ").await?;
        if std::io::stdin().is_terminal() && ask_secret("Again: ").await? != pin {
            return Err(CliError::new("the PINs differ; nothing was changed"));
        }
        client.put::<Value>("/presence/pin", &json!({ "pin": pin })).await?;
        self.request.confirm("the PIN is set")
    }

    async fn enroll_totp(&self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let new: NewAuthenticator = client.post("/presence/totp", &json!({})).await?;
        output::line(&format!("secret {}\nuri    {}", new.secret, new.uri))?;
        let code = ask_secret("Code that the app shows: ").await?;
        client.post::<Value>("/presence/totp/confirm", &json!({ "code": code.trim() })).await?;
        self.request.confirm("the authenticator is enrolled")
    }
}

/// Asks without echo at a terminal; otherwise reads a line of standard input.
async fn ask_secret(question: &str) -> Result<String, CliError> {
    if std::io::stdin().is_terminal() {
        return hidden_input::read(question).await;
    }
    let line = prompt::read_line()?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => Err(CliError::new("standard input is empty")),
        line => Ok(line.to_owned()),
    }
}
