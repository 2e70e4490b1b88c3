//! The handle to an engine with the rights of a user. Every surface acts through it.

use std::time::Duration;

use serde_json::Value;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::plan::Hash;
use steprail_core::run::{Intervention, Resolution, RunStatus};
use steprail_store::{
    After, Approval, Cursor, Definition, EventPage, Expected, ListRuns, Principal, RawEvent, Relay, Right,
    RunId, RunRow, Schedule, StoredAdminEvent, StoredEvent,
};

use crate::definitions::DefineOptions;
use crate::engine::Engine;
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::{DefinitionVersion, no_run};
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
        let (expected, owner) = self.definition_preconditions(expected);
        let options = DefineOptions { publish, expected, owner };
        self.engine.define_with(text, &self.principal, &options).await.map_err(|error| match error {
            // Runs that others start from it would not have the scope of this token.
            Error::VersionConflict(_) if self.principal.scope.is_some() => Error::Denied(
                "a scoped token cannot change a definition; use another name, or a token without a scope"
                    .to_owned(),
            ),
            error => error,
        })
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

    /// The same user in person, not through an agent.
    #[must_use]
    pub fn in_person(&self) -> Self {
        let principal = Principal { agent: self.principal.agent_only, ..self.principal.clone() };
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
        let owner = (!self.may(Right::Administer)).then(|| self.principal.id.clone());
        self.engine.delete_definition_with(name, expected, owner, Some(&self.principal)).await
    }

    /// Reading definitions needs the right `workflow` or the right `view`.
    fn require_read(&self) -> Result<(), Error> {
        self.require(Right::Workflow).or_else(|error| self.require(Right::View).map_err(|_| error))
    }

    /// Returns schedules, by name: all with the right `view`, else those of the user.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        let mut schedules = self.engine.schedules().await?;
        if !self.may(Right::View) {
            schedules.retain(|schedule| schedule.principal.id == self.principal.id);
        }
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
        schedule.due = self.engine.schedule(schedule.clone()).await?;
        Ok(schedule)
    }

    /// Deletes a schedule. Runs that it started continue.
    pub async fn unschedule(&self, name: &str) -> Result<(), Error> {
        self.require(Right::Workflow)?;
        self.require_schedule_owner(&self.engine.schedules().await?, name)?;
        self.engine.unschedule_by(name, &self.principal).await
    }

    /// Changing a schedule of another user needs the right `administer`.
    fn require_schedule_owner(&self, schedules: &[Schedule], name: &str) -> Result<(), Error> {
        match schedules.iter().find(|schedule| schedule.name == name) {
            Some(known) if known.principal.id != self.principal.id => self.require(Right::Administer),
            _ => Ok(()),
        }
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

    /// Returns the events after a cursor of the runs that the user may see, each with the id of the user who started the run.
    pub async fn feed(&self, after: Cursor, limit: usize) -> Result<EventPage<(RawEvent, String)>, Error> {
        let user = (!self.may(Right::View)).then(|| self.principal.id.clone());
        self.engine.feed(after, limit, user).await
    }

    /// The same user through a client or tool with this name.
    #[must_use]
    pub fn via(&self, name: impl Into<String>) -> Self {
        Self { engine: self.engine.clone(), principal: self.principal.clone().via(name) }
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

    /// Returns a run with its steps and open approvals.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.engine.status(run).await?;
        self.require_visible(&view.run)?;
        Ok(view)
    }

    fn require_visible(&self, row: &RunRow) -> Result<(), Error> {
        let is_visible = row.created_by == self.principal.id || self.may(Right::View);
        if is_visible { Ok(()) } else { Err(no_run(row.run_id)) }
    }

    /// Waits until a run has ended or waits itself; with `since`, until it has an event with a higher sequence number. Returns
    /// the run as it is after `timeout` at the latest.
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

    /// Returns runs, newest first: of all users with the right `view`, else those of the user.
    pub async fn list(&self, mut list: ListRuns) -> Result<Vec<RunRow>, Error> {
        if !self.may(Right::View) {
            let own = self.principal.id.clone();
            if list.created_by.as_ref().is_some_and(|user| *user != own) {
                return Ok(Vec::new());
            }
            list.created_by = Some(own);
        }
        self.engine.list(list).await
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

    /// Returns open approvals, oldest first: of all runs with the right `approve` or `view`, else of the user's own runs.
    pub async fn approvals(&self, limit: usize) -> Result<Vec<Approval>, Error> {
        let all = self.may(Right::Approve) || self.may(Right::View);
        self.engine.approvals_of((!all).then(|| self.principal.id.clone()), limit).await
    }

    /// Whether the user may decide at an open gate.
    pub async fn may_decide(&self, run: RunId, path: &str) -> bool {
        self.engine.may_decide(run, path, &self.principal).await.is_ok()
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
        if approved {
            self.engine.approve(run, path, &self.principal, reason, digest).await
        } else {
            self.engine.deny(run, path, &self.principal, reason, digest).await
        }
    }

    /// Answers an input request of a tool. See [`Engine::answer`].
    pub async fn answer(
        &self,
        run: RunId,
        path: &str,
        answer: Value,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
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
        }
        self.engine.resume(run, &self.principal, resume).await
    }

    /// Sends an event to a run, or to all runs that wait for it. Returns the number of runs that received it.
    pub async fn signal(&self, event: &str, payload: Value, run: Option<RunId>) -> Result<usize, Error> {
        match run {
            Some(run) => self.require_control(run).await?,
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
