//! Stored accounts and MCP sessions.

use steprail_store::{
    Account, AccountKind, Actor, AdminEvent, ChainHead, Cursor, EventPage, Session, StoredAdminEvent,
};

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

    /// Stores an account for a user, or for the program itself. It replaces the account of the same kind and id.
    pub async fn put_account(&self, account: Account, by: Option<Actor>) -> Result<(), Error> {
        self.0.command(Command::PutAccount(Box::new(account), by)).await
    }

    /// Deletes an account.
    pub async fn drop_account(&self, kind: AccountKind, id: &str, by: Option<Actor>) -> Result<(), Error> {
        self.0.command(Command::DropAccount { kind, id: id.to_owned(), by }).await
    }

    /// Records administrative actions in the log. An action whose rows already have the same hashes is not repeated.
    pub async fn record(&self, actions: Vec<AdminEvent>) -> Result<(), Error> {
        self.0.command(Command::Record(actions)).await
    }

    /// Returns administrative actions after a cursor.
    pub async fn actions(&self, after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, Error> {
        self.0.read(move |readers| readers.admin_events(after, limit)).await
    }

    /// Returns the end of the hash chain.
    pub async fn chain_head(&self) -> Result<ChainHead, Error> {
        self.0.read(|readers| readers.chain_head()).await
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
