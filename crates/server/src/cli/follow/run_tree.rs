//! The state of followed runs and of their sub-workflows, folded from events.

use std::collections::BTreeMap;
use std::sync::Arc;

use steprail_core::run::{Millis, Started, StepRef};
use steprail_engine::{Cursor, Event, RunId, RunStatus};
use steprail_http::{timestamp, views};

use crate::cli::terminal::step_progress::{StepChange, StepUpdate};
use crate::cli::terminal::text::{count, format_duration};

/// Followed runs and their sub-workflows.
#[derive(Debug, Default)]
pub(crate) struct RunTree {
    roots: Vec<RunId>,
    runs: BTreeMap<RunId, TrackedRun>,
}

#[derive(Debug)]
struct TrackedRun {
    /// Prefix of the paths of its steps in terminal output.
    prefix: String,
    status: RunStatus,
    last: LastEvent,
    /// Executions that have not ended, by number.
    live: BTreeMap<u32, LiveStep>,
}

/// The last folded event of a run.
#[derive(Debug, Clone)]
pub(crate) struct LastEvent {
    /// Its sequence number; 0 before the first event.
    pub seq: u64,
    /// The cursor after which the events that follow are read.
    pub cursor: String,
}

impl Default for LastEvent {
    fn default() -> Self {
        Self { seq: 0, cursor: Cursor::START.to_string() }
    }
}

#[derive(Debug)]
struct LiveStep {
    path: Arc<str>,
    since: Millis,
    state: StepState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StepState {
    /// It makes progress, or waits for something other than a human, a block or a sub-workflow.
    Working,
    /// It waits for its blocks.
    Blocks { total: u32, ended: u32 },
    /// It waits for a sub-workflow.
    Child(RunId),
    /// It waits for an approval.
    Gate,
    /// The outcome of its call is unknown.
    Uncertain,
}

impl RunTree {
    /// A tree with one root, before its first event.
    pub(crate) fn of(run: RunId) -> Self {
        let mut tree = Self::default();
        tree.add_root(run, String::new());
        tree
    }

    pub(crate) fn add_root(&mut self, run: RunId, prefix: String) {
        self.roots.push(run);
        self.add(run, prefix);
    }

    pub(crate) fn remove_root(&mut self, run: RunId) {
        self.roots.retain(|root| *root != run);
        self.runs.remove(&run);
    }

    fn add(&mut self, run: RunId, prefix: String) {
        let tracked = TrackedRun {
            prefix,
            status: RunStatus::Pending,
            last: LastEvent::default(),
            live: BTreeMap::new(),
        };
        self.runs.entry(run).or_insert(tracked);
    }

    /// The runs that the command was called for.
    pub(crate) fn roots(&self) -> &[RunId] {
        &self.roots
    }

    /// The sub-workflows that a run waits for.
    pub(crate) fn children(&self, run: RunId) -> Vec<RunId> {
        let live = self.runs.get(&run).into_iter().flat_map(|run| run.live.values());
        live.filter_map(|step| if let StepState::Child(child) = step.state { Some(child) } else { None })
            .collect()
    }

    /// Runs that have not ended, each with its last folded event.
    pub(crate) fn unfinished(&self) -> Vec<(RunId, LastEvent)> {
        let unfinished = self.runs.iter().filter(|(_, run)| !run.status.is_terminal());
        unfinished.map(|(id, run)| (*id, run.last.clone())).collect()
    }

    pub(crate) fn has_ended(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|run| run.status.is_terminal())
    }

    /// Whether a run can continue only after an action of a human.
    pub(crate) fn waits_for_human(&self, run: RunId) -> bool {
        let Some(run) = self.runs.get(&run) else { return false };
        if matches!(run.status, RunStatus::Paused | RunStatus::Interrupted) {
            return true;
        }
        let is_leaf = |step: &&LiveStep| !matches!(step.state, StepState::Blocks { .. });
        let mut leaves = run.live.values().filter(is_leaf).peekable();
        leaves.peek().is_some()
            && leaves.all(|step| match &step.state {
                StepState::Gate | StepState::Uncertain => true,
                StepState::Child(child) => self.waits_for_human(*child),
                StepState::Working | StepState::Blocks { .. } => false,
            })
    }

    /// The path of a step as seen from a root, if the tree contains its run.
    pub(crate) fn path_from(&self, root: RunId, run: RunId, path: &str) -> Option<String> {
        let prefix = self.runs.get(&run)?.prefix.strip_prefix(&self.runs.get(&root)?.prefix)?;
        Some(format!("{prefix}{path}"))
    }

    /// Live steps with this path as printed (with prefix), or else with this path in their own run.
    pub(crate) fn find(&self, path: &str) -> Vec<(RunId, Arc<str>)> {
        let find = |matches: &dyn Fn(&TrackedRun, &LiveStep) -> bool| -> Vec<(RunId, Arc<str>)> {
            let of_run = |(id, run): (&RunId, &TrackedRun)| {
                let steps = run.live.values().filter(|step| matches(run, step));
                steps.map(|step| (*id, step.path.clone())).collect::<Vec<_>>()
            };
            self.runs.iter().flat_map(of_run).collect()
        };
        match find(&|run, step| path.strip_prefix(&run.prefix) == Some(&*step.path)) {
            none if none.is_empty() => find(&|_, step| *step.path == *path),
            found => found,
        }
    }

    /// Folds an event. Returns the change to show. Events of runs outside the tree are ignored.
    pub(crate) fn fold(&mut self, event: &views::Event) -> Option<StepUpdate> {
        let run = self.runs.get_mut(&event.run_id)?;
        run.last = LastEvent { seq: event.seq, cursor: event.id.clone() };
        run.fold_status(&event.event);
        let step = event.event.step()?;
        let change = run.fold_step(step, &event.event, timestamp::parse(&event.at));
        let name = format!("{}{}", run.prefix, step.path);
        if let Event::StepStarted { what: Started::Workflow { run: child, .. }, .. } = &event.event
            && let Ok(child) = child.parse()
        {
            self.add(child, format!("{name}/"));
        }
        Some(StepUpdate { key: (event.run_id, step.n), name, change: change? })
    }
}

impl TrackedRun {
    fn fold_status(&mut self, event: &Event) {
        self.status = event.changes().run.status.unwrap_or(self.status);
    }

    fn fold_step(&mut self, step: &StepRef, event: &Event, at: Millis) -> Option<StepChange> {
        match event {
            Event::StepStarted { what, .. } => {
                let (state, details) = started(what, at);
                self.set(step, state, at);
                // The prompt of a gate follows with `ApprovalRequested`.
                let is_gate = matches!(what, Started::Approve {});
                (!is_gate).then_some(StepChange::Started { attempt: step.attempt, details })
            }
            Event::KeyAwaited { .. } => {
                self.set(step, StepState::Working, at);
                Some(StepChange::Waiting("another step has the same idempotency key".to_owned()))
            }
            Event::ServerAwaited { error, .. } => {
                self.set(step, StepState::Working, at);
                Some(StepChange::Waiting(error.message.to_string()))
            }
            Event::RetryScheduled { error, due, .. } => {
                self.set(step, StepState::Working, at);
                Some(StepChange::RetryScheduled { error: error.message.to_string(), delay: until(*due, at) })
            }
            Event::StepProgressed { progress, total, message, .. } => {
                let total = total.map(|total| format!("/{total}")).unwrap_or_default();
                let message = message.as_deref().map(|message| format!(" {message}")).unwrap_or_default();
                Some(StepChange::Progressed(format!("{progress}{total}{message}")))
            }
            Event::ToolChanged { what, .. } => Some(StepChange::Note("warning", what.to_string())),
            Event::ToolRequested { tool, .. } => {
                Some(StepChange::Note("missing", format!("its tool; {tool} is called to create it")))
            }
            Event::ToolCreated { .. } => Some(StepChange::Note("created", "its tool".to_owned())),
            Event::BlockCompleted { .. } => self.end_block(step.n),
            Event::StepCompleted { .. } | Event::StepCancelled { .. } => {
                self.end_step(step.n, event, None, at)
            }
            Event::StepFailed { error, .. } => self.end_step(step.n, event, Some(error.to_string()), at),
            Event::StepSkipped { reason, .. } => self.end_step(step.n, event, Some(reason.to_string()), at),
            Event::ApprovalRequested { .. }
            | Event::ApprovalSigned { .. }
            | Event::ApprovalGranted { .. }
            | Event::ApprovalDenied { .. }
            | Event::StepUncertain { .. }
            | Event::UncertaintyResolved { .. } => self.fold_human(step, event, at),
            // Not shown: internal to the engine, or a later event reports the change.
            Event::StepReady { .. }
            | Event::CallTimedOut { .. }
            | Event::CallAbandoned { .. }
            | Event::CallAccepted { .. }
            | Event::CallResumed { .. }
            | Event::VerifyStarted { .. }
            | Event::LateResult { .. }
            | Event::BranchTaken { .. }
            | Event::StepEnding { .. }
            | Event::ApprovalEscalated { .. }
            | Event::ApprovalReminded { .. }
            | Event::ArgumentsEdited { .. } => None,
            Event::RunStarted { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed { .. }
            | Event::RunInterrupted { .. }
            | Event::RunFailing { .. }
            | Event::RunCancelling { .. }
            | Event::RunCompleted { .. }
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. }
            | Event::SignalReceived { .. }
            | Event::ValueSet { .. } => None,
        }
    }

    /// Folds an event of an approval or of an unknown outcome.
    fn fold_human(&mut self, step: &StepRef, event: &Event, at: Millis) -> Option<StepChange> {
        Some(match event {
            Event::ApprovalRequested { prompt, .. } => {
                self.set(step, StepState::Gate, at);
                StepChange::Waiting(prompt.to_string())
            }
            Event::ApprovalSigned { by, remaining, .. } => {
                StepChange::Note("approved", format!("by {by}; {remaining} more needed"))
            }
            Event::ApprovalGranted { by, .. } => {
                self.continue_step(step.n);
                StepChange::Note("approved", format!("by {by}"))
            }
            Event::ApprovalDenied { by, reason, .. } => {
                let by = by.as_ref().map(|by| format!("by {by}"));
                StepChange::Note("denied", by.unwrap_or_else(|| reason.to_string()))
            }
            Event::StepUncertain { error, .. } => {
                self.set(step, StepState::Uncertain, at);
                StepChange::Uncertain(error.message.to_string())
            }
            Event::UncertaintyResolved { by, .. } => {
                self.continue_step(step.n);
                StepChange::Note("resolved", format!("by {by}"))
            }
            _ => return None,
        })
    }

    fn set(&mut self, step: &StepRef, state: StepState, at: Millis) {
        self.live.insert(step.n, LiveStep { path: step.path.clone(), since: at, state });
    }

    fn continue_step(&mut self, n: u32) {
        if let Some(step) = self.live.get_mut(&n) {
            step.state = StepState::Working;
        }
    }

    fn end_block(&mut self, n: u32) -> Option<StepChange> {
        let StepState::Blocks { total, ended } = &mut self.live.get_mut(&n)?.state else { return None };
        *ended += 1;
        (*total > 1).then_some(StepChange::BlockEnded { total: *total, ended: *ended })
    }

    fn end_step(&mut self, n: u32, event: &Event, reason: Option<String>, at: Millis) -> Option<StepChange> {
        let status = event.changes().step?.status?;
        let since = self.live.remove(&n).map(|step| step.since);
        let duration = since.and_then(|since| u64::try_from(at - since).ok());
        Some(StepChange::Ended { status, duration, reason })
    }
}

/// The state of a step that has started, and details to show.
fn started(what: &Started, at: Millis) -> (StepState, Option<String>) {
    let blocks = |total: u32| StepState::Blocks { total, ended: 0 };
    match what {
        Started::Foreach { items, .. } => (blocks(*items), Some(count(*items, "item", "items"))),
        Started::Parallel { branches } => (blocks(*branches), Some(count(*branches, "branch", "branches"))),
        Started::Branch {} => (blocks(1), None),
        Started::Sleep { due } => {
            (StepState::Working, Some(format!("sleeps {}", format_duration(until(*due, at)))))
        }
        Started::Wait { event, .. } => (StepState::Working, Some(format!("waits for the signal {event}"))),
        Started::Workflow { definition, run, .. } => match run.parse() {
            Ok(run) => (StepState::Child(run), Some(format!("runs {definition}"))),
            Err(_) => (StepState::Working, None),
        },
        Started::Call { .. } | Started::Approve {} | Started::Pass {} => (StepState::Working, None),
    }
}

fn until(due: Millis, now: Millis) -> u64 {
    u64::try_from(due - now).unwrap_or_default()
}
