//! `steprail login`: logs in at a remote MCP server with OAuth.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use reqwest::Url;
use serde_json::json;
use steprail_http::views::{CompletedLogin, StartedLogin};

use super::shared::error::CliError;
use super::shared::exit;
use super::shared::oauth_callback::OauthCallback;
use super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// How long to wait for the browser: as long as the daemon does.
const TIMEOUT: Duration = Duration::from_secs(steprail_mcp::limits::LOGIN_SECS);

/// Log in at a remote MCP server with your browser
///
/// If the browser is on another machine, as over SSH, open the page there and paste the URL of the page that it ends on.
#[derive(Debug, Args)]
pub(super) struct Login {
    /// Name of the server in servers.json
    name: String,
    /// Print the URL without opening a browser
    #[arg(long)]
    no_browser: bool,
    /// Port of the redirect URI http://127.0.0.1:PORT/callback, for clients that must register it [default: a free port]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    #[command(flatten)]
    request: RequestArgs,
}

impl Login {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let path = format!("/servers/{}/login", percent_encode(&self.name));
        let callback = OauthCallback::listen(self.port)
            .await
            .map_err(|error| CliError::new(format!("cannot listen on 127.0.0.1 for the browser: {error}")))?;
        let body = json!({ "redirect_uri": callback.redirect_uri() });
        let started: StartedLogin = client.post(&path, &body).await?;
        let page = parse_page(&started.url)?;
        self.show_page(&page)?;
        let redirect = wait_for_redirect(callback, &page).await?;
        let body = json!({ "redirect_url": redirect });
        let completed: CompletedLogin = client.post(&format!("{path}/finish"), &body).await?;
        self.request.print(&completed, |completed| self.describe(&started, completed))
    }

    /// Opens the page in a browser, or prints what to do.
    fn show_page(&self, page: &Url) -> Result<(), CliError> {
        let mut err = anstream::stderr();
        let opened = !self.no_browser && has_display() && open_browser(page);
        let action = if opened { "opening this page in your browser" } else { "open this page in a browser" };
        writeln!(err, "{action}:\n\n  {page}\n")?;
        writeln!(err, "If the browser is on another machine, paste the URL that it ends on here:")?;
        Ok(())
    }

    fn describe(&self, started: &StartedLogin, completed: &CompletedLogin) -> String {
        let users = if started.shared { " for all users" } else { "" };
        let mut text = format!("logged in at {}{users}", self.name);
        if !completed.scopes.is_empty() {
            text.push_str(&format!("\nscopes {}", completed.scopes.join(" ")));
        }
        match (completed.renews, completed.expires_in) {
            (true, _) => {
                text.push_str("\ntokens are renewed until you log out or the server revokes the login");
            }
            (false, Some(seconds)) => {
                let minutes = seconds / 60;
                text.push_str(&format!("\nexpires in {minutes} min; the server does not renew tokens"));
            }
            (false, None) => {}
        }
        text
    }
}

/// Accepts only web pages, since the URL is passed to a browser.
fn parse_page(url: &str) -> Result<Url, CliError> {
    let page = Url::parse(url).ok().filter(|page| matches!(page.scheme(), "http" | "https"));
    page.ok_or_else(|| CliError::new("the daemon returned no web page to log in at"))
}

/// Waits for the redirect, from the browser or pasted.
async fn wait_for_redirect(callback: OauthCallback, page: &Url) -> Result<String, CliError> {
    let state = page.query_pairs().find(|(key, _)| key == "state").map(|(_, state)| state.into_owned());
    let timed_out = || {
        let minutes = TIMEOUT.as_secs() / 60;
        CliError::new(format!("the login timed out after {minutes} minutes")).hint("run the command again")
    };
    tokio::select! {
        redirect = callback.wait(state.unwrap_or_default()) => Ok(redirect?),
        line = pasted_line() => Ok(line),
        () = tokio::time::sleep(TIMEOUT) => Err(timed_out()),
        _ = tokio::signal::ctrl_c() => Err(CliError::Reported(exit::INTERRUPTED)),
    }
}

/// Returns the first line of standard input that is not empty. Never returns if there is none.
async fn pasted_line() -> String {
    let line = tokio::task::spawn_blocking(|| {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        lines.map(|line| line.trim().to_owned()).find(|line| !line.is_empty())
    });
    match line.await {
        Ok(Some(line)) => line,
        _ => std::future::pending().await,
    }
}

/// Whether a browser on this machine is visible to the user.
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_remote = is_set("SSH_CONNECTION") || is_set("SSH_TTY");
    !is_remote && (cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"))
}

fn open_browser(page: &Url) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(page.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
