//! What somebody may do with an engine. Every surface acts through this: it knows who asks.

use std::time::Duration;

use serde_json::Value;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::load;
use steprail_core::plan::Hash;
use steprail_core::run::{Intervention, Resolution, RunStatus};
use steprail_core::source::Source;
use steprail_store::{
    Approval, Definition, EventPage, ListRuns, Principal, RawEvent, Relay, Right, RunId, RunRow, Schedule,
    StoredEvent,
};

use crate::engine::{Engine, Resume, RunHandle, RunView};
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::{Defined, no_run};
use crate::start::{Start, Workflow};
use crate::trace::TraceParent;

/// Somebody with an engine. A run that they may not see is one that is not there.
#[derive(Debug, Clone)]
pub struct User {
    engine: Engine,
    principal: Principal,
}

impl Engine {
    /// The engine as somebody sees it.
    pub fn as_user(&self, principal: Principal) -> User {
        User { engine: self.clone(), principal }
    }
}

impl User {
    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether they have a right.
    pub fn may(&self, right: Right) -> bool {
        self.engine.authorize(&self.principal, right).is_ok()
    }

    /// An error that says why, if they do not have a right.
    pub fn need(&self, right: Right) -> Result<(), Error> {
        self.engine.authorize(&self.principal, right)
    }

    /// Stores a definition; `publish` goes before what it says itself.
    pub async fn define(
        &self,
        text: &str,
        publish: Option<bool>,
    ) -> Result<(Defined, Vec<Diagnostic>), Error> {
        self.need(Right::Workflow)?;
        self.need_definition(text).await?;
        match publish {
            Some(publish) => self.engine.define_published(text, publish, &self.principal).await,
            None => self.engine.define(text, &self.principal).await,
        }
    }

    /// A name belongs to whoever used it first: others run what is under it.
    async fn need_definition(&self, text: &str) -> Result<(), Error> {
        let Some(plan) = load(&Source::new("definition", text)).plan else { return Ok(()) };
        match self.engine.definition(&plan.name, None).await {
            // What others start under the name would run with more than this token is for.
            Ok(_) if self.principal.scope.is_some() => {
                let message = format!(
                    "a token that is held to less cannot change `{}`; give it another name",
                    plan.name
                );
                Err(Error::Denied(message))
            }
            Ok(known) if known.created_by != self.principal.id => self.need(Right::Administer),
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether they may call a tool now.
    pub async fn may_call(&self, tool: &str) -> bool {
        self.engine.may_call(&self.principal, tool).await
    }

    /// The same user as a person, not through an agent: what they say themselves.
    #[must_use]
    pub fn in_person(&self) -> Self {
        let principal = Principal { agent: self.principal.agent_only, ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// The newest version of every definition.
    pub async fn definitions(&self) -> Result<Vec<Definition>, Error> {
        self.need_sight()?;
        self.engine.definitions().await
    }

    /// A version of a definition; the newest without one.
    pub async fn definition(&self, name: &str, version: Option<u32>) -> Result<Definition, Error> {
        self.need_sight()?;
        self.engine.definition(name, version).await
    }

    /// The versions of a definition, newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<Definition>, Error> {
        self.need_sight()?;
        self.engine.versions(name).await
    }

    /// Hides a definition from new runs.
    pub async fn delete_definition(&self, name: &str) -> Result<(), Error> {
        self.need(Right::Workflow)?;
        if self.engine.definition(name, None).await?.created_by != self.principal.id {
            self.need(Right::Administer)?;
        }
        self.engine.delete_definition(name).await
    }

    /// To see what can be run takes the right to run it, or to see what others run.
    fn need_sight(&self) -> Result<(), Error> {
        self.need(Right::Workflow).or_else(|error| self.need(Right::View).map_err(|_| error))
    }

    /// Schedules, by name: everybody's, or their own.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        let mut schedules = self.engine.schedules().await?;
        if !self.may(Right::View) {
            schedules.retain(|schedule| schedule.principal.id == self.principal.id);
        }
        Ok(schedules)
    }

    /// Stores a schedule, whose runs act as whoever stores it, and gives it with when it is first due.
    pub async fn schedule(&self, mut schedule: Schedule) -> Result<Schedule, Error> {
        self.need(Right::Workflow)?;
        self.need_schedule(&schedule.name).await?;
        schedule.principal = self.principal.clone();
        schedule.due = self.engine.schedule(schedule.clone()).await?;
        Ok(schedule)
    }

    /// Takes a schedule away.
    pub async fn unschedule(&self, name: &str) -> Result<(), Error> {
        self.need(Right::Workflow)?;
        self.need_schedule(name).await?;
        self.engine.unschedule(name).await
    }

    /// A schedule belongs to whoever made it.
    async fn need_schedule(&self, name: &str) -> Result<(), Error> {
        let known = self.engine.schedules().await?;
        match known.iter().find(|schedule| schedule.name == name) {
            Some(known) if known.principal.id != self.principal.id => self.need(Right::Administer),
            _ => Ok(()),
        }
    }

    /// Events after a cursor of the runs that they may see, with whose run it is.
    pub async fn feed(&self, after: i64, limit: usize) -> Result<EventPage<(RawEvent, String)>, Error> {
        let user = (!self.may(Right::View)).then(|| self.principal.id.clone());
        self.engine.feed(after, limit, user).await
    }

    /// The same user, through a client or a tool that is named.
    #[must_use]
    pub fn via(&self, what: impl Into<String>) -> Self {
        Self { engine: self.engine.clone(), principal: self.principal.clone().via(what) }
    }

    /// The same user, whose call of a tool is a relayed MCP request.
    #[must_use]
    pub fn relaying(&self, relay: Relay) -> Self {
        let principal = Principal { relay: Some(Box::new(relay)), ..self.principal.clone() };
        Self { engine: self.engine.clone(), principal }
    }

    /// The same user, in a trace: what they start becomes part of it. A `traceparent` that is none is left out.
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
        self.need(Right::Workflow)?;
        let start = Start::of(workflow, self.principal.clone()).inputs(inputs);
        self.engine.start(request_key.into_iter().fold(start, Start::request_key)).await
    }

    /// Calls a tool. The call is a run of one step: it is authorised, checked, bounded and recorded as a step is.
    pub async fn call_tool(&self, tool: &str, args: &Value) -> Result<RunHandle, Error> {
        self.engine.start(Start::call(tool, args, self.principal.clone())).await
    }

    /// Runs once more what an ended run ran.
    pub async fn rerun(&self, run: RunId, reuse_except: Option<Vec<String>>) -> Result<RunHandle, Error> {
        self.need(Right::Workflow)?;
        self.row(run).await?;
        self.engine.rerun(run, reuse_except, self.principal.clone()).await
    }

    /// A run without its steps.
    pub async fn row(&self, run: RunId) -> Result<RunRow, Error> {
        let row = self.engine.row(run).await?;
        self.sees(&row)?;
        Ok(row)
    }

    /// A run with its steps and open questions.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.engine.status(run).await?;
        self.sees(&view.run)?;
        Ok(view)
    }

    /// A run that they may not see is one that is not there.
    fn sees(&self, row: &RunRow) -> Result<(), Error> {
        let sees = row.created_by == self.principal.id || self.may(Right::View);
        if sees { Ok(()) } else { Err(no_run(row.run_id)) }
    }

    /// Waits until a run has ended, or waits for somebody; with `since`, until it has an event after that number. Not longer
    /// than `patience`.
    pub async fn wait(&self, run: RunId, since: Option<u64>, patience: Duration) -> Result<RunRow, Error> {
        let row = self.row(run).await?;
        let deadline = tokio::time::Instant::now() + patience;
        let mut feed = self.engine.subscribe(Some(run), i64::try_from(row.seq).unwrap_or(i64::MAX));
        let mut row = row;
        loop {
            let rests = !matches!(row.status, RunStatus::Pending | RunStatus::Running);
            if row.status.is_terminal() || since.map_or(rests, |since| row.seq > since) {
                return Ok(row);
            }
            match tokio::time::timeout_at(deadline, feed.next()).await {
                Ok(event) => drop(event?.ok_or(Error::Stopped)?),
                Err(_) => return Ok(row),
            }
            row = self.engine.row(run).await?;
        }
    }

    /// Runs, newest first: those of everybody, or their own.
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

    /// Events of a run after a number.
    pub async fn events(
        &self,
        run: RunId,
        after: u64,
        limit: usize,
    ) -> Result<EventPage<StoredEvent>, Error> {
        self.row(run).await?;
        self.engine.events(run, after, limit).await
    }

    /// Events of a run as they are committed.
    pub async fn follow(&self, run: RunId, after: u64) -> Result<Subscription, Error> {
        self.row(run).await?;
        Ok(self.engine.subscribe(Some(run), i64::try_from(after).unwrap_or(i64::MAX)))
    }

    /// Open questions of a run, and of the runs that it waits for.
    pub async fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, Error> {
        self.row(run).await?;
        self.engine.run_approvals(run).await
    }

    /// Open questions, oldest first: everybody's for those who decide or may see them, else those of their own runs.
    pub async fn approvals(&self, limit: usize) -> Result<Vec<Approval>, Error> {
        let all = self.may(Right::Approve) || self.may(Right::View);
        self.engine.approvals_of((!all).then(|| self.principal.id.clone()), limit).await
    }

    /// Whether they may decide at an open gate.
    pub async fn may_decide(&self, run: RunId, path: &str) -> bool {
        self.engine.may_decide(run, path, &self.principal).await.is_ok()
    }

    /// Decides at a gate. `digest` binds the answer to what was shown.
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

    /// Says what a tool wanted to know.
    pub async fn answer(
        &self,
        run: RunId,
        path: &str,
        answer: Value,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.engine.answer(run, path, &self.principal, answer, digest).await
    }

    /// Says what became of a call whose outcome is unknown.
    pub async fn resolve(
        &self,
        run: RunId,
        path: &str,
        resolution: Resolution,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.engine.resolve(run, path, resolution, digest, &self.principal).await
    }

    /// Changes a run that is under way.
    pub(crate) async fn control(&self, run: RunId, intervention: Intervention) -> Result<(), Error> {
        self.need_control(run).await?;
        self.engine.intervene(run, intervention, &self.principal).await
    }

    /// Stops a run and everything in it.
    pub async fn cancel(&self, run: RunId, reason: &str) -> Result<(), Error> {
        self.need_control(run).await?;
        self.engine.cancel(run, &self.principal, reason).await
    }

    /// Holds back every step of a run that would begin.
    pub async fn pause(&self, run: RunId) -> Result<(), Error> {
        self.need_control(run).await?;
        self.engine.pause(run, &self.principal).await
    }

    /// Lets a run go on that was paused or interrupted.
    pub async fn resume(&self, run: RunId, resume: Resume) -> Result<(), Error> {
        self.need_control(run).await?;
        // To call again what may have happened is to decide.
        if !resume.force_steps.is_empty() {
            self.need(Right::Approve)?;
        }
        self.engine.resume(run, &self.principal, resume).await
    }

    /// Brings an event to a run, or to every run that waits for it.
    pub async fn signal(&self, event: &str, payload: Value, run: Option<RunId>) -> Result<usize, Error> {
        match run {
            Some(run) => self.need_control(run).await?,
            None => self.need(Right::Administer)?,
        }
        self.engine.signal(event, payload, run).await
    }

    /// For their own run, the right to run workflows; the right to change those of others for others.
    async fn need_control(&self, run: RunId) -> Result<(), Error> {
        let is_own = self.row(run).await?.created_by == self.principal.id;
        self.need(if is_own { Right::Workflow } else { Right::Administer })
    }
}
