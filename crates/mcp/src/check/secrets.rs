//! References to secrets in arguments, and to environment variables.

use std::collections::BTreeSet;

use steprail_core::diagnostic::Code;
use steprail_core::expr::{Ref, Root, SecretText, Segment};
use steprail_core::plan::Step;

use super::Check;
use crate::gateway::{binding_problem, unknown_secret};

impl Check<'_> {
    /// Reports secrets that do not exist, or that may not be sent to the server of a tool.
    pub(super) fn secrets(&mut self, step: &Step, tool: &str, secrets: &[SecretText]) {
        let (Some(store), Some(server)) = (self.gateway.secrets(), self.gateway.server_of(tool)) else {
            return;
        };
        let names: BTreeSet<&str> = secrets.iter().flat_map(|text| &text.names).map(|name| &**name).collect();
        for name in names {
            let problem = match store.exists(name) {
                Ok(true) => binding_problem(&*store, name, &server),
                Ok(false) => Some(unknown_secret(name)),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                let span = self.field(step, &["args"]);
                self.report(Code::UnusableSecret, step, span, problem, None);
            }
        }
    }

    /// The environment variable that a reference reads, if definitions cannot read it.
    pub(super) fn unlisted_variable(&self, reference: &Ref) -> Option<String> {
        let listed = self.gateway.env()?;
        match (&reference.root, reference.path.first()) {
            (Root::Env, Some(Segment::Key(name))) if !listed.contains(&**name) => Some(name.to_string()),
            _ => None,
        }
    }
}
