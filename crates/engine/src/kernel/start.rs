//! Starting runs.

use serde_json::Value;
use steprail_core::budget::Budget;
use steprail_core::limits::VALUE_DEPTH;
use steprail_core::plan::Plan;
use steprail_core::run::{Event, Input, Millis, Parent, Payload, Phase, Record, Run, RunStatus, is_deeper};
use steprail_core::spec::head::OnRestart;
use steprail_store::{
    Actor, Definition, DefinitionQuery, Expected, Head, NewRun, Origin, Principal, Rerun, RunId, RunState,
    StoreError, TokenScope, Wanted, new_run_facts,
};

use std::sync::Arc;

use super::cache::Hashes;
use super::request::RunSource;
use super::sub_workflows::check_authorship;
use super::world::Spawned;
use super::{Compiled, Define, Entry, Kernel, StartRun, no_run};
use crate::error::Error;
use crate::trace::RunTrace;

/// Fills in defaults and checks the inputs of a run. Callers do this before they send a start; the kernel does it for
/// schedules and reruns.
pub(crate) fn check_inputs(plan: &Plan, given: &Value) -> Result<Payload, Error> {
    if is_deeper(given, VALUE_DEPTH) {
        let message = format!("the inputs have more than {VALUE_DEPTH} nested lists and maps");
        return Err(Error::BadInput(message));
    }
    let inputs = plan.check_inputs(given, &mut Budget::check(given)).map_err(Error::BadInput)?;
    let inputs = Payload::new(inputs);
    match inputs.fits() {
        Ok(()) => Ok(inputs),
        Err(problem) => Err(Error::BadInput(format!("the inputs are too large: {}", problem.message))),
    }
}

/// A run that is about to be created.
struct RunSeed<'b> {
    id: RunId,
    compiled: Arc<Compiled>,
    principal: &'b Principal,
    inputs: &'b Payload,
    parent: Option<(RunId, Parent)>,
    rerun: Option<Rerun>,
    rerun_of: Option<RunId>,
    request_key: Option<&'b str>,
}

impl Kernel {
    pub(super) fn start(
        &mut self,
        start: &StartRun,
        now: Millis,
    ) -> Result<Result<RunId, Error>, StoreError> {
        if let Some(exceeded) = self.exceeded_quota(start, now)? {
            return Ok(Err(exceeded));
        }
        let (compiled, rerun, rerun_of, inputs) = match self.find_workflow(start, now)? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = check_authorship(&*self.authorizer, &compiled, &start.principal.id) {
            return Ok(Err(error));
        }
        let checked = match &start.workflow {
            RunSource::Checked { inputs, .. } | RunSource::Inline { inputs, .. } => Ok(inputs.clone()),
            RunSource::Named { .. } | RunSource::Rerun { .. } => {
                check_inputs(&compiled.plan, inputs.as_ref().unwrap_or(&start.inputs))
            }
        };
        let inputs = match checked {
            Ok(inputs) => inputs,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(key) = &start.request_key
            && let Some(before) = self.batch.request(&start.principal.id, key)?
        {
            return self.started_before(before, start, key, &compiled, &inputs);
        }
        let mut principal = self.with_origin(start)?;
        principal.add_author(&compiled.author);
        let seed = RunSeed {
            id: start.id,
            compiled,
            principal: &principal,
            inputs: &inputs,
            parent: None,
            rerun,
            rerun_of,
            request_key: start.request_key.as_deref(),
        };
        self.begin(seed, now);
        Ok(Ok(start.id))
    }

    /// The principal of a new run, with what the run is. A repeated run is what the first one was.
    fn with_origin(&mut self, start: &StartRun) -> Result<Principal, StoreError> {
        let origin = match &start.workflow {
            RunSource::Named { .. } | RunSource::Checked { .. } => None,
            RunSource::Inline { .. } => Some(start.principal.origin.unwrap_or(Origin::Inline)),
            RunSource::Rerun { of, .. } => self.find_head(*of)?.and_then(|head| head.principal.origin),
        };
        Ok(Principal { origin, ..start.principal.clone() })
    }

    /// Handles a repeated request key: returns the earlier run, or an error if the request differs.
    fn started_before(
        &mut self,
        run: RunId,
        start: &StartRun,
        key: &str,
        compiled: &Compiled,
        inputs: &Payload,
    ) -> Result<Result<RunId, Error>, StoreError> {
        let Some(head) = self.find_head(run)? else { return Ok(Err(no_run(run))) };
        // The caller gets the result of the run, so a scoped token gets only a run within its scope.
        let contains =
            |scope: &TokenScope| head.principal.scope.as_ref().is_some_and(|of| scope.contains(of));
        if start.principal.scope.as_ref().is_some_and(|scope| !contains(scope)) {
            let message = format!(
                "the request key `{key}` belongs to a run outside the scope of this token; use another key"
            );
            return Ok(Err(Error::Conflict(message)));
        }
        let same_hash = self.compiled(head.definition)?.plan.hash == compiled.plan.hash;
        let before = match self.runs.get(&run).and_then(|entry| entry.new.as_ref()) {
            Some(new) => new.inputs.clone(),
            None => self.batch.value(run, Wanted::Inputs)?,
        };
        if same_hash && before == *inputs {
            return Ok(Ok(run));
        }
        let message = format!(
            "the request key `{key}` belongs to run {run}, which was started with another definition or other inputs"
        );
        Ok(Err(Error::Conflict(message)))
    }

    #[expect(clippy::type_complexity, reason = "named where it is used")]
    fn find_workflow(
        &mut self,
        start: &StartRun,
        now: Millis,
    ) -> Result<Result<(Arc<Compiled>, Option<Rerun>, Option<RunId>, Option<Value>), Error>, StoreError> {
        match &start.workflow {
            RunSource::Named { name, version } => Ok(match self.find_definition(name, *version)? {
                Ok(definition) => Ok((self.plans.of(&definition)?, None, None, None)),
                Err(error) => Err(error),
            }),
            RunSource::Checked { name, version, compiled, .. } => {
                Ok(self.find_definition(name, *version)?.and_then(|definition| {
                    if definition.id != compiled.id || !compiled.is(&definition) {
                        return Err(Error::VersionConflict(format!("definition `{name}` has changed")));
                    }
                    Ok((self.plans.share(compiled), None, None, None))
                }))
            }
            RunSource::Inline { spec, plan, .. } => {
                let define = Define {
                    spec: spec.clone(),
                    plan: plan.clone(),
                    by: Actor::from(&start.principal),
                    expected: Expected::Any,
                    owner: None,
                    propose: false,
                    accepts: None,
                };
                let stored = self.store_definition(&define, true, now)?;
                Ok(stored.map(|compiled| (compiled, None, None, None)))
            }
            RunSource::Rerun { of, reuse_except } => {
                let Some(head) = self.find_head(*of)? else { return Ok(Err(no_run(*of))) };
                let status = head.state.status;
                if !status.is_terminal() {
                    let message =
                        format!("run {of} is {}; only a run that has ended can be repeated", status.name());
                    return Ok(Err(Error::Conflict(message)));
                }
                let inputs = self.started_with(*of)?;
                let rerun = reuse_except.as_ref().map(|except| Rerun { of: *of, except: except.clone() });
                Ok(Ok((self.compiled(head.definition)?, rerun, Some(*of), Some(inputs))))
            }
        }
    }

    pub(super) fn find_definition(
        &mut self,
        name: &str,
        version: Option<u32>,
    ) -> Result<Result<Definition, Error>, StoreError> {
        let which = match version {
            Some(version) => DefinitionQuery::Version(name, version),
            None => DefinitionQuery::Newest(name),
        };
        let definition = match self.batch.definition(which) {
            // The other requests of the batch, and other schedules, are not affected.
            Err(error @ StoreError::Corrupt(_)) => return Ok(Err(Error::Storage(error))),
            found => found?,
        };
        Ok(definition.ok_or_else(|| {
            let what = version.map(|version| format!("version {version} of ")).unwrap_or_default();
            Error::NotFound(format!("there is no {what}definition `{name}`"))
        }))
    }

    /// The inputs of an earlier run, compared with its log. So is its row, which names the definition.
    fn started_with(&mut self, run: RunId) -> Result<Value, StoreError> {
        let inputs = self.batch.value(run, Wanted::Inputs)?;
        match self.batch.log(run)?.first().map(|first| &first.event) {
            Some(Event::RunStarted { inputs: hash, .. }) if *hash == inputs.hash() => {
                Ok(inputs.value().clone())
            }
            _ => Err(StoreError::Corrupt(format!("the inputs of run {run} were changed"))),
        }
    }

    pub(super) fn begin_child(&mut self, parent: RunId, child: Spawned, now: Millis) {
        let Some(entry) = self.runs.get(&parent) else { return };
        // The decision that requested the run may have cancelled the step again.
        let live = entry.run.live().get(&child.step.n);
        if !live.is_some_and(|live| matches!(live.phase, Phase::Child { .. })) {
            return;
        }
        // The child run continues the trace of the step that waits for it.
        let starter = &entry.head.principal;
        let trace = RunTrace::new(entry.head.id, starter.trace.as_deref()).step(child.step.n);
        let mut principal = Principal { trace: Some(trace.to_string()), origin: None, ..(**starter).clone() };
        principal.add_author(&child.compiled.author);
        if let Some(allowed) = &entry.compiled.plan.settings.allowed_tools {
            principal.add_within(allowed.iter().map(ToString::to_string));
        }
        let of = Parent {
            run: entry.head.id.to_string().into(),
            n: child.step.n,
            attempt: child.step.attempt,
            depth: entry.head.depth + 1,
        };
        let seed = RunSeed {
            id: child.id,
            compiled: child.compiled,
            principal: &principal,
            inputs: &child.inputs,
            parent: Some((parent, of)),
            rerun: None,
            rerun_of: None,
            request_key: None,
        };
        self.begin(seed, now);
    }

    /// Creates a run. Its first event is committed with its first decision.
    fn begin(&mut self, seed: RunSeed<'_>, now: Millis) {
        let plan = &seed.compiled.plan;
        let principal = Arc::new(seed.principal.clone());
        let new = NewRun {
            definition: seed.compiled.id,
            principal: principal.clone(),
            inputs: seed.inputs.clone(),
            parent: seed.parent.clone(),
            rerun: seed.rerun.clone(),
            interruptible: plan.settings.on_restart == OnRestart::Interrupt,
            request_key: seed.request_key.map(ToOwned::to_owned),
        };
        let started = Event::RunStarted {
            definition: plan.name.clone(),
            version: seed.compiled.version,
            hash: plan.hash,
            by: seed.principal.id.as_str().into(),
            inputs: seed.inputs.hash(),
            parent: seed.parent.as_ref().map(|(_, parent)| parent.clone()),
            rerun_of: seed.rerun_of.map(|of| of.to_string().into()),
            facts: new_run_facts(&new).ok(),
        };
        let mut run = Run::default();
        run.apply(plan, &started);
        let parent = seed.parent.as_ref();
        let head = Head {
            id: seed.id,
            definition: seed.compiled.id,
            principal,
            parent: parent.map(|(run, step)| (*run, step.n, step.attempt)),
            depth: parent.map_or(0, |(_, step)| step.depth),
            rerun: seed.rerun.clone(),
            state: RunState { status: RunStatus::Pending, active: false },
            stored_bytes: self.quotas.started(&seed.principal.id, parent.is_some(), seed.inputs, now),
        };
        self.values.put(seed.id, Wanted::Inputs, seed.inputs.clone());
        self.touched.insert(seed.id);
        self.children += usize::from(seed.parent.is_some());
        let entry = Entry {
            head,
            run,
            hashes: Hashes::of_run(seed.inputs.hash()),
            compiled: seed.compiled,
            reusable: None,
            new: Some(Box::new(new)),
            unwritten: vec![Record::plain(started)],
            parked: false,
        };
        self.runs.insert(seed.id, entry);
        self.messages.push_back((seed.id, Input::Continue));
    }

    pub(super) fn compiled(&mut self, definition: i64) -> Result<Arc<Compiled>, StoreError> {
        self.plans.get(&mut self.batch, definition)
    }
}
