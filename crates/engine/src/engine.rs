//! The handle to an engine: what can be done with it, in the words of every surface.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use serde::Serialize;
use serde_json::Value;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::plan::Hash;
use steprail_core::run::{Intervention, Millis, Resolution, RunStatus};
use steprail_store::{
    Account, AccountKind, Approval, Definition, EventPage, ListRuns, Principal, RawEvent, Reads, Right,
    RunId, RunRow, Schedule, Session, StepRow, StoreError, StoredEvent, UnknownCall,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::builder::Builder;
use crate::calls;
use crate::clock::Clock;
use crate::driver::Message;
use crate::error::Error;
use crate::feed::Subscription;
use crate::form;
use crate::kernel::{Action, Answer, Defined, Reply, Request, StartOf, StartRun, no_run};
use crate::ports::Authorizer;
use crate::reading::Reading;
use crate::start::{Start, UNNAMED, Workflow, check, check_with};

/// An engine. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    messages: Sender<Message>,
    reading: Reading,
    last_event: watch::Receiver<i64>,
    fault: watch::Receiver<Option<StoreError>>,
    clock: Arc<dyn Clock>,
    authorizer: Arc<dyn Authorizer>,
    room: Semaphore,
    /// Counts changes of definitions.
    definitions: watch::Sender<u64>,
}

impl Drop for Inner {
    /// Nobody can reach the engine any more: it stops as if it were shut down.
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop(Reply::channel().0));
    }
}

/// How to resume a run.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    /// Calls with unknown outcomes that are made again without asking, by path.
    pub force_steps: Vec<String>,
    /// Refuse if the run's definition has another hash.
    pub expected_hash: Option<Hash>,
    /// Refuse if the outcome of a call is unknown and it is not forced.
    pub strict: bool,
}

/// A run with everything about it.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    /// The run.
    #[serde(flatten)]
    pub run: RunRow,
    /// Every attempt of every step.
    pub steps: Vec<StepRow>,
    /// Open questions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Calls of it and of the runs that it waits for whose outcome is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<UnknownCall>,
}

impl Engine {
    /// Puts an engine together.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(
        messages: Sender<Message>,
        reading: Reading,
        last_event: watch::Receiver<i64>,
        fault: watch::Receiver<Option<StoreError>>,
        clock: Arc<dyn Clock>,
        authorizer: Arc<dyn Authorizer>,
        room: usize,
    ) -> Self {
        let room = Semaphore::new(room.clamp(1, Semaphore::MAX_PERMITS));
        let definitions = watch::Sender::new(0);
        Self(Arc::new(Inner { messages, reading, last_event, fault, clock, authorizer, room, definitions }))
    }

    async fn request(&self, action: Action) -> Result<Answer, Error> {
        let waits_long = matches!(action, Action::Wait(_));
        let room = self.0.room.acquire().await.map_err(|_| Error::Stopped)?;
        let (reply, answer) = Reply::channel();
        let request = Request { action, reply: Some(reply) };
        self.0.messages.send(Message::Request(request)).map_err(|_| Error::Stopped)?;
        // Somebody who waits for a run to end takes no room from those who want something done.
        let _room = (!waits_long).then_some(room);
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Whether a user has a right.
    pub(crate) fn authorize(&self, principal: &Principal, right: Right) -> Result<(), Error> {
        if principal.agent && right == Right::Approve {
            return Err(Error::Denied("an agent cannot decide at a gate; ask a human".to_owned()));
        }
        if principal.scope.as_ref().is_some_and(|scope| !scope.has(right)) {
            return Err(Error::Denied(format!(
                "the token of {} is not for this: it may not {}",
                principal.id,
                right.purpose()
            )));
        }
        self.0.authorizer.may(principal, right).map_err(Error::Denied)
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Reads) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        self.0.reading.read(ask).await
    }

    /// Stores a definition, given as YAML or JSON. Gives its version, and warnings.
    pub async fn define(&self, text: &str, by: &Principal) -> Result<(Defined, Vec<Diagnostic>), Error> {
        let (spec, warnings) = check(UNNAMED, text)?;
        self.define_spec(spec, by, warnings).await
    }

    /// Stores a definition, and offers it to agents as a tool or does not, whatever it says itself.
    pub async fn define_published(
        &self,
        text: &str,
        publish: bool,
        by: &Principal,
    ) -> Result<(Defined, Vec<Diagnostic>), Error> {
        let (spec, warnings) = check_with(UNNAMED, text, |spec| spec.publish(publish))?;
        self.define_spec(spec, by, warnings).await
    }

    async fn define_spec(
        &self,
        spec: Arc<str>,
        by: &Principal,
        warnings: Vec<Diagnostic>,
    ) -> Result<(Defined, Vec<Diagnostic>), Error> {
        let source = UNNAMED.into();
        match self.request(Action::Define { spec, source, by: by.id.clone() }).await? {
            Answer::Defined(defined) => {
                self.0.definitions.send_modify(|changes| *changes += 1);
                Ok((defined, warnings))
            }
            _ => Err(Error::Stopped),
        }
    }

    /// Hides a definition from new runs. Runs that are under way go on.
    pub async fn delete_definition(&self, name: &str) -> Result<(), Error> {
        self.request(Action::DeleteDefinition { name: name.to_owned() }).await?;
        self.0.definitions.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Told when definitions change; counts the changes.
    pub fn definition_changes(&self) -> watch::Receiver<u64> {
        self.0.definitions.subscribe()
    }

    /// Starts a run. It is durable when this returns.
    pub async fn start(&self, start: Start) -> Result<RunHandle, Error> {
        let workflow = match start.workflow {
            Workflow::Named(name, version) => StartOf::Named { name, version },
            Workflow::Inline { text, source } => {
                StartOf::Inline { spec: check(&source, &text)?.0, source: source.into() }
            }
        };
        self.start_run(workflow, start.inputs, start.principal, start.request_key).await
    }

    /// Runs once more what an ended run ran, with the same inputs. With `reuse_except`, what its calls gave is
    /// taken over where path and arguments are the same, except for the paths that are named.
    pub async fn rerun(
        &self,
        run: RunId,
        reuse_except: Option<Vec<String>>,
        principal: Principal,
    ) -> Result<RunHandle, Error> {
        self.start_run(StartOf::Rerun { of: run, reuse_except }, Value::Null, principal, None).await
    }

    async fn start_run(
        &self,
        workflow: StartOf,
        inputs: Value,
        mut principal: Principal,
        request_key: Option<String>,
    ) -> Result<RunHandle, Error> {
        principal.tools = self.0.authorizer.tools(&principal);
        let id = RunId(uuid::Uuid::now_v7());
        let start = Box::new(StartRun { workflow, inputs, principal, request_key, id });
        match self.request(Action::Start(start)).await? {
            Answer::Started(id) => Ok(self.handle(id)),
            _ => Err(Error::Stopped),
        }
    }

    /// A handle to a run.
    pub fn handle(&self, run: RunId) -> RunHandle {
        RunHandle { id: run, engine: self.clone() }
    }

    /// A run with its steps and open questions.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.read(move |readers| {
            let Some(row) = readers.run(run)? else { return Ok(None) };
            let approvals = readers.run_approvals(run)?;
            let unknown_calls = readers.unknown_calls(run)?;
            Ok(Some(RunView { run: row, steps: readers.steps(run)?, approvals, unknown_calls }))
        });
        view.await?.ok_or_else(|| no_run(run))
    }

    /// A run without its steps.
    pub async fn row(&self, run: RunId) -> Result<RunRow, Error> {
        self.read(move |readers| readers.run(run)).await?.ok_or_else(|| no_run(run))
    }

    /// The newest version of every definition, by name.
    pub async fn definitions(&self) -> Result<Vec<Definition>, Error> {
        self.read(|readers| readers.definitions()).await
    }

    /// The newest version of every definition that is offered as a tool, by name.
    pub async fn published(&self) -> Result<Vec<Definition>, Error> {
        self.read(|readers| readers.published()).await
    }

    /// A version of a definition; the newest without one.
    pub async fn definition(&self, name: &str, version: Option<u32>) -> Result<Definition, Error> {
        let wanted = name.to_owned();
        let found = self.read(move |readers| readers.definition(&wanted, version)).await?;
        found.ok_or_else(|| Error::NotFound(format!("there is no definition `{name}`")))
    }

    /// The versions of a definition that can be started, newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<Definition>, Error> {
        let wanted = name.to_owned();
        let found = self.read(move |readers| readers.versions(&wanted)).await?;
        if found.is_empty() {
            return Err(Error::NotFound(format!("there is no definition `{name}`")));
        }
        Ok(found)
    }

    /// Runs, newest first.
    pub async fn list(&self, list: ListRuns) -> Result<Vec<RunRow>, Error> {
        self.read(move |readers| readers.runs(&list)).await
    }

    /// Events of a run after a number.
    pub async fn events(
        &self,
        run: RunId,
        after: u64,
        limit: usize,
    ) -> Result<EventPage<StoredEvent>, Error> {
        self.read(move |readers| readers.events(run, after, limit)).await
    }

    /// Events of all runs after a cursor, with the user whose run it is; of the runs of one user or of all.
    pub async fn feed(
        &self,
        after: i64,
        limit: usize,
        user: Option<String>,
    ) -> Result<EventPage<(RawEvent, String)>, Error> {
        self.read(move |readers| readers.feed(after, limit, user.as_deref())).await
    }

    /// Events as they are committed, of one run or of all, after a cursor.
    pub fn subscribe(&self, run: Option<RunId>, cursor: i64) -> Subscription {
        Subscription::new(self.0.reading.clone(), self.0.last_event.clone(), run, cursor)
    }

    /// Told when events are committed: the number of the last one.
    pub fn news(&self) -> watch::Receiver<i64> {
        self.0.last_event.clone()
    }

    /// The cursor after the last event of all runs: a subscription with it sees what is still to come.
    pub fn cursor(&self) -> i64 {
        *self.0.last_event.borrow()
    }

    /// Open questions, oldest first.
    pub async fn approvals(&self, limit: usize) -> Result<Vec<Approval>, Error> {
        self.approvals_of(None, limit).await
    }

    /// Open questions of the runs of one user, or of all.
    pub(crate) async fn approvals_of(
        &self,
        user: Option<String>,
        limit: usize,
    ) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.open_approvals(user.as_deref(), limit)).await
    }

    /// Open questions of a run, and of the runs that it waits for.
    pub async fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.run_approvals(run)).await
    }

    pub(crate) async fn may_call(&self, principal: &Principal, tool: &str) -> bool {
        calls::may_call(principal, tool).is_ok() && self.0.authorizer.may_call(principal, tool).await.is_ok()
    }

    /// Says yes at a gate. `digest` binds the answer to what was shown.
    pub async fn approve(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        reason: Option<String>,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.decide(run, path, true, by, reason, digest, None).await
    }

    /// Says what a tool wanted to know. Fields that are left out have the defaults of the tool's form, unless the client of a
    /// relayed call answers: its answer is passed on as it is.
    pub async fn answer(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        answer: Value,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        let answer = if by.relay.is_some() { answer } else { self.filled_in(run, path, answer).await? };
        self.decide(run, path, true, by, None, digest, Some(answer)).await
    }

    async fn filled_in(&self, run: RunId, path: &str, answer: Value) -> Result<Value, Error> {
        let questions = self.read(move |readers| readers.run_approvals(run)).await?;
        let question = questions.into_iter().find(|question| question.run_id == run && question.path == path);
        let form = question.and_then(|question| serde_json::from_str::<Value>(question.form?.get()).ok());
        Ok(form.map_or_else(|| answer.clone(), |form| form::with_defaults(&form, answer.clone())))
    }

    /// Says no at a gate.
    pub async fn deny(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        reason: Option<String>,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        self.decide(run, path, false, by, reason, digest, None).await
    }

    #[expect(clippy::too_many_arguments, reason = "named by the three that call it")]
    async fn decide(
        &self,
        run: RunId,
        path: &str,
        approved: bool,
        by: &Principal,
        reason: Option<String>,
        digest: Option<Hash>,
        answer: Option<Value>,
    ) -> Result<(), Error> {
        self.authorize_decision(by)?;
        let (path, by) = (path.to_owned(), by.clone());
        self.request(Action::Decide { run, path, approved, by, reason, digest, answer }).await.map(drop)
    }

    /// Deciding needs a right. The client of a relayed call needs none to answer its tool, and may do nothing else: the
    /// kernel checks that.
    fn authorize_decision(&self, by: &Principal) -> Result<(), Error> {
        if by.relay.is_some() { Ok(()) } else { self.authorize(by, Right::Approve) }
    }

    /// Whether somebody may decide at an open gate; the error says why not.
    pub async fn may_decide(&self, run: RunId, path: &str, by: &Principal) -> Result<(), Error> {
        self.authorize_decision(by)?;
        let (path, by) = (path.to_owned(), by.clone());
        self.request(Action::MayDecide { run, path, by }).await.map(drop)
    }

    /// Stops a run and everything in it.
    pub async fn cancel(&self, run: RunId, by: &Principal, reason: &str) -> Result<(), Error> {
        let (by, reason) = (by.id.clone(), reason.to_owned());
        self.request(Action::Cancel { run, by, reason }).await.map(drop)
    }

    /// Holds back every step of a run that would begin.
    pub async fn pause(&self, run: RunId, by: &Principal) -> Result<(), Error> {
        self.request(Action::Pause { run, by: by.id.clone() }).await.map(drop)
    }

    /// Lets a run go on that was paused or interrupted.
    pub async fn resume(&self, run: RunId, by: &Principal, resume: Resume) -> Result<(), Error> {
        let Resume { force_steps: force, expected_hash, strict } = resume;
        let by = by.id.clone();
        self.request(Action::Resume { run, by, force, expected_hash, strict }).await.map(drop)
    }

    /// Waits until every run that was under way when the last engine ended has been picked up.
    pub async fn ready(&self) -> Result<(), Error> {
        self.request(Action::Sync).await.map(drop)
    }

    /// Lets every interrupted run go on; says how many.
    pub async fn resume_interrupted(&self, by: &Principal) -> Result<usize, Error> {
        self.ready().await?;
        let mut resumed = 0;
        let mut before = None;
        loop {
            let status = Some(RunStatus::Interrupted);
            let page = self.list(ListRuns { status, before, limit: 100, ..ListRuns::default() }).await?;
            let Some(last) = page.last() else { return Ok(resumed) };
            before = Some(last.key);
            for row in page {
                match self.resume(row.run_id, by, Resume::default()).await {
                    Ok(()) => resumed += 1,
                    // It has gone on by itself, or cannot; the others can.
                    Err(Error::Conflict(_) | Error::Storage(StoreError::Corrupt(_))) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Says what became of a call whose outcome is unknown. With the digest of an attempt, it is refused for any other.
    pub async fn resolve(
        &self,
        run: RunId,
        path: &str,
        resolution: Resolution,
        digest: Option<Hash>,
        by: &Principal,
    ) -> Result<(), Error> {
        self.authorize(by, Right::Approve)?;
        let (path, by) = (path.to_owned(), by.clone());
        self.request(Action::Resolve { run, path, resolution, digest, by }).await.map(drop)
    }

    /// Changes a run that is under way.
    pub async fn intervene(
        &self,
        run: RunId,
        intervention: Intervention,
        by: &Principal,
    ) -> Result<(), Error> {
        self.authorize(by, Right::Approve)?;
        self.request(Action::Intervene { run, intervention, by: by.clone() }).await.map(drop)
    }

    /// Brings an event to a run, which keeps it until a step waits for it; or, without a run, to those that
    /// wait for it now. Says how many it reached.
    pub async fn signal(&self, event: &str, payload: Value, run: Option<RunId>) -> Result<usize, Error> {
        match self.request(Action::Signal { event: event.to_owned(), payload, run }).await? {
            Answer::Count(count) => Ok(count),
            _ => Ok(1),
        }
    }

    /// Deletes runs that ended longer ago, in small batches; says how many.
    pub async fn purge(&self, keep: std::time::Duration) -> Result<usize, Error> {
        let keep = Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX);
        let before = self.0.clock.now().saturating_sub(keep);
        let mut purged = 0;
        loop {
            match self.request(Action::Purge { before }).await? {
                Answer::Purged(some) if !some.is_nothing() => purged += some.runs,
                _ => return Ok(purged),
            }
        }
    }

    /// Stores a schedule, in place of the one with its name, and says when it is first due.
    pub async fn schedule(&self, mut schedule: Schedule) -> Result<Option<Millis>, Error> {
        schedule.principal.tools = self.0.authorizer.tools(&schedule.principal);
        match self.request(Action::Schedule(Box::new(schedule))).await? {
            Answer::Due(due) => Ok(due),
            _ => Err(Error::Stopped),
        }
    }

    /// Takes a schedule away. Runs that it started go on.
    pub async fn unschedule(&self, name: &str) -> Result<(), Error> {
        self.request(Action::Unschedule { name: name.to_owned() }).await.map(drop)
    }

    /// Every schedule, by name, with what became of its last time.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        self.read(|readers| readers.schedules()).await
    }

    /// Keeps the session of a client, so that it outlives this process.
    pub async fn keep_session(&self, session: Session) -> Result<(), Error> {
        self.request(Action::PutSession(Box::new(session))).await.map(drop)
    }

    /// Forgets a session.
    pub async fn drop_session(&self, id: &str) -> Result<(), Error> {
        self.request(Action::DropSession { id: id.to_owned() }).await.map(drop)
    }

    /// The session of a client.
    pub async fn session(&self, id: &str) -> Result<Option<Session>, Error> {
        let id = id.to_owned();
        self.read(move |readers| readers.session(&id)).await
    }

    /// Stores an account in place of the one before.
    pub async fn put_account(&self, account: Account) -> Result<(), Error> {
        self.request(Action::PutAccount(Box::new(account))).await.map(drop)
    }

    /// Takes an account away.
    pub async fn drop_account(&self, kind: AccountKind, id: &str) -> Result<(), Error> {
        self.request(Action::DropAccount { kind, id: id.to_owned() }).await.map(drop)
    }

    /// The time, as the engine counts it.
    pub fn now(&self) -> Millis {
        self.0.clock.now()
    }

    /// Whether a run can go on: an error if what is stored of it is damaged.
    pub async fn check(&self, run: RunId) -> Result<(), Error> {
        self.request(Action::Check(run)).await.map(drop)
    }

    /// What is wrong with the store at the moment, if anything is.
    pub fn fault(&self) -> Option<StoreError> {
        self.0.fault.borrow().clone()
    }

    /// Told when something is wrong with the store, and when it is right again.
    pub fn faults(&self) -> watch::Receiver<Option<StoreError>> {
        self.0.fault.clone()
    }

    /// Stops starting calls, waits for those in flight up to a limit, and ends. Says how many were left.
    pub async fn shutdown(&self) -> Result<usize, Error> {
        let (reply, answer) = Reply::channel();
        self.0.messages.send(Message::Stop(reply)).map_err(|_| Error::Stopped)?;
        match answer.await.map_err(|_| Error::Stopped)?? {
            Answer::Count(left) => Ok(left),
            _ => Ok(0),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Engine")
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RunHandle({})", self.id)
    }
}

/// A run that was started. Dropping it changes nothing: the run goes on.
#[derive(Clone)]
pub struct RunHandle {
    id: RunId,
    engine: Engine,
}

impl RunHandle {
    /// Its id.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Waits until the run has ended, and gives everything about it.
    pub async fn wait(&self) -> Result<RunView, Error> {
        self.engine.request(Action::Wait(self.id)).await?;
        self.engine.status(self.id).await
    }

    /// A token that cancels the run.
    pub fn cancel_token(&self, by: &Principal) -> CancellationToken {
        let token = CancellationToken::new();
        let (watched, run, by) = (token.clone(), self.id, by.clone());
        // The token must not keep an engine alive that nobody else holds.
        let engine = Arc::downgrade(&self.engine.0);
        let (reply, ended) = Reply::channel();
        let request = Request { action: Action::Wait(run), reply: Some(reply) };
        // An engine that has stopped cancels nothing.
        let _ = self.engine.0.messages.send(Message::Request(request));
        tokio::spawn(async move {
            tokio::select! {
                () = watched.cancelled() => {}
                _ = ended => return,
            }
            if let Some(engine) = engine.upgrade() {
                // A run that has ended cannot be cancelled, and need not be.
                let _ = Engine(engine).cancel(run, &by, "cancelled by its token").await;
            }
        });
        token
    }
}
