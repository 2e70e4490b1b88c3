//! Runs that are followed, and the runs that their steps wait for: where each stands, folded from events.

use std::collections::BTreeMap;
use std::sync::Arc;

use steprail_core::run::{Millis, Started, StepRef};
use steprail_engine::{Event, RunId, RunStatus, StoredEvent};

use super::progress::{News, What, length};

/// Runs that are followed, with those that they wait for.
#[derive(Debug, Default)]
pub(super) struct Tree {
    roots: Vec<RunId>,
    runs: BTreeMap<RunId, Followed>,
}

/// One run.
#[derive(Debug)]
pub(super) struct Followed {
    /// What stands before the paths of its steps.
    prefix: String,
    status: RunStatus,
    /// How many events were seen.
    seq: u64,
    live: BTreeMap<u32, Live>,
}

/// A step that has not ended.
#[derive(Debug)]
struct Live {
    path: Arc<str>,
    since: Millis,
    state: State,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It goes on by itself.
    Working,
    /// Its blocks do: how many there are, and how many have ended.
    Blocks(u32, u32),
    /// Another run does.
    Child(RunId),
    /// A human is asked this.
    Gate(String),
    /// Nobody knows what became of its call, and why.
    Uncertain(String),
}

/// A step that waits for a human.
#[derive(Debug)]
pub(super) struct Open<'t> {
    /// The step as it is shown below the run that was asked about.
    pub name: String,
    /// What it waits for.
    pub state: &'t State,
}

impl Tree {
    /// Follows one more run.
    pub(super) fn add_root(&mut self, run: RunId, prefix: String) {
        self.roots.push(run);
        self.add(run, prefix);
    }

    /// A run is not followed after all.
    pub(super) fn drop_root(&mut self, run: RunId) {
        self.roots.retain(|root| *root != run);
        self.runs.remove(&run);
    }

    fn add(&mut self, run: RunId, prefix: String) {
        let followed = Followed { prefix, status: RunStatus::Pending, seq: 0, live: BTreeMap::new() };
        self.runs.entry(run).or_insert(followed);
    }

    /// The runs that were asked for.
    pub(super) fn roots(&self) -> &[RunId] {
        &self.roots
    }

    /// The runs that a run waits for.
    pub(super) fn children(&self, run: RunId) -> Vec<RunId> {
        self.runs.get(&run).into_iter().flat_map(Followed::children).collect()
    }

    /// Runs that have not ended, with how many of their events were seen.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (RunId, u64)> {
        self.runs.iter().filter(|(_, run)| !run.status.is_terminal()).map(|(id, run)| (*id, run.seq))
    }

    /// Whether a run has ended.
    pub(super) fn is_over(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|run| run.status.is_terminal())
    }

    /// Whether only humans can move a run on, as far as its events were seen.
    pub(super) fn waits(&self, run: RunId) -> bool {
        let Some(run) = self.runs.get(&run) else { return false };
        if matches!(run.status, RunStatus::Paused | RunStatus::Interrupted) {
            return true;
        }
        let mut leaves = run.live.values().filter(|live| !matches!(live.state, State::Blocks(..))).peekable();
        leaves.peek().is_some()
            && leaves.all(|live| match &live.state {
                State::Gate(_) | State::Uncertain(_) => true,
                State::Child(child) => self.waits(*child),
                State::Working | State::Blocks(..) => false,
            })
    }

    /// Steps of a run, and of those that it waits for, that wait for a human.
    pub(super) fn open(&self, run: RunId) -> Vec<Open<'_>> {
        let mut open = Vec::new();
        let Some(root) = self.runs.get(&run) else { return open };
        self.collect_open(root, root.prefix.len(), &mut open);
        open
    }

    fn collect_open<'t>(&'t self, run: &'t Followed, cut: usize, open: &mut Vec<Open<'t>>) {
        for Live { path, state, .. } in run.live.values() {
            match state {
                State::Child(child) => {
                    if let Some(child) = self.runs.get(child) {
                        self.collect_open(child, cut, open);
                    }
                }
                State::Gate(_) | State::Uncertain(_) => {
                    open.push(Open { name: format!("{}{path}", &run.prefix[cut..]), state });
                }
                State::Working | State::Blocks(..) => {}
            }
        }
    }

    /// The steps that a path means: as it is shown, or else as it is in its run.
    pub(super) fn find(&self, path: &str) -> Vec<(RunId, Arc<str>)> {
        let found = |means: &dyn Fn(&Followed, &Live) -> bool| -> Vec<(RunId, Arc<str>)> {
            let of_run = |(id, run): (&RunId, &Followed)| {
                let live = run.live.values().filter(|live| means(run, live));
                live.map(|live| (*id, live.path.clone())).collect::<Vec<_>>()
            };
            self.runs.iter().flat_map(of_run).collect()
        };
        match found(&|run, live| path.strip_prefix(&run.prefix) == Some(&*live.path)) {
            none if none.is_empty() => found(&|_, live| *live.path == *path),
            shown => shown,
        }
    }

    /// Takes an event in; gives what there is to show of it.
    pub(super) fn fold(&mut self, stored: &StoredEvent) -> Option<News> {
        let run = self.runs.get_mut(&stored.run)?;
        run.seq = stored.seq;
        run.set_status(&stored.event);
        let step = stored.event.step()?;
        let what = run.step(step, &stored.event, stored.at);
        let name = format!("{}{}", run.prefix, step.path);
        if let Event::StepStarted { what: Started::Workflow { run: child, .. }, .. } = &stored.event
            && let Ok(child) = child.parse()
        {
            self.add(child, format!("{name}/"));
        }
        Some(News { key: (stored.run, step.n), name, what: what? })
    }
}

impl Followed {
    fn children(&self) -> impl Iterator<Item = RunId> {
        self.live.values().filter_map(|live| match live.state {
            State::Child(child) => Some(child),
            _ => None,
        })
    }

    fn set_status(&mut self, event: &Event) {
        self.status = match event {
            Event::RunStarted { .. } | Event::RunResumed { .. } => RunStatus::Running,
            Event::RunPaused { .. } => RunStatus::Paused,
            Event::RunInterrupted {} => RunStatus::Interrupted,
            Event::RunCompleted { .. } => RunStatus::Completed,
            Event::RunFailed { .. } => RunStatus::Failed,
            Event::RunCancelled { .. } => RunStatus::Cancelled,
            _ => return,
        };
    }

    /// Takes an event of a step in.
    fn step(&mut self, step: &StepRef, event: &Event, at: Millis) -> Option<What> {
        match event {
            Event::StepStarted { what, .. } => {
                let (state, doing) = begun(what, at);
                self.set(step, state, at);
                // The question follows.
                let is_gate = matches!(what, Started::Approve {});
                (!is_gate).then_some(What::Began { attempt: step.attempt, doing })
            }
            Event::KeyAwaited { .. } => {
                self.set(step, State::Working, at);
                Some(What::Waits("another step has the same idempotency key".to_owned()))
            }
            Event::ServerAwaited { error, .. } => {
                self.set(step, State::Working, at);
                Some(What::Waits(error.message.to_string()))
            }
            Event::RetryScheduled { error, due, .. } => {
                self.set(step, State::Working, at);
                let pause = u64::try_from(due - at).unwrap_or_default();
                Some(What::Retry { error: error.message.to_string(), pause })
            }
            Event::StepProgressed { progress, total, message, .. } => {
                let total = total.map(|total| format!("/{total}")).unwrap_or_default();
                let message = message.as_deref().map(|message| format!(" {message}")).unwrap_or_default();
                Some(What::Progressed(format!("{progress}{total}{message}")))
            }
            Event::ToolChanged { what, .. } => Some(What::Said("warning", what.to_string())),
            Event::ToolRequested { tool, .. } => {
                Some(What::Said("missing", format!("asks {tool} to create its tool")))
            }
            Event::ToolCreated { .. } => Some(What::Said("created", "its tool is there now".to_owned())),
            Event::BlockCompleted { .. } => self.block_ended(step.n),
            event if event.ends_step() => Some(self.end(step.n, event, at)),
            event => self.human(step, event, at),
        }
    }

    /// Takes an event in that has to do with a human.
    fn human(&mut self, step: &StepRef, event: &Event, at: Millis) -> Option<What> {
        Some(match event {
            Event::ApprovalRequested { prompt, .. } => {
                self.set(step, State::Gate(prompt.to_string()), at);
                What::Waits(prompt.to_string())
            }
            Event::ApprovalGranted { by, .. } => {
                self.goes_on(step.n);
                What::Said("approved", format!("by {by}"))
            }
            Event::ApprovalDenied { by, reason, .. } => {
                let by = by.as_ref().map(|by| format!("by {by}"));
                What::Said("denied", by.unwrap_or_else(|| reason.to_string()))
            }
            Event::StepUncertain { error, .. } => {
                self.set(step, State::Uncertain(error.message.to_string()), at);
                What::Said("uncertain", error.message.to_string())
            }
            Event::UncertaintyResolved { by, .. } => {
                self.goes_on(step.n);
                What::Said("resolved", format!("by {by}"))
            }
            _ => return None,
        })
    }

    fn set(&mut self, step: &StepRef, state: State, at: Millis) {
        self.live.insert(step.n, Live { path: step.path.clone(), since: at, state });
    }

    fn goes_on(&mut self, n: u32) {
        if let Some(live) = self.live.get_mut(&n) {
            live.state = State::Working;
        }
    }

    fn block_ended(&mut self, n: u32) -> Option<What> {
        let State::Blocks(total, ended) = &mut self.live.get_mut(&n)?.state else { return None };
        *ended += 1;
        (*total > 1).then_some(What::Moved { total: *total, ended: *ended })
    }

    fn end(&mut self, n: u32, event: &Event, at: Millis) -> What {
        let since = self.live.remove(&n).map(|live| live.since);
        let took = since.and_then(|since| u64::try_from(at - since).ok());
        let (word, note) = match event {
            Event::StepFailed { error, .. } => ("failed", Some(error.to_string())),
            Event::StepSkipped { reason, .. } => ("skipped", Some(reason.to_string())),
            Event::StepCancelled { .. } => ("cancelled", None),
            _ => ("done", None),
        };
        What::Ended { word, took, note }
    }
}

/// What a step does when it has begun, and how that is told.
fn begun(what: &Started, at: Millis) -> (State, Option<String>) {
    match what {
        Started::Foreach { items, .. } => (State::Blocks(*items, 0), Some(count(*items, "item"))),
        Started::Parallel { branches } => (State::Blocks(*branches, 0), Some(count(*branches, "branch"))),
        Started::Branch {} => (State::Blocks(1, 0), None),
        Started::Sleep { due } => {
            let pause = u64::try_from(due - at).unwrap_or_default();
            (State::Working, Some(format!("sleeps {}", length(pause))))
        }
        Started::Wait { event, .. } => (State::Working, Some(format!("waits for the event {event}"))),
        Started::Workflow { definition, run, .. } => match run.parse() {
            Ok(run) => (State::Child(run), Some(format!("runs {definition}"))),
            Err(_) => (State::Working, None),
        },
        _ => (State::Working, None),
    }
}

fn count(number: u32, word: &str) -> String {
    match (number, word) {
        (1, word) => format!("1 {word}"),
        (number, "branch") => format!("{number} branches"),
        (number, word) => format!("{number} {word}s"),
    }
}
