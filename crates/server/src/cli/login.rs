//! `steprail login` and `logout`: OAuth logins at remote servers.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use reqwest::Url;
use serde_json::json;

use super::callback::Callback;
use super::stop::Stop;
use super::target::Target;
use super::{exit, session, show_as};
use crate::client::escaped;
use steprail_http::views::{CompletedLogin, StartedLogin};

/// How long the browser may take: as long as the daemon waits for it.
const PATIENCE: Duration = Duration::from_secs(steprail_mcp::limits::LOGIN_SECS);

/// Log in at a remote server with your browser
///
/// Where the browser is on another machine, as over SSH, open the page there and paste the URL that it ends on.
#[derive(Debug, Args)]
pub(super) struct Login {
    /// The server, as servers.json names it
    name: String,
    /// Print the page's URL and open no browser
    #[arg(long)]
    no_browser: bool,
    /// Wait for the browser at this port, for clients whose redirect URI is registered: http://127.0.0.1:PORT/callback
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Delete a login at a remote server
#[derive(Debug, Args)]
pub(super) struct Logout {
    /// The server, as servers.json names it
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Logout {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            client.delete(&format!("/servers/{}/login", escaped(&self.name))).await?;
            show_as::done(self.json, &format!("logged out at {}", self.name))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl Login {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            let path = format!("/servers/{}/login", escaped(&self.name));
            let callback = Callback::listen(self.port).await.map_err(|error| {
                Stop::usage(format!("cannot listen on 127.0.0.1 for the browser: {error}"))
            })?;
            let begun: StartedLogin =
                client.post(&path, &json!({ "redirect_uri": callback.redirect_uri() })).await?;
            let page = page(&begun.url)?;
            self.show(&page)?;
            let redirect = redirect(callback, &page).await?;
            let body = json!({ "redirect_url": redirect });
            let finished: CompletedLogin = client.post(&format!("{path}/finish"), &body).await?;
            self.tell(&begun, &finished)?;
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Opens the page, and says what to do where that is not possible.
    fn show(&self, page: &Url) -> Result<(), Stop> {
        let mut err = anstream::stderr();
        let opened = !self.no_browser && has_display() && open(page);
        let what = if opened { "your browser opens this page" } else { "open this page in a browser" };
        writeln!(err, "{what}:\n\n  {page}\n")?;
        writeln!(err, "If the browser is on another machine, paste the URL that it ends on here:")?;
        Ok(())
    }

    fn tell(&self, begun: &StartedLogin, finished: &CompletedLogin) -> Result<(), Stop> {
        if self.json {
            return show_as::json(finished);
        }
        let of = if begun.shared { " for all users" } else { "" };
        show_as::line(&format!("logged in at {}{of}", self.name))?;
        if !finished.scopes.is_empty() {
            show_as::line(&format!("scopes {}", finished.scopes.join(" ")))?;
        }
        match (finished.renews, finished.expires_in) {
            (true, _) => show_as::line("tokens are renewed until you log out or the server ends the login"),
            (false, Some(seconds)) => {
                show_as::line(&format!("expires in {} min; the server renews no tokens", seconds / 60))
            }
            (false, None) => Ok(()),
        }
    }
}

/// The page that the daemon names. A browser is given web pages only.
fn page(url: &str) -> Result<Url, Stop> {
    let page = Url::parse(url).ok().filter(|page| matches!(page.scheme(), "http" | "https"));
    page.ok_or_else(|| Stop::usage("the daemon named no web page to log in at"))
}

/// Waits for the redirect: from the browser, or pasted.
async fn redirect(callback: Callback, page: &Url) -> Result<String, Stop> {
    let state = page.query_pairs().find(|(key, _)| key == "state").map(|(_, state)| state.into_owned());
    let late = || {
        let minutes = PATIENCE.as_secs() / 60;
        Stop::usage(format!("nobody logged in within {minutes} minutes")).hint("run the command again")
    };
    tokio::select! {
        redirect = callback.wait(state.unwrap_or_default()) => Ok(redirect?),
        pasted = pasted() => pasted,
        () = tokio::time::sleep(PATIENCE) => Err(late()),
        _ = tokio::signal::ctrl_c() => Err(Stop::Silent(exit::INTERRUPTED)),
    }
}

/// The first line of standard input that is not empty. Without one, nothing ever comes.
async fn pasted() -> Result<String, Stop> {
    let line = tokio::task::spawn_blocking(|| {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        lines.map(|line| line.trim().to_owned()).find(|line| !line.is_empty())
    });
    match line.await {
        Ok(Some(line)) => Ok(line),
        _ => std::future::pending().await,
    }
}

/// Whether a browser on this machine can be seen by the user.
fn has_display() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_remote = set("SSH_CONNECTION") || set("SSH_TTY");
    !is_remote && (cfg!(target_os = "macos") || set("DISPLAY") || set("WAYLAND_DISPLAY"))
}

fn open(page: &Url) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(page.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
