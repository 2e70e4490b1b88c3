//! Stored accounts and MCP sessions.

use steprail_store::{Account, AccountKind, Session};

use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::Command;

/// Accounts and MCP sessions in the store of an engine. The engine does not interpret them.
#[derive(Debug, Clone)]
pub struct Registry(Engine);

impl Registry {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }

    /// Stores an account. It replaces the account of the same kind and id.
    pub async fn put_account(&self, account: Account) -> Result<(), Error> {
        self.0.command(Command::PutAccount(Box::new(account))).await
    }

    /// Deletes an account.
    pub async fn drop_account(&self, kind: AccountKind, id: &str) -> Result<(), Error> {
        self.0.command(Command::DropAccount { kind, id: id.to_owned() }).await
    }

    /// Returns the session of an MCP client.
    pub async fn session(&self, id: &str) -> Result<Option<Session>, Error> {
        let id = id.to_owned();
        self.0.read(move |readers| readers.session(&id)).await
    }

    /// Stores the session of an MCP client, so that it survives a restart. It replaces the session with the same id.
    pub async fn put_session(&self, session: Session) -> Result<(), Error> {
        self.0.command(Command::PutSession(Box::new(session))).await
    }

    /// Deletes a session.
    pub async fn drop_session(&self, id: &str) -> Result<(), Error> {
        self.0.command(Command::DropSession { id: id.to_owned() }).await
    }
}
