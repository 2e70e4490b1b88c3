//! Visibility: which runs a reader may see, by the user who started a run and the scope of the token that started it.

use crate::{Approval, RunRow, TokenScope};

/// Who started a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Starter {
    /// Id of the user.
    pub user: String,
    /// Scope of the token that started the run; `None` if it was not started with a scoped token.
    pub scope: Option<TokenScope>,
}

/// The runs that a reader may see. The default is all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visibility {
    /// Only runs of this user; `None` means the runs of all users.
    pub user: Option<String>,
    /// Only runs that were started with a scope within this one; `None` means any run.
    pub within: Option<TokenScope>,
}

impl Visibility {
    /// The runs of one user, or of all users.
    pub fn of_user(user: Option<&str>) -> Self {
        Self { user: user.map(ToOwned::to_owned), within: None }
    }

    /// Whether it covers all runs.
    pub fn is_all(&self) -> bool {
        self.user.is_none() && self.within.is_none()
    }

    /// Whether the reader may see a run.
    pub fn includes(&self, user: &str, scope: Option<&TokenScope>) -> bool {
        let is_within = |outer: &TokenScope| scope.is_some_and(|scope| outer.contains(scope));
        self.user.as_deref().is_none_or(|own| own == user) && self.within.as_ref().is_none_or(is_within)
    }

    /// Whether the reader may see the runs of a starter.
    pub fn includes_starter(&self, starter: &Starter) -> bool {
        self.includes(&starter.user, starter.scope.as_ref())
    }

    /// Whether the reader may see a run.
    pub fn includes_run(&self, run: &RunRow) -> bool {
        self.includes(&run.created_by, run.scope.as_ref())
    }

    /// Whether the reader may see an approval.
    pub fn includes_approval(&self, approval: &Approval) -> bool {
        self.includes(&approval.created_by, approval.scope.as_ref())
    }
}
