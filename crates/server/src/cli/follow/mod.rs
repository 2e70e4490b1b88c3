//! Follows runs to their end: live progress, prompts at gates, and the summary at the end.

pub(crate) mod hints;
pub(crate) mod in_process;
pub(crate) mod rest;
pub(crate) mod run_client;
pub(crate) mod run_tree;
pub(crate) mod waiting_step;

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;

use steprail_engine::{Error, Event, RunId, RunStatus, StoreError};
use steprail_http::views::Approval;
use tokio::signal::unix::{Signal as Interrupts, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};

use self::hints::Invocation;
use self::run_client::{RunClient, RunUpdate};
use self::run_tree::{LastEvent, RunTree};
use super::shared::error::CliError;
use super::shared::exit;
use super::terminal::prompt::{self, GateAnswer};
use super::terminal::step_progress::ProgressView;
use super::terminal::text::{count, sanitize};
use super::terminal::{output, run_summary};
use crate::client::ClientError;

/// How long to try to reconnect, and the delay between attempts.
pub(crate) const RECONNECT_TIMEOUT: Duration = Duration::from_mins(1);
pub(crate) const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// Follows the runs of a tree.
pub(crate) struct Follower<C> {
    client: C,
    invocation: Invocation,
    tree: RunTree,
    view: ProgressView,
    /// A read of standard input that outlived its prompt.
    pending_line: Option<JoinHandle<std::io::Result<String>>>,
    /// Digests of approvals that the user postponed or may not decide.
    postponed: HashSet<String>,
    /// Runs and paths of gates whose prompts were shown with their events.
    shown_gates: HashSet<(RunId, Arc<str>)>,
}

/// Why following ended.
enum Ending {
    /// Every run has ended or waits for a human who is not at this terminal.
    Settled,
    /// The user pressed Ctrl-C.
    Detached,
}

/// Result of looking for an approval to prompt for.
enum Prompted {
    Yes,
    /// No open approval can be decided here.
    No,
    /// Events are missing that may change what is open.
    Behind,
}

impl<C: RunClient> Follower<C> {
    pub(crate) fn new(client: C, invocation: Invocation, tree: RunTree) -> Self {
        let (view, postponed, shown_gates) = (ProgressView::stderr(), HashSet::new(), HashSet::new());
        Self { client, invocation, tree, view, pending_line: None, postponed, shown_gates }
    }

    /// Follows the runs until each has ended or waits for a human, and prints how they ended.
    pub(crate) async fn finish(mut self, json: bool) -> Result<ExitCode, CliError> {
        let interrupts = signal(SignalKind::interrupt());
        let mut interrupts =
            interrupts.map_err(|error| CliError::new(format!("cannot listen for Ctrl-C: {error}")))?;
        if !C::IN_PROCESS {
            self.tree.roots().iter().for_each(|root| self.view.say(&format!("run {root}")));
        }
        let ending = self.follow(&mut interrupts).await;
        self.view.finish();
        match ending {
            Ok(Ending::Settled) => self.conclude(json).await,
            Ok(Ending::Detached) => Ok(self.detach(&mut interrupts).await),
            Err(error) => self.abort(error).await,
        }
    }

    /// Stops early, because of an error.
    pub(crate) async fn abort(mut self, error: CliError) -> Result<ExitCode, CliError> {
        self.close(true).await;
        Err(error)
    }

    async fn close(&mut self, has_unfinished_runs: bool) {
        if let left @ 1.. = self.client.close(has_unfinished_runs).await {
            let calls = count(left, "call was", "calls were");
            self.view.say(&format!("warning: {calls} still in flight; the next start recovers them"));
        }
    }

    async fn conclude(mut self, json: bool) -> Result<ExitCode, CliError> {
        match self.print_runs(json).await {
            Ok(statuses) => {
                self.close(statuses.iter().any(|status| !status.is_terminal())).await;
                Ok(ExitCode::from(exit::of_runs(statuses.into_iter())))
            }
            Err(error) => self.abort(error).await,
        }
    }

    /// Prints each run, and what it waits for.
    async fn print_runs(&self, json: bool) -> Result<Vec<RunStatus>, CliError> {
        let mut statuses = Vec::new();
        for root in self.tree.roots() {
            let run = self.client.run(*root).await?;
            if json {
                output::json(&run)?;
            } else {
                output::line(&run_summary::summary(&run))?;
            }
            if !run.status.is_terminal() {
                let hints = self.invocation.hints(&run, &self.tree);
                hints.iter().for_each(|hint| self.view.say(hint));
                if hints.is_empty() {
                    self.view.say(&format!("continue with: {}", self.invocation.resume_command(Some(*root))));
                }
            }
            statuses.push(run.status);
        }
        Ok(statuses)
    }

    async fn detach(mut self, interrupts: &mut Interrupts) -> ExitCode {
        if C::IN_PROCESS {
            self.view.say("stopping after the calls in flight; press Ctrl-C again to abandon them");
            tokio::select! {
                biased;
                () = self.close(true) => {}
                _ = interrupts.recv() => {}
            }
        }
        self.view.say(&self.invocation.detach_message(self.tree.roots()));
        ExitCode::from(exit::INTERRUPTED)
    }

    async fn follow(&mut self, interrupts: &mut Interrupts) -> Result<Ending, CliError> {
        self.subscribe().await?;
        while !self.tree.roots().iter().all(|root| self.tree.has_ended(*root)) {
            tokio::select! {
                settled = self.advance() => {
                    if settled? {
                        return Ok(Ending::Settled);
                    }
                }
                _ = interrupts.recv() => return Ok(Ending::Detached),
            }
        }
        Ok(Ending::Settled)
    }

    async fn subscribe(&mut self) -> Result<(), ClientError> {
        for (run, last) in self.tree.unfinished() {
            self.client.subscribe(run, &last.cursor).await?;
        }
        Ok(())
    }

    /// Prompts if all runs wait for a human, or handles the next update. Returns whether only humans who are not at this
    /// terminal can continue the runs.
    async fn advance(&mut self) -> Result<bool, CliError> {
        let is_idle = |root: &RunId| self.tree.has_ended(*root) || self.tree.waits_for_human(*root);
        if self.tree.roots().iter().all(is_idle) {
            match self.prompt_next().await? {
                Prompted::No => return Ok(true),
                Prompted::Yes => return Ok(false),
                Prompted::Behind => {}
            }
        }
        let update = self.client.next().await?;
        self.handle(update).await?;
        Ok(false)
    }

    async fn handle(&mut self, update: RunUpdate) -> Result<(), CliError> {
        match update {
            RunUpdate::Event(event) => {
                let known = self.tree.children(event.run_id);
                if let Event::ApprovalRequested { step, .. } = &event.event {
                    self.shown_gates.insert((event.run_id, step.path.clone()));
                }
                if let Some(update) = self.tree.fold(&event) {
                    self.view.show(&update);
                }
                for child in self.tree.children(event.run_id) {
                    if !known.contains(&child) {
                        self.client.subscribe(child, &LastEvent::default().cursor).await?;
                    }
                }
                Ok(())
            }
            RunUpdate::StreamEnded(run) if self.tree.has_ended(run) => Ok(()),
            RunUpdate::StreamEnded(_) | RunUpdate::Disconnected => self.reconnect().await,
            RunUpdate::StoreFault(fault) => self.report_fault(fault).await,
        }
    }

    /// Reconnects to the server, or starts it again. A server that shuts down may still accept connections, so one success is
    /// not enough: subscriptions must succeed, too.
    async fn reconnect(&mut self) -> Result<(), CliError> {
        self.view.say("lost the connection to the server; reconnecting");
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            let connected = match self.client.reconnect().await {
                Ok(()) => self.subscribe().await,
                Err(error) => Err(error),
            };
            match connected {
                Err(ClientError::Unreachable(_)) if Instant::now() < deadline => sleep(RECONNECT_DELAY).await,
                Err(error) => return Err(error.into()),
                Ok(()) => break,
            }
        }
        self.view.say("reconnected");
        Ok(())
    }

    /// Reports a failure of the store. Damage of a followed run is an error; damage elsewhere is not.
    async fn report_fault(&self, fault: StoreError) -> Result<(), CliError> {
        if let StoreError::Io(_) = fault {
            return Err(fault.into());
        }
        for root in self.tree.roots() {
            self.client.check(*root).await?;
        }
        let effect = if fault.may_pass() { "retrying" } else { "the affected runs are stopped" };
        self.view.say(&format!("warning: {fault}; {effect}"));
        Ok(())
    }

    /// Prompts for the next approval that the user can decide.
    async fn prompt_next(&mut self) -> Result<Prompted, CliError> {
        for (run, last) in self.tree.unfinished() {
            if self.client.last_event(run).await? != last.seq {
                return Ok(Prompted::Behind);
            }
        }
        if prompt::is_interactive() {
            for approval in self.open_approvals().await? {
                let is_candidate = approval.form.is_none() && !self.postponed.contains(&approval.digest);
                if is_candidate && self.client.may_decide(&approval).await {
                    return self.decide(&approval).await.map(|()| Prompted::Yes);
                }
            }
        }
        Ok(Prompted::No)
    }

    async fn open_approvals(&self) -> Result<Vec<Approval>, CliError> {
        let mut open = Vec::new();
        for root in self.tree.roots() {
            open.extend(self.client.run(*root).await?.approvals.unwrap_or_default());
        }
        Ok(open)
    }

    /// Prompts for an approval and sends the decision. After a rejection the approval is not prompted for again.
    async fn decide(&mut self, approval: &Approval) -> Result<(), CliError> {
        self.view.set_hidden(true);
        let answer = self.read_answer(approval).await;
        self.view.set_hidden(false);
        let approved = match answer? {
            None => return Ok(()),
            Some(GateAnswer::Approve) => true,
            Some(GateAnswer::Deny) => false,
            Some(GateAnswer::Later) => {
                self.postponed.insert(approval.digest.clone());
                return Ok(());
            }
        };
        let mut result = self.client.decide(approval, approved).await;
        if let Err(ClientError::Unreachable(_)) = result {
            // The digest binds the decision, so it can be sent to the restarted server.
            self.reconnect().await?;
            result = self.client.decide(approval, approved).await;
        }
        match result {
            Ok(()) => Ok(()),
            Err(
                error @ (ClientError::Unreachable(_)
                | ClientError::Engine(Error::Storage(_) | Error::Stopped)),
            ) => Err(error.into()),
            Err(error) => {
                let decision = if approved { "approved" } else { "denied" };
                self.view.say(&format!("not {decision}: {}", error.message()));
                self.postponed.insert(approval.digest.clone());
                Ok(())
            }
        }
    }

    /// Reads the answer to a prompt while updates continue above it. Returns `None` if the approval is no longer open.
    async fn read_answer(&mut self, approval: &Approval) -> Result<Option<GateAnswer>, CliError> {
        // The log of a resumed run is not replayed, so the prompt may not be on the screen.
        if self.shown_gates.insert((approval.run_id, approval.step.as_str().into())) {
            self.view.say(&format!("? {}", sanitize(&approval.step)));
        }
        prompt::print_approval(approval)?;
        // A line typed before the prompt is not an answer to it. A read that is still blocked receives the next line.
        prompt::discard_typed_input();
        self.pending_line.take_if(|line| line.is_finished());
        loop {
            prompt::print_gate_prompt(approval)?;
            let line =
                self.pending_line.get_or_insert_with(|| tokio::task::spawn_blocking(prompt::read_line));
            let update = tokio::select! {
                line = line => {
                    self.pending_line = None;
                    let line = line.map_err(|_| CliError::new("cannot read from the terminal"))??;
                    match GateAnswer::parse(&line) {
                        Some(answer) => return Ok(Some(answer)),
                        None => continue,
                    }
                }
                update = self.client.next() => update?,
            };
            prompt::erase_gate_prompt()?;
            self.handle(update).await?;
            if !self.open_approvals().await?.iter().any(|open| open.digest == approval.digest) {
                return Ok(None);
            }
        }
    }
}
