//! `steprail presence`: sets the factors with which you prove that you are present when you decide.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use steprail_http::views::{NewAuthenticator, PresenceStatus};
use steprail_store::{
    Account, AccountKind, Actor, AdminAction, AdminEvent, Commit, Reads, Refused, RegistryChange, Store,
};

use super::shared::database::Database;
use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::shared::{os_user, presence};
use super::terminal::{hidden_input, output, prompt};
use crate::client::percent_encode;

/// Set a PIN, enroll an authenticator or register a passkey that proves your presence
///
/// Passkeys are registered in the browser: the status prints the address of the page.
/// With `auth.presence` in steprail.toml, decisions and changes of accounts, definitions and secrets need the factor. `presence` in
/// a rule of the policy requires it for the approvals of the rule.
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
    /// Remove the factors of a user who lost them
    Reset {
        /// Id of the user
        user: String,
        /// Change this database, which no daemon uses. Whoever can write to it needs no factor; the audit log records it
        #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "server"])]
        db: Option<PathBuf>,
    },
}

impl Presence {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        match &self.action {
            None | Some(Action::Status) => self.status().await,
            Some(Action::SetPin) => self.set_pin().await,
            Some(Action::EnrollTotp) => self.enroll_totp().await,
            Some(Action::Reset { user, db: Some(db) }) => {
                reset_offline(db.clone(), user)?;
                self.request.confirm(&format!("removed the factors of {user}"))
            }
            Some(Action::Reset { user, db: None }) => {
                let client = self.request.connect().await?;
                client.delete(&format!("/users/{}/presence", percent_encode(user))).await?;
                self.request.confirm(&format!("removed the factors of {user}"))
            }
        }
    }

    async fn status(&self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let mut status: PresenceStatus = client.get("/presence").await?;
        // The page with a sign-in, where the caller may have one.
        if status.passkey_page.is_some() {
            status.passkey_page = presence::passkey_page(&client).await?;
        }
        self.request.print(&status, |status| {
            let set = |is_set: bool| if is_set { "set" } else { "not set" };
            let required = status.required.name();
            let page =
                status.passkey_page.as_ref().map(|page| format!("\nregister and remove passkeys: {page}"));
            format!(
                "required {required}\npin      {}\ntotp     {}\npasskeys {}{}",
                set(status.pin),
                set(status.totp),
                status.passkeys,
                page.unwrap_or_default()
            )
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

/// Removes the factors in the row of a user.
fn reset_offline(db: PathBuf, user: &str) -> Result<(), CliError> {
    let mut store = Database::existing(db)?.open(None)?;
    let readers = store.readers().ok_or_else(|| CliError::new("cannot read the database"))?;
    let is_users = |account: &Account| account.kind == AccountKind::User && account.id == user;
    let account = readers.accounts()?.into_iter().find(is_users);
    let account = account.ok_or_else(|| CliError::new(format!("`{user}` has no factors")))?;
    let mut row: Map<String, Value> = serde_json::from_str(&account.body)
        .map_err(|error| CliError::new(format!("the row of `{user}` is damaged: {error}")))?;
    row.remove("presence");
    let by = Some(Actor { via: Some("offline".to_owned()), ..Actor::user(os_user::name()) });
    let account = Account { body: Value::Object(row).to_string(), ..account };
    let removed = AdminEvent::new(AdminAction::PresenceRemoved { user: user.to_owned() }, by.clone());
    let commit = Commit {
        now: jiff::Timestamp::now().as_millisecond(),
        registry: vec![RegistryChange::PutAccount(account, by)],
        admin: vec![removed],
        ..Commit::default()
    };
    let failed = |refused: Refused| CliError::new(format!("the factors were not removed: {refused:?}"));
    store.commit(&commit).map(drop).map_err(failed)
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
