//! One engine on one database, for the life of a command: follows runs to their end and tells how they ended.

use std::future::Future;
use std::process::ExitCode;

use serde_json::Value;
use steprail_core::run::RunStatus;
use steprail_engine::{Engine, Error, Event, RunId, RunView, Subscription};
use steprail_store::sqlite::Readers;
use steprail_store::{ListRuns, Reads, StoreError};
use tokio::signal::unix::{Signal as Interrupts, SignalKind, signal};

use super::database::{Database, Reach};
use super::progress::Screen;
use super::stop::{Stop, show_problems};
use super::tree::Tree;
use super::waiting::Again;
use super::{exit, input, record, show_as};
use crate::scripted::Script;
use crate::tools::{ToolSource, Tools};
use steprail_http::views::Run;

/// Events of a run that are read at once.
const PAGE: usize = 1_000;
/// Threads for what blocks: each keeps memory of its own.
const BLOCKING_THREADS: usize = 16;

/// An event from outside: its name, and what it carries.
pub(super) type Signal = (String, Value);

/// What a session is made of.
pub(super) struct Setup {
    pub db: Database,
    pub tools: ToolSource,
    pub again: Again,
    pub durability: Option<Reach>,
}

/// An engine with runs that are followed.
pub(super) struct Session {
    pub engine: Engine,
    pub tools: Tools,
    pub tree: Tree,
    db: Database,
    readers: Readers,
    feed: Subscription,
    screen: Screen,
    again: Again,
}

/// Why following ended.
enum Ending {
    /// Every run ended or waits for a human.
    Settled,
    /// The user goes away; the runs stay.
    Detached,
}

impl Session {
    /// Opens the database, lets `choose` say what to follow before anything goes on, and starts the engine.
    pub(super) fn open(
        setup: Setup,
        others_wait: bool,
        choose: impl FnOnce(&Readers, &mut Tree) -> Result<(), Stop>,
    ) -> Result<Self, Stop> {
        let store = setup.db.open(setup.durability)?;
        let none = || StoreError::Other("the database cannot be read".to_owned());
        let readers = store.readers().ok_or_else(none)?;
        let mut tree = Tree::default();
        choose(&readers, &mut tree)?;
        let cursor = readers.last_event()?;
        let tools = setup.tools.open(setup.db.path(), None, None).map_err(Stop::usage)?;
        let screen = Screen::stderr();
        tools.start().iter().for_each(|warning| screen.say(&format!("warning: {warning}")));
        let builder = Engine::builder().store(store).tools(tools.clone());
        let engine = if others_wait { builder.recover_as_interrupted() } else { builder }.spawn()?;
        let feed = engine.subscribe(None, cursor);
        let Setup { db, again, .. } = setup;
        Ok(Self { engine, tools, tree, db, readers, feed, screen, again })
    }

    /// Says something on standard error.
    pub(super) fn say(&self, text: &str) {
        self.screen.say(text);
    }

    /// Brings events: to one run, which keeps them until a step waits for them, or to those that wait now.
    pub(super) async fn signal(&self, signals: &[Signal], run: Option<RunId>) -> Result<(), Stop> {
        for (event, payload) in signals {
            if self.engine.signal(event, payload.clone(), run).await? == 0 {
                self.say(&format!("warning: no run waits for the event `{event}`; it reached nobody"));
            }
        }
        Ok(())
    }

    /// Follows the runs until each has ended or waits for a human, and tells how they stand.
    pub(super) async fn finish(mut self, json: bool) -> Result<ExitCode, Stop> {
        let roots = self.tree.roots().to_vec();
        // Listening once for all: none is missed between two.
        let interrupts = signal(SignalKind::interrupt());
        let mut interrupts =
            interrupts.map_err(|error| Stop::usage(format!("cannot listen for Ctrl-C: {error}")))?;
        let ending = self.follow(&roots, &mut interrupts).await;
        self.screen.clear();
        match ending {
            Ok(Ending::Settled) => self.conclude(&roots, json).await,
            Ok(Ending::Detached) => self.detach(&roots, &mut interrupts).await,
            Err(stop) => self.give_up(stop).await,
        }
    }

    /// Ends early. What is in flight may end: a call that is cut off is one that nobody knows the outcome of.
    pub(super) async fn give_up(mut self, stop: Stop) -> Result<ExitCode, Stop> {
        self.db.keep();
        self.shut_down().await;
        Err(stop)
    }

    async fn shut_down(&self) {
        if let Ok(left @ 1..) = self.engine.shutdown().await {
            let calls = if left == 1 { "call was" } else { "calls were" };
            self.say(&format!(
                "warning: {left} {calls} still in flight and left; the next start deals with them"
            ));
        }
        self.tools.close().await;
    }

    async fn follow(&mut self, roots: &[RunId], interrupts: &mut Interrupts) -> Result<Ending, Stop> {
        let mut faults = self.engine.faults();
        faults.mark_changed();
        while !self.is_settled(roots)? {
            tokio::select! {
                event = self.feed.next() => {
                    let event = event?.ok_or(Error::Stopped)?;
                    if let Some(news) = self.tree.fold(&event) {
                        self.screen.show(&news);
                    }
                }
                Ok(()) = faults.changed() => {
                    let fault = faults.borrow_and_update().clone();
                    self.tell_fault(fault, roots).await?;
                }
                _ = interrupts.recv() => return Ok(Ending::Detached),
            }
        }
        Ok(Ending::Settled)
    }

    /// Whether nothing more comes by itself. Events are seen one by one; where only humans can go on, no
    /// further ones of the same commit may be on their way.
    fn is_settled(&self, roots: &[RunId]) -> Result<bool, Stop> {
        if !roots.iter().all(|root| self.tree.is_over(*root) || self.tree.waits(*root)) {
            return Ok(false);
        }
        for (run, seen) in self.tree.unfinished() {
            if self.readers.run(run)?.is_some_and(|row| row.seq != seen) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells what is wrong with the store. Runs that cannot go on do not stop the others.
    async fn tell_fault(&self, fault: Option<StoreError>, roots: &[RunId]) -> Result<(), Stop> {
        let Some(fault) = fault else { return Ok(()) };
        if let StoreError::Io(_) = fault {
            return Err(fault.into());
        }
        for run in roots {
            self.engine.check(*run).await?;
        }
        let what = if fault.may_pass() { "trying again" } else { "the runs that it concerns stand still" };
        self.say(&format!("warning: {fault}; {what}"));
        Ok(())
    }

    /// Tells how the runs ended, and what those that did not end wait for.
    async fn conclude(mut self, roots: &[RunId], json: bool) -> Result<ExitCode, Stop> {
        let mut statuses = Vec::new();
        for run in roots {
            let view = self.engine.status(*run).await?;
            print(&view, json)?;
            statuses.push(view.run.status);
            if !view.run.status.is_terminal() {
                self.db.keep();
                self.explain(&view);
            }
        }
        self.shut_down().await;
        Ok(ExitCode::from(exit::of_runs(statuses.into_iter())))
    }

    fn explain(&self, view: &RunView) {
        let run = view.run.run_id;
        let open = self.tree.open(run);
        for open in &open {
            self.say(&self.again.explain(run, open, &view.run.created_by));
        }
        if open.is_empty() {
            self.say(&format!("go on: {}", self.again.command(Some(run))));
        }
    }

    /// Stops without stopping the runs: what is in flight may end, nothing new begins.
    async fn detach(mut self, roots: &[RunId], interrupts: &mut Interrupts) -> Result<ExitCode, Stop> {
        self.db.keep();
        self.say("stopping when the calls in flight have ended; Ctrl-C again leaves them");
        tokio::select! {
            () = self.shut_down() => {}
            _ = interrupts.recv() => {}
        }
        let run = if let [run] = roots { Some(*run) } else { None };
        self.say(&format!("nothing is cancelled; go on: {}", self.again.command(run)));
        Ok(ExitCode::from(exit::INTERRUPTED))
    }
}

fn print(view: &RunView, json: bool) -> Result<(), Stop> {
    let run = Run::from(view.clone());
    if json { show_as::json(&run) } else { show_as::line(&record::summary(&run)) }
}

/// Reads a run's log into a tree, with those of the runs that it waits for.
pub(super) fn read_log(readers: &Readers, tree: &mut Tree, run: RunId) -> Result<(), Stop> {
    let mut after = 0;
    loop {
        let page = readers.events(run, after, PAGE)?.events;
        let Some(last) = page.last() else { break };
        after = last.seq;
        page.iter().for_each(|event| drop(tree.fold(event)));
    }
    for child in tree.children(run) {
        read_log(readers, tree, child)?;
    }
    Ok(())
}

/// Runs that have not ended and that no other run waits for, the oldest first, with the names of their
/// definitions.
pub(super) fn unfinished(readers: &Readers) -> Result<Vec<(RunId, String)>, Stop> {
    let mut rows = Vec::new();
    for status in RunStatus::ALL.into_iter().filter(|status| !status.is_terminal()) {
        let all = ListRuns { status: Some(status), limit: usize::MAX >> 1, ..ListRuns::default() };
        rows.extend(readers.runs(&all)?);
    }
    rows.sort_by_key(|row| row.key);
    let mut runs = Vec::new();
    for row in rows {
        let first = readers.events(row.run_id, 0, 1)?.events.pop().map(|first| first.event);
        if !matches!(first, Some(Event::RunStarted { parent: Some(_), .. })) {
            runs.push((row.run_id, row.name));
        }
    }
    Ok(runs)
}

/// Reads a script of tools, or shows what is wrong with it.
pub(super) fn read_script(path: &str) -> Result<Script, Stop> {
    let source = input::read(path)?;
    Script::read(&source).or_else(|problems| {
        show_problems(&problems, &source)?;
        Err(Stop::Silent(exit::CANNOT_READ))
    })
}

/// Reads `EVENT=JSON`, or `EVENT`.
pub(super) fn event(text: &str) -> Result<Signal, String> {
    let (event, payload) = text.split_once('=').unwrap_or((text, "null"));
    let payload = serde_json::from_str(payload).map_err(|error| format!("not JSON: {error}"))?;
    Ok((event.to_owned(), payload))
}

/// The user of this machine.
pub(super) fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| "local".to_owned())
}

/// Does something with an engine. What still runs at the end is left to itself.
pub(super) fn block_on(work: impl Future<Output = Result<ExitCode, Stop>>) -> Result<ExitCode, Stop> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().max_blocking_threads(BLOCKING_THREADS).build();
    let runtime = runtime.map_err(|error| Stop::usage(format!("cannot start threads: {error}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}
