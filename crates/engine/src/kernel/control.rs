//! Commands of people: decide at gates, cancel, pause, resume, resolve, intervene, signal.

use serde_json::Value;
use steprail_core::limits::{NOTE_BYTES, VALUE_DEPTH};
use steprail_core::plan::{Hash, Kind};
use steprail_core::run::{Input, Intervention, Live, Millis, Phase, Run, RunStatus, is_deeper};
use steprail_store::{DefinitionChange, Principal, RegistryChange, RunId, StoreError, attempt_digest};

use super::{Command, Done, Kernel, Signal, no_run};
use crate::error::Error;

/// An answer within a transaction.
type Answered<T = ()> = Result<Result<T, Error>, StoreError>;

impl Kernel {
    pub(super) fn command(&mut self, command: &Command, now: Millis, done: &mut Done) -> Answered {
        match command {
            Command::DeleteDefinition { name, expected, owner, by } => {
                let (name, expected, owner, by) = (name.clone(), *expected, owner.clone(), by.clone());
                let deleted =
                    self.commit_definition(DefinitionChange::Delete { name, expected, owner, by }, now)?;
                Ok(deleted.map(drop))
            }
            Command::Unschedule { name, by } => {
                self.unschedule(name, by.clone());
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
            Command::Sync => Ok(Ok(())),
            Command::Check(run) => Ok(self.find_status(*run)?.map(drop)),
            Command::Decide { run, path, approved, by, reason, digest, answer } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                self.decide_gate(
                    key,
                    &Decision {
                        path,
                        approved: *approved,
                        by,
                        reason: reason.as_deref(),
                        digest: *digest,
                        answer: answer.as_ref(),
                    },
                    now,
                    done,
                )
            }
            Command::MayDecide { run, path, by } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                let Some(entry) = self.runs.get(&key) else { return Ok(Err(no_run(*run))) };
                let open = entry.run.find(path).filter(|(_, live)| matches!(live.phase, Phase::Gate { .. }));
                let Some((_, live)) = open else {
                    return Ok(Err(Error::NotFound(format!("`{path}` of run {run} asks nobody"))));
                };
                if answers_own_call(live, &entry.head.principal, by) {
                    return Ok(Ok(()));
                }
                let kind = &entry.compiled.plan.step(live.step).kind;
                Ok(may_decide(kind, &entry.head.principal, by))
            }
            Command::Cancel { run, by, reason } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                // The first cancellation counts.
                if self.runs.get(&key).is_some_and(|entry| entry.run.is_cancelling()) {
                    return Ok(Ok(()));
                }
                let input = Input::Cancel { by: Some(by.as_str().into()), reason: reason.as_str().into() };
                self.act(*run, input, "cancelled", now, done)
            }
            Command::Pause { run, by } => {
                self.act(*run, Input::Pause { by: by.as_str().into() }, "paused", now, done)
            }
            Command::Resume { run, by, force, expected_hash, strict } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                if let Some(error) = self.cannot_resume(key, force, *expected_hash, *strict) {
                    return Ok(Err(error));
                }
                let force = force.iter().map(|path| path.as_str().into()).collect();
                self.act(*run, Input::Resume { by: by.as_str().into(), force }, "resumed", now, done)
            }
            Command::Resolve { run, path, resolution, digest, by } => {
                let Some(key) = self.find(*run)? else { return Ok(Err(no_run(*run))) };
                let step = self.runs.get(&key).and_then(|entry| entry.run.find(path));
                let Some((n, live)) = step.filter(|(_, live)| live.phase == Phase::Uncertain) else {
                    return Ok(Err(Error::Conflict(format!("the outcome of `{path}` is not unknown"))));
                };
                if digest.is_some_and(|digest| digest != attempt_digest(*run, path, live.attempt)) {
                    let message = format!("`{path}` was attempted again since; look at it anew");
                    return Ok(Err(Error::Conflict(message)));
                }
                if by.agent {
                    return Ok(Err(Error::Denied("an agent cannot say what became of a call".to_owned())));
                }
                let input = Input::Resolve { n, resolution: resolution.clone(), by: by.id.as_str().into() };
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
    fn find(&mut self, run: RunId) -> Result<Option<RunId>, StoreError> {
        if let Some(damage) = self.damaged.get(&run) {
            return Err(damage.clone());
        }
        if !self.load(run)? {
            return Ok(None);
        }
        self.touched.insert(run);
        Ok(Some(run))
    }

    /// Gives a run an input that somebody asked for. If nothing comes of it, the answer says how things stand.
    fn act(&mut self, run: RunId, input: Input, what: &str, now: Millis, done: &mut Done) -> Answered {
        let Some(key) = self.find(run)? else { return Ok(Err(no_run(run))) };
        if self.input(key, input, now, done)? {
            return Ok(Ok(()));
        }
        let state = match self.runs.get(&key).map(|entry| &entry.run) {
            Some(state) if state.is_cancelling() => "being cancelled",
            state => state.map_or(RunStatus::Pending, Run::status).word(),
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
                "the run is pinned to the definition {hash}, not to that one"
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

    fn decide_gate(&mut self, key: RunId, decision: &Decision<'_>, now: Millis, done: &mut Done) -> Answered {
        let Some(entry) = self.runs.get(&key) else { return Ok(Ok(())) };
        let run = entry.head.id;
        let open = entry.run.find(decision.path).filter(|(_, live)| matches!(live.phase, Phase::Gate { .. }));
        let Some((n, live)) = open else { return self.already_decided(key, run, decision) };
        let kind = &entry.compiled.plan.step(live.step).kind;
        if !answers_own_call(live, &entry.head.principal, decision.by)
            && let Err(error) = may_decide(kind, &entry.head.principal, decision.by)
        {
            return Ok(Err(error));
        }
        if decision.approved
            && decision.answer.is_none()
            && live.input_response.as_ref().is_some_and(|asked| !asked.is_call_confirmation())
        {
            let message = format!("the tool of `{}` asks something: a yes alone is no answer", decision.path);
            return Ok(Err(Error::BadInput(message)));
        }
        let input = Input::Decided {
            n,
            approved: decision.approved,
            by: decision.by.id.as_str().into(),
            reason: decision.reason.map(Into::into),
            digest: decision.digest,
            answer: decision.answer.cloned(),
        };
        if let Some(error) = decision.answer.and_then(|answer| too_much("an answer", answer)) {
            return Ok(Err(error));
        }
        if self.input(key, input, now, done)? {
            return Ok(Ok(()));
        }
        let message = "what you saw has changed since, or the time to answer is up; look again";
        Ok(Err(Error::Conflict(message.to_owned())))
    }

    /// The gate is closed: the same decision again is no error, another one is told who decided.
    fn already_decided(&mut self, key: RunId, run: RunId, decision: &Decision<'_>) -> Answered {
        let path = decision.path;
        let Some(approval) = self.batch.approval(key, path)? else {
            return Ok(Err(Error::NotFound(format!("`{path}` of run {run} asks nobody"))));
        };
        let same = approval.decided_by.as_deref() == Some(&decision.by.id)
            && approval.status == if decision.approved { "approved" } else { "denied" };
        // The same decision on something else is another decision.
        if same && decision.digest.is_none_or(|seen| seen == approval.digest) {
            return Ok(Ok(()));
        }
        let by = approval.decided_by.map(|by| format!(" by {by}")).unwrap_or_default();
        Ok(Err(Error::Conflict(format!("`{path}` was already {}{by}", approval.status))))
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
        if let Some(error) = self.passes_gate(key, intervention, by)? {
            return Ok(Err(error));
        }
        let input = Input::Intervene { intervention: intervention.clone(), by: by.id.as_str().into() };
        self.act(run, input, "changed", now, done)
    }

    fn cannot_intervene(&self, key: RunId, intervention: &Intervention) -> Option<Error> {
        let entry = self.runs.get(&key)?;
        let bad = |message: String| Some(Error::BadInput(message));
        match intervention {
            Intervention::SetArguments { args, .. } if !args.is_object() => {
                bad("arguments are a map".to_owned())
            }
            Intervention::SetArguments { path, args } => {
                if let Some(problem) = too_much("a set of arguments", args) {
                    return Some(problem);
                }
                let id = path.rsplit('.').next().unwrap_or(path).split(['#', '[']).next().unwrap_or(path);
                let known = entry.compiled.plan.find(id);
                let is_call =
                    known.is_some_and(|step| matches!(entry.compiled.plan.step(step).kind, Kind::Call(_)));
                // A tool that asks something has been called with the arguments that it has.
                let calling = entry.run.find(path).is_some_and(|(_, live)| {
                    let asks =
                        live.input_response.as_ref().is_some_and(|asked| !asked.is_call_confirmation());
                    live.phase == Phase::Calling || asks
                });
                match (is_call, calling) {
                    (false, _) => bad(format!("`{path}` is no step with arguments")),
                    (_, true) => Some(Error::Conflict(format!("`{path}` is running already"))),
                    _ => None,
                }
            }
            Intervention::SetValue(edit) => match &edit.id {
                _ if too_much("a value", &edit.value).is_some() => too_much("a value", &edit.value),
                None if !edit.value.is_object() => bad("inputs are a map".to_owned()),
                Some(id) if entry.compiled.plan.find(id).is_none() => bad(format!("there is no step `{id}`")),
                _ => None,
            },
            Intervention::Skip { path } | Intervention::SupplyResult { path, .. } => {
                match entry.run.find(path) {
                    Some(_) => None,
                    None => Some(Error::Conflict(format!("`{path}` is not under way"))),
                }
            }
        }
    }

    /// To skip a gate or to supply its answer is to decide: whoever may not do the one may not do the other. So
    /// it is with what holds gates, and with the answer that a gate has given.
    fn passes_gate(
        &mut self,
        key: RunId,
        intervention: &Intervention,
        by: &Principal,
    ) -> Result<Option<Error>, StoreError> {
        let Some(entry) = self.runs.get(&key) else { return Ok(None) };
        match intervention {
            Intervention::Skip { path } | Intervention::SupplyResult { path, .. } => {
                let target = entry.run.find(path).map(|(n, _)| n);
                self.holds_gate(key, target, by)
            }
            Intervention::SetValue(edit) => {
                let plan = &entry.compiled.plan;
                let step = edit.id.as_ref().and_then(|id| plan.find(id)).map(|step| &plan.step(step).kind);
                let gate = step.filter(|kind| matches!(kind, Kind::Approve(_)));
                Ok(gate.and_then(|kind| may_decide(kind, &entry.head.principal, by).err()))
            }
            Intervention::SetArguments { .. } => Ok(None),
        }
    }

    /// Whether a step execution, or the whole run, holds a gate at which somebody may not decide.
    fn holds_gate(
        &mut self,
        key: RunId,
        target: Option<u32>,
        by: &Principal,
    ) -> Result<Option<Error>, StoreError> {
        let Some(entry) = self.runs.get(&key) else { return Ok(None) };
        let plan = &entry.compiled.plan;
        let executions = match target {
            Some(target) => entry.run.within(target),
            None => entry.run.live().iter().map(|(n, live)| (*n, live)).collect(),
        };
        let mut children = Vec::new();
        for (_, live) in executions {
            match &live.phase {
                Phase::Gate { .. } => {
                    if let Err(error) = may_decide(&plan.step(live.step).kind, &entry.head.principal, by) {
                        return Ok(Some(error));
                    }
                }
                Phase::Child { run } => children.extend(run.parse::<RunId>()),
                _ => {}
            }
        }
        for child in children {
            if let Some(child) = self.find(child)?
                && let Some(error) = self.holds_gate(child, None, by)?
            {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    pub(super) fn signal(&mut self, signal: &Signal, now: Millis, done: &mut Done) -> Answered<usize> {
        let Signal { event, payload, run } = signal;
        if let Some(problem) = too_much("an event", payload) {
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

/// A decision at a gate.
struct Decision<'d> {
    path: &'d str,
    approved: bool,
    by: &'d Principal,
    reason: Option<&'d str>,
    digest: Option<Hash>,
    answer: Option<&'d Value>,
}

/// Whether the client of a relayed call answers what the tool of that call asks it. It decides nothing else.
fn answers_own_call(live: &Live, starter: &Principal, by: &Principal) -> bool {
    let asks = live.input_response.as_ref().is_some_and(|asked| !asked.is_call_confirmation());
    asks && starter.relay.is_some() && by.relay.is_some() && starter.id == by.id
}

/// Who may decide: never an agent, not the one who started the run unless the gate allows it, and only those
/// whom the gate names.
fn may_decide(kind: &Kind, starter: &Principal, by: &Principal) -> Result<(), Error> {
    let (allow_self, approvers): (bool, &[Box<str>]) = match kind {
        Kind::Approve(approve) => (approve.allow_self, &approve.approvers),
        _ => (false, &[]),
    };
    if by.agent || by.relay.is_some() {
        return Err(Error::Denied("an agent cannot decide at a gate; ask a human".to_owned()));
    }
    if !approvers.is_empty() && !approvers.iter().any(|approver| by.goes_by(approver)) {
        return Err(Error::Denied(format!(
            "{} is not among those who may decide: {}",
            by.id,
            approvers.join(", ")
        )));
    }
    // In `single` mode there is no other approver, so the owner may decide.
    if by.id == starter.id && !allow_self && !by.alone {
        return Err(Error::Denied(format!("{} started the run and cannot decide at its gates", by.id)));
    }
    Ok(())
}

/// Checks the size of a value that is stored in the log.
fn too_much(what: &str, value: &Value) -> Option<Error> {
    if is_deeper(value, VALUE_DEPTH) {
        return Some(Error::BadInput(format!(
            "{what} has at most {VALUE_DEPTH} lists and maps inside one another"
        )));
    }
    let bytes = value.to_string().len();
    (bytes > NOTE_BYTES)
        .then(|| Error::BadInput(format!("{what} has at most {NOTE_BYTES} bytes here, not {bytes}")))
}
