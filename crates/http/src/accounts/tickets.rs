//! Tickets: a browser cannot send headers with a WebSocket or an `EventSource`, so the page passes a ticket in the URL. A
//! ticket works once, within seconds, and only together with the cookie of the session that it was created for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use steprail_core::run::Millis;
use steprail_engine::Error;

use super::Accounts;
use super::secret::{Secret, SecretHash};

/// How long a ticket is valid, in seconds.
pub(crate) const TICKET_SECS: u32 = 30;
/// The maximum number of unused tickets of a session.
const OPEN_TICKETS: usize = 32;

/// Unused tickets by the id in their secret. A restart of the server makes them invalid.
#[derive(Default)]
pub(super) struct Tickets(Mutex<HashMap<String, Ticket>>);

struct Ticket {
    hash: SecretHash,
    session: String,
    until: Millis,
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accounts {
    /// Creates a ticket for a session.
    pub(crate) fn create_ticket(&self, session: &str) -> Result<String, Error> {
        let secret = Secret::generate().map_err(Error::BadInput)?;
        let now = self.engine.now();
        let mut tickets = self.tickets.lock();
        tickets.retain(|_, ticket| ticket.until > now);
        if tickets.values().filter(|ticket| ticket.session == session).count() >= OPEN_TICKETS {
            return Err(Error::Conflict(format!(
                "{OPEN_TICKETS} tickets of this session are unused; use one, or wait {TICKET_SECS} s"
            )));
        }
        let until = now + Millis::from(TICKET_SECS) * 1_000;
        let ticket = Ticket { hash: secret.hash(), session: session.to_owned(), until };
        tickets.insert(secret.id.clone(), ticket);
        Ok(secret.text())
    }

    /// Uses a ticket up. Returns whether it was valid for the session.
    pub(crate) fn use_ticket(&self, text: &str, session: &str) -> bool {
        let Some(secret) = Secret::parse(text) else { return false };
        let mut tickets = self.tickets.lock();
        let matches = |ticket: &Ticket| ticket.hash.matches(&secret) && ticket.session == session;
        if !tickets.get(&secret.id).is_some_and(matches) {
            return false;
        }
        tickets.remove(&secret.id).is_some_and(|ticket| ticket.until > self.engine.now())
    }
}
