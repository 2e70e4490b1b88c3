//! Commands of users: cancel, pause, resume, resolve, intervene, signal. Decisions at gates are in `gates.rs`.

use serde_json::Value;
use steprail_core::limits::{EVENT_VALUE_BYTES, VALUE_DEPTH};
use steprail_core::plan::{Hash, Kind};
use steprail_core::run::{Input, Intervention, Millis, Phase, Run, RunStatus, is_deeper};
use steprail_store::{DefinitionChange, Principal, RegistryChange, RunId, StoreError, attempt_digest};

use super::gates::actor;
use super::{Command, Done, Kernel, Signal, no_run};
use crate::error::Error;

/// The reply to a command. The outer error rejects the transaction.
pub(super) type Answered<T = ()> = Result<Result<T, Error>, StoreError>;

impl Kernel {
    pub(super) fn command(&mut self, command: &Command, now: Millis, done: &mut Done) -> Answered {
        match command {
            Command::DeleteDefinition { name, expected, owner, by } => {
                let (name, expected, owner, by) = (name.clone(), *expected, owner.clone(), by.clone());
                let change = DefinitionChange::Delete { name, expected, owner, by };
                let deleted = self.commit_definitions(vec![change], now)?;
                Ok(deleted.map(drop))
            }
            Command::AdoptDefinition { name, expected, by } => self.adopt(name, *expected, by, now),
            Command::RejectProposal { name, hash, by } => {
                let (name, hash, by) = (name.clone(), *hash, by.clone());
                let change = DefinitionChange::CloseProposal { name, hash, accepted: false, by };
                Ok(self.commit_definitions(vec![change], now)?.map(drop))
            }
            Command::Unschedule { name, by } => {
                self.unschedule(name, by.clone());
                Ok(Ok(()))
            }
            Command::EndSchedule { schedule, reason } => {
                self.end_schedule((**schedule).clone(), reason, now);
                Ok(Ok(()))
            }
            Command::PutSession(session) => self.register(RegistryChange::PutSession((**session).clone())),
            Command::DropSession { id } => self.register(RegistryChange::DropSession(id.clone())),
            Command::PutAccount(account, by) => {
                self.register(RegistryChange::PutAccount((**account).clone(), by.clone()))
            }
            Command::DropAccount { kind, id, by } => {
                self.register(RegistryChange::DropAccount(*kind, id.clone(), by.clone()))
            }
            Command::Record(actions) => {
                self.batch.commit.admin.extend(actions.iter().cloned());
                Ok(Ok(()))
            }
            Command::Outbox(changes) => {
                self.batch.commit.outbox.extend(changes.iter().cloned());
                Ok(Ok(()))
            }
            Command::Policy(change) => {
                self.change_policy(change.clone());
                Ok(Ok(()))
            }
            Command::Sync => Ok(Ok(())),
            Command::Check(run) => Ok(self.find_status(*run)?.map(drop)),
            Command::Decide { run, path, by, decision } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                self.decide_gate(key, path, by, decision, now, done)
            }
            Command::MayDecide { run, path, by } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                Ok(self.may_decide_at(key, path, by))
            }
            Command::Cancel { run, by, reason } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                // Only the first cancellation has an effect.
                if self.runs.get(&key).is_some_and(|entry| entry.run.is_cancelling()) {
                    return Ok(Ok(()));
                }
                let input = Input::Cancel { by: Some(by.as_str().into()), reason: reason.as_str().into() };
                self.act(*run, input, "cancelled", now, done)
            }
            Command::Pause { run, by } => {
                let input = Input::Pause { by: by.id.as_str().into(), agent: by.agent };
                self.act(*run, input, "paused", now, done)
            }
            Command::Resume { run, by, force, expected_hash, strict } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                if by.agent && self.runs.get(&key).is_some_and(|entry| entry.run.is_paused_by_person()) {
                    let message = "a person paused the run, and an agent cannot resume it; ask a human";
                    return Ok(Err(Error::Denied(message.to_owned())));
                }
                if let Some(error) = self.cannot_resume(key, force, *expected_hash, *strict) {
                    return Ok(Err(error));
                }
                let force = force.iter().map(|path| path.as_str().into()).collect();
                self.act(*run, Input::Resume { by: by.id.as_str().into(), force }, "resumed", now, done)
            }
            Command::Resolve { run, path, resolution, digest, by } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                let step = self.runs.get(&key).and_then(|entry| entry.run.find(path));
                let Some((n, live)) = step.filter(|(_, live)| live.phase == Phase::Uncertain) else {
                    return Ok(Err(Error::Conflict(format!(
                        "step `{path}` has no call with an unknown outcome"
                    ))));
                };
                if digest.is_some_and(|digest| digest != attempt_digest(*run, path, live.attempt)) {
                    let message = format!("step `{path}` has started another attempt; read it again");
                    return Ok(Err(Error::Conflict(message)));
                }
                if by.agent {
                    let message = "an agent cannot resolve a call with an unknown outcome; ask a human";
                    return Ok(Err(Error::Denied(message.to_owned())));
                }
                if let Err(error) = self.require_presence_of(None, by) {
                    return Ok(Err(error));
                }
                let input = Input::Resolve { n, resolution: resolution.clone(), by: actor(by) };
                self.act(*run, input, "resolved", now, done)
            }
            Command::Intervene { run, intervention, by } => self.intervene(*run, intervention, by, now, done),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a command")]
    fn register(&mut self, change: RegistryChange) -> Answered {
        self.batch.commit.registry.push(change);
        Ok(Ok(()))
    }

    /// Loads a run, if it exists.
    pub(super) fn find(&mut self, run: RunId) -> Result<Option<RunId>, StoreError> {
        if let Some(damage) = self.damaged.get(&run) {
            return Err(damage.clone());
        }
        if !self.load(run)? {
            return Ok(None);
        }
        self.touched.insert(run);
        Ok(Some(run))
    }

    /// Applies the input of a command to a run. If it has no effect, the reply is an error with the status of the run.
    fn act(&mut self, run: RunId, input: Input, what: &str, now: Millis, done: &mut Done) -> Answered {
        let Some(key) = self.find(run)? else { return Ok(Err(no_run(run))) };
        if self.input(key, input, now, done)? {
            return Ok(Ok(()));
        }
        let state = match self.runs.get(&key).map(|entry| &entry.run) {
            Some(state) if state.is_cancelling() => "being cancelled",
            state => state.map_or(RunStatus::Pending, Run::status).name(),
        };
        Ok(Err(Error::Conflict(format!("run {run} is {state} and cannot be {what}"))))
    }

    fn cannot_resume(
        &self,
        key: RunId,
        force: &[String],
        expected: Option<Hash>,
        strict: bool,
    ) -> Option<Error> {
        let entry = self.runs.get(&key)?;
        let hash = entry.compiled.plan.hash;
        if expected.is_some_and(|expected| expected != hash) {
            return Some(Error::Conflict(format!(
                "the definition of the run has the hash {hash}, not the expected one"
            )));
        }
        let unknown = entry.run.calls().map(|(_, live)| &*live.path);
        let unknown: Vec<&str> = unknown.filter(|path| !force.iter().any(|forced| forced == path)).collect();
        if strict && entry.run.status() == RunStatus::Interrupted && !unknown.is_empty() {
            let message = format!(
                "the outcome of {} is unknown; name them in `force_steps` to call again, or resume without `strict`",
                unknown.join(", ")
            );
            return Some(Error::Conflict(message));
        }
        None
    }

    fn intervene(
        &mut self,
        run: RunId,
        intervention: &Intervention,
        by: &Principal,
        now: Millis,
        done: &mut Done,
    ) -> Answered {
        let Some(key) = self.find(run)? else { return Ok(Err(no_run(run))) };
        if by.agent {
            return Ok(Err(Error::Denied("an agent cannot intervene in a run".to_owned())));
        }
        if let Some(error) = self.cannot_intervene(key, intervention) {
            return Ok(Err(error));
        }
        if let Err(error) = self.require_presence_of(None, by) {
            return Ok(Err(error));
        }
        if let Some(error) = self.passes_gates(key, intervention, by)? {
            return Ok(Err(error));
        }
        let input = Input::Intervene { intervention: intervention.clone(), by: actor(by) };
        self.act(run, input, "changed", now, done)
    }

    fn cannot_intervene(&self, key: RunId, intervention: &Intervention) -> Option<Error> {
        let entry = self.runs.get(&key)?;
        let bad = |message: String| Some(Error::BadInput(message));
        match intervention {
            Intervention::SetArguments { args, .. } if !args.is_object() => {
                bad("arguments must be a map".to_owned())
            }
            Intervention::SetArguments { path, args } => {
                if let Some(problem) = size_error("a set of arguments", args) {
                    return Some(problem);
                }
                let id = path.rsplit('.').next().unwrap_or(path).split(['#', '[']).next().unwrap_or(path);
                let known = entry.compiled.plan.find(id);
                let is_call =
                    known.is_some_and(|step| matches!(entry.compiled.plan.step(step).kind, Kind::Call(_)));
                // A tool with an open input request has already been called with its arguments, and a confirmation of a
                // changed tool is about these arguments.
                let calling = entry
                    .run
                    .find(path)
                    .is_some_and(|(_, live)| live.phase == Phase::Calling || live.input_response.is_some());
                match (is_call, calling) {
                    (false, _) => bad(format!("step `{path}` takes no arguments")),
                    (_, true) => Some(Error::Conflict(format!("step `{path}` is already running"))),
                    _ => None,
                }
            }
            Intervention::SetValue(edit) => match &edit.id {
                _ if size_error("a value", &edit.value).is_some() => size_error("a value", &edit.value),
                None if !edit.value.is_object() => bad("inputs must be a map".to_owned()),
                Some(id) if entry.compiled.plan.find(id).is_none() => bad(format!("there is no step `{id}`")),
                _ => None,
            },
            Intervention::Skip { path } | Intervention::SupplyResult { path, .. } => {
                match entry.run.find(path) {
                    Some(_) => None,
                    None => Some(Error::Conflict(format!("step `{path}` is not in progress"))),
                }
            }
        }
    }

    pub(super) fn signal(&mut self, signal: &Signal, now: Millis, done: &mut Done) -> Answered<usize> {
        let Signal { event, payload, run } = signal;
        if let Some(problem) = size_error("an event", payload) {
            return Ok(Err(problem));
        }
        let input = |keep| Input::Signalled { event: event.as_str().into(), payload: payload.clone(), keep };
        if let Some(run) = run {
            return Ok(self.act(*run, input(true), "signalled", now, done)?.map(|()| 1));
        }
        let mut reached = 0;
        let mut runs: Vec<RunId> = self.batch.waiting(event)?.into_iter().map(|(run, _)| run).collect();
        runs.dedup();
        for run in runs {
            reached += usize::from(self.input(run, input(false), now, done)?);
            self.deliver_messages(now, done)?;
        }
        Ok(Ok(reached))
    }
}

/// The error for a value that is too large or too deep for the log.
pub(super) fn size_error(what: &str, value: &Value) -> Option<Error> {
    if is_deeper(value, VALUE_DEPTH) {
        return Some(Error::BadInput(format!("{what} can have at most {VALUE_DEPTH} nested lists and maps")));
    }
    let bytes = value.to_string().len();
    (bytes > EVENT_VALUE_BYTES).then(|| {
        Error::BadInput(format!("{what} can have at most {EVENT_VALUE_BYTES} bytes here, not {bytes}"))
    })
}
