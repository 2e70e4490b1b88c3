//! The handle to an engine with the rights of a user. Every surface acts through it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::plan::Hash;
use steprail_core::policy::ByAgents;
use steprail_core::presence::Presence;
use steprail_core::run::{Intervention, Provenance, Resolution, RunStatus};
use steprail_store::{
    After, Approval, Cursor, Definition, EventPage, Expected, ListRuns, ListSteps, Principal, RawEvent,
    Relay, Remembered, Right, RunId, RunRow, Schedule, Starter, StepPage, StoredAdminEvent, StoredEvent,
    TokenScope, Visibility,
};

use crate::decisions::DecisionRequest;
use crate::definitions::DefineOptions;
use crate::engine::Engine;
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::{Compiled, DefinitionVersion, no_run};
use crate::policy::{ExplainCall, PolicyExplanation, PolicyHandle};
use crate::queries::RunView;
use crate::quotas::{Quota, QuotaExceeded};
use crate::runs::{Resume, RunHandle};
use crate::start::{Start, Workflow};
use crate::trace::TraceParent;

/// An engine with the rights of one user. A run that the user may not see is reported as not found.
#[derive(Debug, Clone)]
pub struct User {
    engine: Engine,
    principal: Principal,
}

impl Engine {
    /// Returns a handle with the rights of a user.
    pub fn as_user(&self, principal: Principal) -> User {
        User { engine: self.clone(), principal }
    }
}

impl User {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The principal of the user.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether the user has a right.
    pub fn may(&self, right: Right) -> bool {
        self.engine.authorize(&self.principal, right).is_ok()
    }

    /// Returns an error unless the user has a right.
    pub fn require(&self, right: Right) -> Result<(), Error> {
        self.engine.authorize(&self.principal, right)
    }

    /// Stores a definition. `publish` overrides the field of the definition that offers it to agents as a tool.
    pub async fn define(
        &self,
        text: &str,
        publish: Option<bool>,
        expected: Expected,
    ) -> Result<(DefinitionVersion, Vec<Diagnostic>), Error> {
        self.require(Right::Workflow)?;
        let propose = self.definitions_by_agents() == ByAgents::Proposed;
        if !propose {
            self.require_may_define()?;
        }
        self.require_presence_of_person()?;
        let (expected, owner) = self.definition_preconditions(expected);
        let unpublished_only = !self.may(Right::Publish);
        let scope = self.principal.scope.clone();
        let options =
            DefineOptions { publish, expected, owner, unpublished_only, scope, propose, accepts: None };
        self.engine.define_with(text, &self.principal, &options).await.map_err(|error| match error {
            // Runs that other users start from the definition would not have the scope of this token.
            Error::VersionConflict(_) if self.principal.scope.is_some() => Error::Denied(
                "a scoped token cannot change a definition; use another name, or a token without a scope"
                    .to_owned(),
            ),
            error => error,
        })
    }

    /// What the policy says about definitions by this principal. A person's are allowed.
    fn definitions_by_agents(&self) -> ByAgents {
        let policy = self.engine.policy().current().filter(|_| self.principal.agent);
        policy.map_or(ByAgents::Allowed, |policy| policy.by_agents)
    }

    /// Returns an error if the policy rejects definitions of agents, or requires that a person accepts them, and this is one.
    fn require_may_define(&self) -> Result<(), Error> {
        let message = match self.definitions_by_agents() {
            ByAgents::Allowed => return Ok(()),
            ByAgents::Denied => {
                "the policy denies definitions by agents; ask a human to store the definition"
            }
            ByAgents::Proposed => {
                "the policy requires that a person accepts the definitions of agents; store the definition, and ask a \
                 human to accept it"
            }
        };
        Err(Error::Denied(message.to_owned()))
    }

    /// A person changes definitions with the factor that the settings require. The policy decides about agents.
    fn require_presence_of_person(&self) -> Result<(), Error> {
        if self.principal.agent { Ok(()) } else { self.require_presence() }
    }

    /// Makes this user the owner and author of a definition: a person who owns it or has the right `administer`, and who may
    /// call the tools of all its versions.
    pub async fn adopt_definition(&self, name: &str, expected: Expected) -> Result<Definition, Error> {
        self.require_person("adopts definitions")?;
        let newest = self.engine.definition(name, None).await?;
        if expected != Expected::Any && expected != Expected::Version(newest.version) {
            let message = format!("the newest version of `{name}` is {}; look at it again", newest.version);
            return Err(Error::Conflict(message));
        }
        if newest.created_by != self.principal.id {
            self.require(Right::Administer)?;
        }
        // Every version can be started, and has the new author afterwards.
        for version in self.engine.versions(name).await? {
            self.require_may_adopt(&version).await?;
        }
        self.engine.adopt_definition(name, Expected::Version(newest.version), &self.principal).await?;
        self.engine.definition(name, None).await
    }

    async fn require_may_adopt(&self, definition: &Definition) -> Result<(), Error> {
        let compiled = Compiled::new(definition)?;
        if compiled.plan.settings.publish.is_some() {
            self.require(Right::Publish)?;
        }
        for tool in compiled.plan.tools() {
            if !self.may_call(tool).await {
                let (user, Definition { name, version, .. }) = (&self.principal.id, definition);
                let message =
                    format!("{user} may not call `{tool}`, which version {version} of `{name}` calls");
                return Err(Error::Denied(message));
            }
        }
        Ok(())
    }

    /// Changing a definition of another user needs the right `administer`, and a scoped token can only create definitions.
    fn definition_preconditions(&self, expected: Expected) -> (Expected, Option<String>) {
        let expected = if self.principal.scope.is_some() { Expected::Absent } else { expected };
        let owner = (!self.may(Right::Administer)).then(|| self.principal.id.clone());
        (expected, owner)
    }

    /// Whether the user may call a tool now.
    pub async fn may_call(&self, tool: &str) -> bool {
        self.engine.may_call(&self.principal, tool).await
    }

    /// The same user in person, who answers a prompt of their MCP client.
    #[must_use]
    pub fn in_person(&self) -> Self {
        // A client can answer its prompts by itself, so an answer never proves that the user is present.
        let presence = Presence::None;
        let provenance =
            Provenance { surface: Some("mcp".into()), presence, ..self.principal.provenance.clone() };
        let principal = Principal { agent: self.principal.agent_only, provenance, ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// Returns the newest version of every definition.
    pub async fn definitions(&self) -> Result<Vec<Definition>, Error> {
        self.require_read()?;
        self.engine.definitions().await
    }

    /// Returns a version of a definition; the newest if `version` is `None`.
    pub async fn definition(&self, name: &str, version: Option<u32>) -> Result<Definition, Error> {
        self.require_read()?;
        self.engine.definition(name, version).await
    }

    /// Returns the versions of a definition, newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<Definition>, Error> {
        self.require_read()?;
        self.engine.versions(name).await
    }

    /// Hides a definition from new runs. Runs in progress continue.
    pub async fn delete_definition(&self, name: &str, expected: Expected) -> Result<(), Error> {
        self.require(Right::Workflow)?;
        self.require_may_define()?;
        self.require_presence_of_person()?;
        let owner = (!self.may(Right::Administer)).then(|| self.principal.id.clone());
        self.engine.delete_definition_with(name, expected, owner, Some(&self.principal)).await
    }

    /// Reading definitions needs the right `workflow` or the right `view`.
    pub(crate) fn require_read(&self) -> Result<(), Error> {
        self.require(Right::Workflow).or_else(|error| self.require(Right::View).map_err(|_| error))
    }

    /// Returns schedules that the user may see ([`User::visibility`]), by name.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        let (mut schedules, visible) = (self.engine.schedules().await?, self.visibility());
        schedules
            .retain(|Schedule { principal, .. }| visible.includes(&principal.id, principal.scope.as_ref()));
        Ok(schedules)
    }

    /// Stores a schedule whose runs act as this user. Returns it with the next time at which it is due.
    pub async fn schedule(&self, mut schedule: Schedule) -> Result<Schedule, Error> {
        self.require(Right::Workflow)?;
        let _scheduling = self.engine.0.scheduling.lock().await;
        let schedules = self.engine.schedules().await?;
        self.require_schedule_owner(&schedules, &schedule.name)?;
        self.require_schedule_quota(&schedules, &schedule.name)?;
        schedule.principal = self.principal.clone();
        let name = schedule.name.clone();
        schedule.due = self.engine.schedule(schedule.clone()).await?;
        let stored = self.engine.schedules().await?.into_iter().find(|stored| stored.name == name);
        Ok(stored.unwrap_or(schedule))
    }

    /// Deletes a schedule. Runs that it started continue.
    pub async fn unschedule(&self, name: &str) -> Result<(), Error> {
        self.require(Right::Workflow)?;
        self.require_schedule_owner(&self.engine.schedules().await?, name)?;
        self.engine.unschedule_by(name, &self.principal).await
    }

    /// Changing a schedule of another user needs the right `administer`. A scoped token changes only schedules within its
    /// scope.
    fn require_schedule_owner(&self, schedules: &[Schedule], name: &str) -> Result<(), Error> {
        let Some(Schedule { principal, .. }) = schedules.iter().find(|schedule| schedule.name == name) else {
            return Ok(());
        };
        let contains = |scope: &TokenScope| principal.scope.as_ref().is_some_and(|of| scope.contains(of));
        if self.principal.scope.as_ref().is_some_and(|scope| !contains(scope)) {
            return Err(Error::Denied(format!(
                "the schedule `{name}` is outside the scope of this token; use another name"
            )));
        }
        if principal.id == self.principal.id { Ok(()) } else { self.require(Right::Administer) }
    }

    /// A schedule that replaces one of the user does not count.
    fn require_schedule_quota(&self, schedules: &[Schedule], name: &str) -> Result<(), Error> {
        let (quotas, user) = (&self.engine.0.quotas, &self.principal.id);
        let Some(limit) = quotas.schedules.filter(|_| quotas.bind(user)) else { return Ok(()) };
        let others =
            schedules.iter().filter(|known| known.principal.id == *user && known.name != name).count();
        if others < limit as usize {
            return Ok(());
        }
        Err(QuotaExceeded::amount(Quota::Schedules, user, limit.into()))
    }

    /// The runs that the user may see: their own, and those of others with the right `view`. A scoped token sees only runs
    /// that were started with a scope within its own; if its scope names `view`, the rights of their scopes do not count.
    pub fn visibility(&self) -> Visibility {
        self.readable_with(&[Right::View])
    }

    /// The runs that can be read with one of these rights.
    fn readable_with(&self, rights: &[Right]) -> Visibility {
        let is_own_only = !rights.iter().any(|right| self.may(*right));
        let within = self.principal.scope.as_ref().and_then(|scope| scope.readable(rights));
        Visibility { user: is_own_only.then(|| self.principal.id.clone()), within }
    }

    /// Returns the events after a cursor of the runs that the user may see, each with the starter of its run.
    pub async fn feed(
        &self,
        after: Cursor,
        limit: usize,
    ) -> Result<EventPage<(RawEvent, Arc<Starter>)>, Error> {
        self.engine.feed(after, limit, self.visibility()).await
    }

    /// The same user through a client or tool with this name.
    #[must_use]
    pub fn via(&self, name: impl Into<String>) -> Self {
        Self { engine: self.engine.clone(), principal: self.principal.clone().via(name) }
    }

    /// The same user through an MCP client.
    #[must_use]
    pub fn with_client(&self, client: impl Into<String>) -> Self {
        let principal = Principal { client: Some(client.into()), ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// The policy that the engine enforces.
    pub fn policy(&self) -> &PolicyHandle {
        self.engine.policy()
    }

    /// Explains the verdict about a call without making it. Calls of other users need the right `view`.
    pub fn explain_policy(&self, call: &ExplainCall) -> Result<Option<PolicyExplanation>, Error> {
        if call.user != self.principal.id {
            self.require(Right::View)?;
        }
        Ok(self.engine.explain_policy(call))
    }

    /// Stops all calls from starting. Needs the right `administer`.
    pub async fn freeze(&self, reason: Option<String>) -> Result<(), Error> {
        self.engine.freeze(&self.principal, reason).await
    }

    /// Lets calls start again. Needs the right `administer`.
    pub async fn unfreeze(&self) -> Result<(), Error> {
        self.engine.unfreeze(&self.principal).await
    }

    /// Remembered approvals of the user's calls; of all users with the right `view`.
    pub fn remembered_approvals(&self) -> Vec<Remembered> {
        let mut known = self.engine.policy().remembered(self.engine.now());
        let sees_all = self.may(Right::View);
        known.retain(|approval| {
            sees_all || approval.user == self.principal.id || approval.by == self.principal.id
        });
        known
    }

    /// Deletes a remembered approval.
    pub async fn revoke_remembered(&self, id: &str) -> Result<(), Error> {
        self.engine.revoke_remembered(&self.principal, id).await
    }

    /// The same user with a relayed MCP request.
    #[must_use]
    pub fn relaying(&self, relay: Relay) -> Self {
        let principal = Principal { relay: Some(Box::new(relay)), ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// The same user in a trace, which the runs that they start join. An invalid `traceparent` is ignored.
    #[must_use]
    pub fn traced(&self, traceparent: Option<&str>) -> Self {
        let trace = traceparent.and_then(TraceParent::parse).map(|parent| parent.to_string());
        let principal = Principal { trace, ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// Starts a run.
    pub async fn start(
        &self,
        workflow: Workflow,
        inputs: Value,
        request_key: Option<String>,
    ) -> Result<RunHandle, Error> {
        self.require(Right::Workflow)?;
        if matches!(workflow, Workflow::Inline { .. }) {
            self.require_may_define()?;
        }
        let start = Start::of(workflow, self.principal.clone()).inputs(inputs);
        self.engine.start(request_key.into_iter().fold(start, Start::request_key)).await
    }

    /// Calls a tool. The call is a run of one step, so it is authorised, checked, bounded and recorded.
    pub async fn call_tool(&self, tool: &str, args: &Value) -> Result<RunHandle, Error> {
        self.engine.start(Start::call(tool, args, self.principal.clone())).await
    }

    /// Starts a run with the definition and inputs of a run that has ended. See [`Engine::rerun`].
    pub async fn rerun(&self, run: RunId, reuse_except: Option<Vec<String>>) -> Result<RunHandle, Error> {
        self.require(Right::Workflow)?;
        self.row(run).await?;
        self.engine.rerun(run, reuse_except, self.principal.clone()).await
    }

    /// Returns a run without its steps.
    pub async fn row(&self, run: RunId) -> Result<RunRow, Error> {
        let row = self.engine.row(run).await?;
        self.require_visible(&row)?;
        Ok(row)
    }

    /// Returns a run with its first steps and open approvals.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.engine.status(run).await?;
        self.require_visible(&view.run)?;
        Ok(view)
    }

    /// Returns a run with a page of its steps and open approvals.
    pub async fn status_with(&self, run: RunId, list: ListSteps) -> Result<RunView, Error> {
        let view = self.engine.status_with(run, list).await?;
        self.require_visible(&view.run)?;
        Ok(view)
    }

    /// Returns a page of the steps of a run.
    pub async fn steps(&self, run: RunId, list: ListSteps) -> Result<StepPage, Error> {
        self.row(run).await?;
        self.engine.steps(run, list).await
    }

    fn require_visible(&self, row: &RunRow) -> Result<(), Error> {
        if self.visibility().includes_run(row) { Ok(()) } else { Err(no_run(row.run_id)) }
    }

    /// Waits until a run has ended or waits itself, or, with `since`, until it has an event with a higher sequence
    /// number. Returns the run after `timeout` at the latest.
    pub async fn wait(&self, run: RunId, since: Option<u64>, timeout: Duration) -> Result<RunRow, Error> {
        let mut row = self.row(run).await?;
        let deadline = tokio::time::Instant::now() + timeout;
        let mut feed = self.engine.subscribe_run(run, After::Seq(row.seq));
        loop {
            let is_waiting = !matches!(row.status, RunStatus::Pending | RunStatus::Running);
            if row.status.is_terminal() || since.map_or(is_waiting, |since| row.seq > since) {
                return Ok(row);
            }
            match tokio::time::timeout_at(deadline, feed.next()).await {
                Ok(event) => drop(event?.ok_or(Error::Stopped)?),
                Err(_) => return Ok(row),
            }
            row = self.engine.row(run).await?;
        }
    }

    /// Returns runs that the user may see ([`User::visibility`]), newest first.
    pub async fn list(&self, list: ListRuns) -> Result<Vec<RunRow>, Error> {
        self.engine.list(ListRuns { visible: self.visibility(), ..list }).await
    }

    /// Returns administrative actions. Needs the right `administer` or `manage`.
    pub async fn actions(&self, after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, Error> {
        self.require(Right::Manage).or_else(|_| self.require(Right::Administer))?;
        self.engine.registry().actions(after, limit).await
    }

    /// Returns the events of a run after a position.
    pub async fn events(
        &self,
        run: RunId,
        after: After,
        limit: usize,
    ) -> Result<EventPage<StoredEvent>, Error> {
        self.row(run).await?;
        self.engine.events(run, after, limit).await
    }

    /// Subscribes to the events of a run after a position.
    pub async fn follow(&self, run: RunId, after: After) -> Result<Subscription, Error> {
        self.row(run).await?;
        let slot = self.open_subscription()?;
        Ok(self.engine.subscribe_run(run, after).counted_by(slot))
    }

    /// Returns open approvals of a run and of the runs that it waits for.
    pub async fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, Error> {
        self.row(run).await?;
        self.engine.run_approvals(run).await
    }

    /// Returns open approvals, oldest first: of all runs with the right `approve` or `view`, else of the user's own runs. A
    /// scoped token sees those of runs within its scope.
    pub async fn approvals(&self, limit: usize) -> Result<Vec<Approval>, Error> {
        let visible = self.readable_with(&[Right::Approve, Right::View]);
        self.engine.visible_approvals(visible, limit).await
    }

    /// The time of the engine's clock.
    pub fn now(&self) -> steprail_core::run::Millis {
        self.engine.now()
    }

    /// Whether the user may decide at an open gate.
    pub async fn may_decide(&self, run: RunId, path: &str) -> bool {
        self.require_may_decide(run, path).await.is_ok()
    }

    /// Returns an error if the user may not decide at an open gate.
    pub(crate) async fn require_may_decide(&self, run: RunId, path: &str) -> Result<(), Error> {
        self.require_in_scope(run).await?;
        self.engine.may_decide(run, path, &self.principal).await
    }

    /// A scoped token decides only about runs within its scope. Other rights are checked with the decision.
    async fn require_in_scope(&self, run: RunId) -> Result<(), Error> {
        if self.principal.scope.is_none() {
            return Ok(());
        }
        let row = self.engine.row(run).await?;
        let visible = self.readable_with(&[Right::Approve, Right::View]);
        if visible.includes_run(&row) { Ok(()) } else { Err(no_run(run)) }
    }

    /// Decides at a gate. `digest` binds the decision to the approval that the user saw.
    pub async fn decide(
        &self,
        run: RunId,
        path: &str,
        approved: bool,
        reason: Option<String>,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        let decision = DecisionRequest { approved, reason, digest, ..DecisionRequest::default() };
        self.decide_with(run, path, decision).await
    }

    /// Decides at a gate, with an answer or with edited arguments.
    pub async fn decide_with(&self, run: RunId, path: &str, decision: DecisionRequest) -> Result<(), Error> {
        self.require_in_scope(run).await?;
        self.engine.decide(run, path, &self.principal, decision).await
    }

    /// Answers an input request of a tool. See [`Engine::answer`].
    pub async fn answer(
        &self,
        run: RunId,
        path: &str,
        answer: Value,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.require_in_scope(run).await?;
        self.engine.answer(run, path, &self.principal, answer, digest).await
    }

    /// Resolves a call with an unknown outcome. `digest` binds the resolution to an attempt.
    pub async fn resolve(
        &self,
        run: RunId,
        path: &str,
        resolution: Resolution,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.require_in_scope(run).await?;
        self.engine.resolve(run, path, resolution, digest, &self.principal).await
    }

    /// Changes a run in progress.
    pub(crate) async fn control(&self, run: RunId, intervention: Intervention) -> Result<(), Error> {
        self.require_control(run).await?;
        self.engine.intervene(run, intervention, &self.principal).await
    }

    /// Cancels a run and its children.
    pub async fn cancel(&self, run: RunId, reason: &str) -> Result<(), Error> {
        self.require_control(run).await?;
        self.engine.cancel(run, &self.principal, reason).await
    }

    /// Pauses a run: calls in flight continue, and no further step starts.
    pub async fn pause(&self, run: RunId) -> Result<(), Error> {
        self.require_control(run).await?;
        self.engine.pause(run, &self.principal).await
    }

    /// Resumes a run that is paused or interrupted.
    pub async fn resume(&self, run: RunId, resume: Resume) -> Result<(), Error> {
        self.require_control(run).await?;
        // Repeating a call with an unknown outcome is a decision.
        if !resume.force_steps.is_empty() {
            self.require(Right::Approve)?;
            self.require_presence()?;
        }
        self.engine.resume(run, &self.principal, resume).await
    }

    /// Sends a signal to a run, or to all runs that wait for it. Returns the number of runs that received it.
    pub async fn signal(&self, event: &str, payload: Value, run: Option<RunId>) -> Result<usize, Error> {
        match run {
            Some(run) => self.require_control(run).await?,
            None if self.principal.scope.is_some() => {
                let message = "a scoped token cannot signal all runs; name the run";
                return Err(Error::Denied(message.to_owned()));
            }
            None => self.require(Right::Administer)?,
        }
        self.engine.signal(event, payload, run).await
    }

    /// Changing a run needs the right `workflow`, or `administer` if it is the run of another user.
    async fn require_control(&self, run: RunId) -> Result<(), Error> {
        let is_own = self.row(run).await?.created_by == self.principal.id;
        self.require(if is_own { Right::Workflow } else { Right::Administer })
    }
}
