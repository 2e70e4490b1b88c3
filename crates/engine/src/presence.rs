//! Requirements of presence: which factor a principal has to have proved. Surfaces verify factors.

use steprail_core::plan::GateRules;
use steprail_core::presence::Presence;
use steprail_store::{Approval, Principal};

use crate::engine::Engine;
use crate::error::Error;
use crate::user::User;

/// The part of the subject of an approval that states the rules of its gate.
#[derive(serde::Deserialize)]
struct Rules {
    rules: GateRules,
}

/// Returns an error unless a principal proved the required factor.
pub(crate) fn require(required: Presence, by: &Principal) -> Result<(), Error> {
    if by.provenance.presence.satisfies(required) { Ok(()) } else { Err(Error::PresenceRequired(required)) }
}

impl Engine {
    /// The factor that every decision and account change requires.
    pub fn presence(&self) -> Presence {
        self.0.presence
    }

    /// The factor that a decision at an open gate requires.
    pub fn presence_at(&self, approval: &Approval) -> Presence {
        let subject = approval.subject.as_ref().map(|subject| subject.get());
        let rules = subject.and_then(|subject| serde_json::from_str::<Rules>(subject).ok());
        rules.map_or(self.0.presence, |of| of.rules.presence.or_stronger(self.0.presence))
    }
}

impl User {
    /// Returns an error unless the user proved that they are present, where the settings require it.
    pub fn require_presence(&self) -> Result<(), Error> {
        require(self.engine().presence(), self.principal())
    }

    /// The factor that a decision at an open gate requires.
    pub fn presence_at(&self, approval: &Approval) -> Presence {
        self.engine().presence_at(approval)
    }
}
