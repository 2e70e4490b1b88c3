//! A test setup: logins at one server, secrets in memory, and a browser that follows one redirect.

use std::sync::Arc;

use serde_json::{Value, json};
use steprail_mcp::config::Servers;
use steprail_mcp::{LoggedIn, LoginError, Logins, MemorySecrets};

use crate::authority::{Authority, Form, form};

pub(crate) const REDIRECT: &str = "http://127.0.0.1:9/callback";

/// One server, `crm`, with the logins at it.
pub(crate) struct Setup {
    pub authority: Authority,
    pub store: Arc<MemorySecrets>,
    pub logins: Logins,
}

impl Setup {
    pub(crate) fn new(authority: Authority, oauth: &Value) -> Self {
        let store = Arc::new(MemorySecrets::default());
        let logins = logins(&store, &authority.url(), oauth);
        Self { authority, store, logins }
    }

    /// Simulates a restart of the daemon.
    pub(crate) fn restart(&mut self, oauth: &Value) {
        self.logins = logins(&self.store, &self.authority.url(), oauth);
    }

    /// Logs in. Returns the parameters of the authorization URL, too.
    pub(crate) async fn log_in(&self, user: Option<&str>) -> Result<(Form, LoggedIn), LoginError> {
        let page = self.logins.begin("crm", user, REDIRECT).await?;
        let redirect = browse(&page).await;
        let done = self.logins.finish("crm", user, &redirect).await?;
        Ok((parameters(&page), done))
    }

    pub(crate) async fn token(&self) -> Result<Option<String>, LoginError> {
        self.logins.token("crm", &self.authority.url(), None).await
    }

    pub(crate) async fn token_after_challenge(
        &self,
        rejected: Option<&str>,
        rest: &str,
    ) -> Result<String, LoginError> {
        let challenge = self.authority.challenge(rest);
        self.logins.token_after_challenge("crm", &self.authority.url(), None, rejected, &challenge).await
    }

    /// The token requests of a grant type.
    pub(crate) fn grants(&self, grant: &str) -> Vec<Form> {
        let all = self.authority.requests("token");
        all.into_iter().filter(|form| form["grant_type"] == grant).collect()
    }
}

fn logins(store: &Arc<MemorySecrets>, url: &str, oauth: &Value) -> Logins {
    let entry = json!({ "mcpServers": { "crm": { "url": url, "oauth": oauth } } });
    let servers = Servers::read(&entry.to_string()).expect("servers");
    Logins::new(store.clone(), &servers)
}

/// The query parameters of a URL.
pub(crate) fn parameters(page: &str) -> Form {
    form(page.split_once('?').expect("a query").1)
}

/// Opens a page and returns the URL that it redirects to.
pub(crate) async fn browse(page: &str) -> String {
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    let response = client.build().expect("a client").get(page).send().await.expect("a response");
    response.headers()["location"].to_str().expect("text").to_owned()
}

/// The message of [`LoginError::Needed`].
pub(crate) fn needed<T: std::fmt::Debug>(result: Result<T, LoginError>) -> String {
    match result {
        Err(LoginError::Needed(needed)) => needed.to_string(),
        other => panic!("expected a needed login, got {other:?}"),
    }
}
