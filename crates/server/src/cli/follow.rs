//! Following a run of a server to its end: a live view of its steps, questions at its gates, and across restarts of the
//! server.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::pin::Pin;
use std::process::ExitCode;

use futures::stream::{SelectAll, Stream, StreamExt, once};
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::{RunId, StoredEvent};
use tokio::signal::unix::{Signal as Interrupts, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};

use super::decide::{self, Verdict};
use super::progress::Screen;
use super::stop::Stop;
use super::target::Target;
use super::tree::Tree;
use super::{exit, go_on, record, show_as};
use crate::client::{Client, Refused};
use steprail_http::timestamp;
use steprail_http::views::{Approval, Event, Run};

/// How long a server that is gone is looked for, and how often.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(200);

/// A run that is followed, with those that it waits for.
pub(super) struct Follow {
    client: Client,
    target: Target,
    root: RunId,
    tree: Tree,
    screen: Screen,
    streams: SelectAll<Pin<Box<dyn Stream<Item = Heard> + Send>>>,
    /// What the user types next.
    typing: Option<JoinHandle<std::io::Result<String>>>,
    /// Questions that the user leaves for later, by their digests.
    put_off: HashSet<String>,
}

/// What is heard of a run.
enum Heard {
    Event(Box<Event>),
    /// The stream of a run has ended.
    End(RunId),
}

/// Whether the user was asked.
enum Asked {
    Somebody,
    /// Nobody here can say.
    Nobody,
    /// Something has happened that is not known here yet.
    TooEarly,
}

/// Why following ended.
enum Ending {
    Over,
    /// It waits for somebody who is not here.
    Waits,
    /// The user goes away.
    Detached,
}

impl Follow {
    pub(super) fn new(client: Client, target: Target, run: RunId) -> Self {
        let mut tree = Tree::default();
        tree.add_root(run, String::new());
        Self {
            client,
            target,
            root: run,
            tree,
            screen: Screen::stderr(),
            streams: SelectAll::new(),
            typing: None,
            put_off: HashSet::new(),
        }
    }

    /// Follows it until it has ended or waits for somebody else, and tells how it stands.
    pub(super) async fn finish(mut self, json: bool) -> Result<ExitCode, Stop> {
        let interrupts = signal(SignalKind::interrupt());
        let mut interrupts =
            interrupts.map_err(|error| Stop::usage(format!("cannot listen for Ctrl-C: {error}")))?;
        self.screen.say(&format!("run {}", self.root));
        let ending = self.follow(&mut interrupts).await;
        self.screen.clear();
        if let Ending::Detached = ending? {
            self.screen.say(&format!(
                "the run goes on; `steprail show {}{}` shows it",
                self.root,
                self.target.arguments()
            ));
            return Ok(ExitCode::from(exit::INTERRUPTED));
        }
        let run = self.look().await?;
        if json {
            show_as::json(&run)?;
        } else {
            show_as::line(&record::summary(&run))?;
        }
        go_on::hints(&run, &self.target).iter().for_each(|hint| self.screen.say(hint));
        Ok(ExitCode::from(exit::of_run(run.status)))
    }

    async fn look(&self) -> Result<Run, Stop> {
        Ok(self.client.get(&format!("/runs/{}", self.root)).await?)
    }

    async fn follow(&mut self, interrupts: &mut Interrupts) -> Result<Ending, Stop> {
        self.listen(self.root, 0).await?;
        while !self.tree.is_over(self.root) {
            tokio::select! {
                waits = self.go_on() => {
                    if waits? {
                        return Ok(Ending::Waits);
                    }
                }
                _ = interrupts.recv() => return Ok(Ending::Detached),
            }
        }
        Ok(Ending::Over)
    }

    /// Asks, if the run waits for somebody, or hears what happens next. True if it waits for somebody who is not here.
    async fn go_on(&mut self) -> Result<bool, Stop> {
        if self.tree.waits(self.root) {
            match self.decide().await? {
                Asked::Nobody => return Ok(true),
                Asked::Somebody => return Ok(false),
                Asked::TooEarly => {}
            }
        }
        let heard = self.streams.next().await;
        self.hear(heard).await?;
        Ok(false)
    }

    /// Listens to a run, after an event.
    async fn listen(&mut self, run: RunId, after: u64) -> Result<(), Refused> {
        let events = self.client.follow(&format!("/runs/{run}/stream"), Some(after)).await?;
        let events = events.filter_map(|(_, event)| std::future::ready(event));
        let heard = events.map(|event| Heard::Event(Box::new(event)));
        self.streams.push(Box::pin(heard.chain(once(async move { Heard::End(run) }))));
        Ok(())
    }

    async fn hear(&mut self, heard: Option<Heard>) -> Result<(), Stop> {
        match heard {
            Some(Heard::Event(event)) => {
                let run = event.run_id;
                let before = self.tree.children(run);
                if let Some(news) = stored(*event).and_then(|stored| self.tree.fold(&stored)) {
                    self.screen.show(&news);
                }
                for child in self.tree.children(run).into_iter().filter(|child| !before.contains(child)) {
                    self.listen(child, 0).await?;
                }
            }
            Some(Heard::End(run)) if self.tree.is_over(run) => {}
            Some(Heard::End(_)) | None => self.reach_again().await?,
        }
        Ok(())
    }

    /// The server is gone: another one is reached, or started, and what happened meanwhile is told. One that is about to
    /// end may still take a connection, so it is tried more than once.
    async fn reach_again(&mut self) -> Result<(), Stop> {
        self.screen.say("the server is gone; reaching it again");
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.listen_again().await {
                Err(Refused::Unreachable(_)) if Instant::now() < deadline => sleep(LOOK).await,
                Err(refused) => return Err(refused.into()),
                Ok(()) => break,
            }
        }
        self.screen.say("the server is back, and the run goes on");
        Ok(())
    }

    async fn listen_again(&mut self) -> Result<(), Refused> {
        self.client = self.client.again().await?;
        self.streams.clear();
        let unfinished: Vec<(RunId, u64)> = self.tree.unfinished().collect();
        for (run, seen) in unfinished {
            self.listen(run, seen).await?;
        }
        Ok(())
    }

    /// What the user says to a question; nothing if it was settled elsewhere meanwhile. What else happens is told above.
    async fn verdict(&mut self, question: &Approval) -> Result<Option<Verdict>, Stop> {
        decide::show_call(question)?;
        // What was typed before it was put is no answer to it; a line that is still to be typed is.
        decide::forget_typed();
        self.typing.take_if(|typing| typing.is_finished());
        loop {
            decide::prompt(question)?;
            let typing = self.typing.get_or_insert_with(|| tokio::task::spawn_blocking(decide::typed));
            let heard = tokio::select! {
                typed = typing => {
                    self.typing = None;
                    let typed = typed.map_err(|_| Stop::usage("the question could not be put"))??;
                    match Verdict::read(&typed) {
                        Some(verdict) => return Ok(Some(verdict)),
                        None => continue,
                    }
                }
                heard = self.streams.next() => heard,
            };
            decide::unprompt()?;
            self.hear(heard).await?;
            let open = self.look().await?.approvals.unwrap_or_default();
            if !open.iter().any(|open| open.digest == question.digest) {
                return Ok(None);
            }
        }
    }

    /// Puts the next question of the run to the user.
    async fn decide(&mut self) -> Result<Asked, Stop> {
        let run = self.look().await?;
        // Something is still on its way here, of this run or of one that it waits for.
        let unfinished: Vec<(RunId, u64)> = self.tree.unfinished().collect();
        for (id, seen) in unfinished {
            let seq = if id == run.run_id {
                run.seq
            } else {
                self.client.get::<Run>(&format!("/runs/{id}")).await?.seq
            };
            if seq != seen {
                return Ok(Asked::TooEarly);
            }
        }
        let can_ask = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let is_for_us = |open: &Approval| {
            can_ask
                && open.form.is_none()
                && open.may_decide != Some(false)
                && !self.put_off.contains(&open.digest)
        };
        match run.approvals.unwrap_or_default().into_iter().find(is_for_us) {
            Some(question) => self.ask(&question).await.map(|()| Asked::Somebody),
            None => Ok(Asked::Nobody),
        }
    }

    /// Puts a question, and brings the answer. What is not decided now is not asked again.
    async fn ask(&mut self, question: &Approval) -> Result<(), Stop> {
        self.screen.hide(true);
        let verdict = self.verdict(question).await;
        self.screen.hide(false);
        let Some(verdict) = verdict? else { return Ok(()) };
        let (action, word) = match verdict {
            Verdict::Approve => ("approve", "approved"),
            Verdict::Deny => ("deny", "denied"),
            Verdict::Later => {
                self.put_off.insert(question.digest.clone());
                return Ok(());
            }
        };
        let body = json!({ "step": question.step, "digest": question.digest });
        let path = format!("/runs/{}/{action}", question.run_id);
        let mut said = self.client.post::<Value>(&path, &body).await;
        if let Err(Refused::Unreachable(_)) = said {
            // What was decided counts for what was asked, wherever it is said.
            self.reach_again().await?;
            said = self.client.post(&path, &body).await;
        }
        match said {
            Ok(_) => Ok(()),
            // Somebody else was faster, or may do what this user may not.
            Err(Refused::Problem(problem)) => {
                self.screen.say(&format!("not {word}: {}", problem.detail));
                self.put_off.insert(question.digest.clone());
                Ok(())
            }
            Err(unreachable) => Err(unreachable.into()),
        }
    }
}

/// An event as the engine knows it.
fn stored(event: Event) -> Option<StoredEvent> {
    Some(StoredEvent {
        id: event.id,
        run: event.run_id,
        seq: event.seq,
        at: timestamp::parse(&event.at),
        hash: Hash::from_hex(&event.hash)?,
        event: event.event,
    })
}
