//! The policy of an engine, shared by all threads: the rules, the freeze and remembered approvals.

use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use steprail_core::budget::Budget;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::policy::{CallFacts, Policy, Verdict};
use steprail_core::run::Annotations;
use steprail_core::source::Source;
use steprail_store::{Actor, Freeze, PolicyChange, PolicyState, Principal, Remembered, Right};

use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::Command;
use crate::presence;

/// The policy that an engine enforces. It can be replaced while the engine runs; each call is judged by one version.
/// Clones share the policy.
#[derive(Clone, Default)]
pub struct PolicyHandle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    rules: RwLock<Option<Arc<Policy>>>,
    state: RwLock<PolicyState>,
    problem: RwLock<Option<String>>,
}

impl PolicyHandle {
    /// A handle with a policy. Without one, all calls are allowed.
    pub fn new(policy: Option<Policy>) -> Self {
        let handle = Self::default();
        handle.replace(policy);
        handle
    }

    /// Replaces the policy. Calls that are judged from now on are judged by it.
    pub fn replace(&self, policy: Option<Policy>) {
        *write(&self.0.rules) = policy.map(Arc::new);
        *write(&self.0.problem) = None;
    }

    /// The policy.
    pub fn current(&self) -> Option<Arc<Policy>> {
        read(&self.0.rules).clone()
    }

    /// Records why a newer policy could not be loaded. The policy stays as it is.
    pub fn reject(&self, problem: impl Into<String>) {
        *write(&self.0.problem) = Some(problem.into());
    }

    /// Why a newer policy could not be loaded.
    pub fn problem(&self) -> Option<String> {
        read(&self.0.problem).clone()
    }

    /// The freeze, while there is one.
    pub fn freeze(&self) -> Option<Freeze> {
        read(&self.0.state).freeze.clone()
    }

    /// Whether no call may start.
    pub(crate) fn is_frozen(&self) -> bool {
        read(&self.0.state).freeze.is_some()
    }

    /// Remembered approvals that have not ended.
    pub fn remembered(&self, now: i64) -> Vec<Remembered> {
        read(&self.0.state).remembered.iter().filter(|approval| approval.until > now).cloned().collect()
    }

    /// Finds a remembered approval.
    pub(crate) fn find_remembered(&self, is_wanted: impl Fn(&Remembered) -> bool) -> Option<String> {
        read(&self.0.state)
            .remembered
            .iter()
            .find(|approval| is_wanted(approval))
            .map(|found| found.id.clone())
    }

    /// Loads the stored state.
    pub(crate) fn load(&self, state: PolicyState) {
        *write(&self.0.state) = state;
    }

    /// Applies a change that is committed.
    pub(crate) fn apply(&self, change: &PolicyChange) {
        let mut state = write(&self.0.state);
        match change {
            PolicyChange::Freeze(freeze) => state.freeze = Some(freeze.clone()),
            PolicyChange::Unfreeze { .. } => state.freeze = None,
            PolicyChange::Remember(approval) => {
                state.remembered.retain(|known| known.id != approval.id && known.until > approval.at);
                state.remembered.push((**approval).clone());
            }
            PolicyChange::Revoke { id, .. } => state.remembered.retain(|known| known.id != *id),
        }
    }
}

impl std::fmt::Debug for PolicyHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("PolicyHandle").field(&self.current().map(|policy| policy.version().clone())).finish()
    }
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// A call to explain, which is not made.
#[derive(Debug, Clone)]
pub struct ExplainCall {
    /// Full name of the tool.
    pub tool: String,
    /// The arguments.
    pub args: Value,
    /// The annotations; `None`: those of the tool now.
    pub annotations: Option<Annotations>,
    /// The user that the call acts for.
    pub user: String,
    /// The groups of the user; `None`: those that the user is in.
    pub groups: Option<Vec<String>>,
    /// Whether an agent starts it.
    pub agent: bool,
    /// Name of the client.
    pub client: Option<String>,
    /// Name of the workflow; `None`: a direct call.
    pub workflow: Option<String>,
}

/// Why a policy decides as it does about a call.
#[derive(Debug, Clone)]
pub struct PolicyExplanation {
    /// The verdict.
    pub verdict: Verdict,
    /// The rules up to the one that decided, each with the reason why it did not match.
    pub rules: Vec<(String, Option<String>)>,
}

impl Engine {
    /// The policy that the engine enforces.
    pub fn policy(&self) -> &PolicyHandle {
        &self.0.policy
    }

    /// Explains the verdict about a call without making it; `None` if there is no policy.
    pub fn explain_policy(&self, call: &ExplainCall) -> Option<PolicyExplanation> {
        let policy = self.0.policy.current()?;
        let groups = match &call.groups {
            Some(groups) => groups.clone(),
            None => self.0.authorizer.groups(&call.user),
        };
        let facts = CallFacts {
            tool: &call.tool,
            args: &call.args,
            annotations: call.annotations.unwrap_or_else(|| self.0.tools.annotations(&call.tool)),
            user: &call.user,
            groups: &groups,
            agent: call.agent,
            client: call.client.as_deref(),
            workflow: call.workflow.as_deref(),
            step: "",
            now: self.now(),
        };
        let (verdict, checked) = policy.explain(&facts, &mut Budget::evaluation());
        let reason = |mismatch: &steprail_core::policy::Mismatch| mismatch.to_string();
        let rules = checked.iter().map(|rule| (rule.rule.to_owned(), rule.mismatch.as_ref().map(reason)));
        Some(PolicyExplanation { verdict, rules: rules.collect() })
    }

    /// Stops all calls from starting until [`Engine::unfreeze`], also after a restart. Calls in flight end normally.
    pub async fn freeze(&self, by: &Principal, reason: Option<String>) -> Result<(), Error> {
        self.authorize_freeze(by)?;
        let freeze = Freeze { by: by.id.clone(), reason, at: self.now() };
        self.command(Command::Policy(PolicyChange::Freeze(freeze))).await
    }

    /// Lets calls start again.
    pub async fn unfreeze(&self, by: &Principal) -> Result<(), Error> {
        self.authorize_freeze(by)?;
        presence::require(self.presence(), by)?;
        self.command(Command::Policy(PolicyChange::Unfreeze { by: Actor::from(by) })).await
    }

    /// Deletes a remembered approval. The user whose calls it covers and the user who approved need no right.
    pub async fn revoke_remembered(&self, by: &Principal, id: &str) -> Result<(), Error> {
        let known = self.0.policy.remembered(self.now()).into_iter().find(|approval| approval.id == id);
        let known =
            known.ok_or_else(|| Error::NotFound(format!("there is no remembered approval `{id}`")))?;
        let is_own = !by.agent && (by.id == known.user || by.id == known.by);
        if !is_own {
            self.authorize_freeze(by)?;
        }
        let revoke = PolicyChange::Revoke { id: id.to_owned(), by: Actor::from(by) };
        self.command(Command::Policy(revoke)).await
    }

    fn authorize_freeze(&self, by: &Principal) -> Result<(), Error> {
        if by.agent {
            let message = "an agent cannot freeze calls or let them start again; ask a human";
            return Err(Error::Denied(message.to_owned()));
        }
        self.authorize(by, Right::Administer)
    }
}

/// Parses and compiles a policy, with the time zones of the engine.
pub fn compile_policy(source: &Source) -> (Option<Policy>, Vec<Diagnostic>) {
    Policy::compile(source, &|name| jiff::tz::TimeZone::get(name).ok())
}
