//! Starting runs.

use steprail_core::limits::VALUE_DEPTH;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Input, Millis, Parent, Payload, Phase, Record, Run, RunStatus, is_deeper};
use steprail_core::spec::head::OnRestart;
use steprail_store::{Head, NewRun, Principal, Rerun, RunId, RunKey, StoreError, Wanted};

use std::sync::Arc;

use super::cache::Hashes;
use super::request::RunSource;
use super::world::Spawned;
use super::{Compiled, Entry, Kernel, StartRun, no_run};
use crate::error::Error;
use crate::trace::RunTrace;

/// A run that is about to be created.
struct RunSeed<'b> {
    id: RunId,
    compiled: Arc<Compiled>,
    principal: &'b Principal,
    inputs: &'b Payload,
    parent: Option<(RunKey, Parent)>,
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
        let (compiled, rerun, rerun_of, inputs) = match self.find_workflow(start, now)? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let inputs = inputs.as_ref().unwrap_or(&start.inputs);
        if is_deeper(inputs, VALUE_DEPTH) {
            let message =
                format!("the inputs have more than {VALUE_DEPTH} lists and maps inside one another");
            return Ok(Err(Error::BadInput(message)));
        }
        let inputs = match compiled.check_inputs(inputs) {
            Ok(inputs) => Payload::new(inputs),
            Err(problem) => return Ok(Err(Error::BadInput(problem))),
        };
        if let Err(problem) = inputs.fits() {
            return Ok(Err(Error::BadInput(format!("the inputs are too large: {}", problem.message))));
        }
        if let Some(key) = &start.request_key
            && let Some(before) = self.store.find_request(&start.principal.id, key)?
        {
            return self.started_before(before, key, &compiled, &inputs);
        }
        let seed = RunSeed {
            id: start.id,
            compiled,
            principal: &start.principal,
            inputs: &inputs,
            parent: None,
            rerun,
            rerun_of,
            request_key: start.request_key.as_deref(),
        };
        self.begin(&seed, now)?;
        Ok(Ok(start.id))
    }

    /// A start that was made before: the same run, unless it asks for something else under the same key.
    fn started_before(
        &mut self,
        run: RunId,
        key: &str,
        compiled: &Compiled,
        inputs: &Payload,
    ) -> Result<Result<RunId, Error>, StoreError> {
        let Some(found) = self.store.find_run(run)? else { return Ok(Err(no_run(run))) };
        let definition = self.store.head(found)?.definition;
        let same_hash = self.compiled(definition)?.plan.hash == compiled.plan.hash;
        if same_hash && self.store.payload(found, Wanted::Inputs)? == *inputs {
            return Ok(Ok(run));
        }
        let message =
            format!("the request key `{key}` belongs to run {run}, which was started with something else");
        Ok(Err(Error::Conflict(message)))
    }

    #[expect(clippy::type_complexity, reason = "named where it is used")]
    fn find_workflow(
        &mut self,
        start: &StartRun,
        now: Millis,
    ) -> Result<
        Result<(Arc<Compiled>, Option<Rerun>, Option<RunId>, Option<serde_json::Value>), Error>,
        StoreError,
    > {
        match &start.workflow {
            RunSource::Named { name, version } => {
                let Some(definition) = self.store.find_definition(name, *version)? else {
                    let what = version.map(|version| format!("version {version} of ")).unwrap_or_default();
                    return Ok(Err(Error::NotFound(format!("there is no {what}definition `{name}`"))));
                };
                Ok(Ok((self.compiled(definition)?, None, None, None)))
            }
            RunSource::Inline { spec, source } => {
                match self.define(spec, source, &start.principal.id, true, now)? {
                    Ok(defined) => Ok(Ok((self.compiled(defined.id)?, None, None, None))),
                    Err(error) => Ok(Err(error)),
                }
            }
            RunSource::Rerun { of, reuse_except } => {
                let Some(key) = self.store.find_run(*of)? else { return Ok(Err(no_run(*of))) };
                let head = self.store.head(key)?;
                if !head.status.is_terminal() {
                    let message =
                        format!("run {of} is {}; only a run that ended is repeated", head.status.word());
                    return Ok(Err(Error::Conflict(message)));
                }
                let inputs = self.store.payload(key, Wanted::Inputs)?.value().clone();
                let rerun = reuse_except.as_ref().map(|except| Rerun { of: key.0, except: except.clone() });
                Ok(Ok((self.compiled(head.definition)?, rerun, Some(*of), Some(inputs))))
            }
        }
    }

    pub(super) fn begin_child(
        &mut self,
        parent: RunKey,
        child: Spawned,
        now: Millis,
    ) -> Result<(), StoreError> {
        let Some(entry) = self.runs.get(&parent) else { return Ok(()) };
        // The decision that asked for it may have stopped the step again.
        let live = entry.run.live().get(&child.step.n);
        if !live.is_some_and(|live| matches!(live.phase, Phase::Child { .. })) {
            return Ok(());
        }
        // It goes on in the trace of the step that waits for it.
        let trace = RunTrace::new(entry.head.id, entry.principal.trace.as_deref()).step(child.step.n);
        let principal = Principal { trace: Some(trace.to_string()), ..(*entry.principal).clone() };
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
        self.begin(&seed, now)
    }

    /// Creates a run and lets its first steps begin; its first event is written with theirs.
    fn begin(&mut self, seed: &RunSeed<'_>, now: Millis) -> Result<(), StoreError> {
        let plan = &seed.compiled.plan;
        let key = self.store.create_run(&NewRun {
            id: seed.id,
            definition: seed.compiled.id,
            principal: seed.principal,
            inputs: seed.inputs,
            parent: seed.parent.clone(),
            rerun: seed.rerun.as_ref(),
            interruptible: plan.settings.on_restart == OnRestart::Interrupt,
            request_key: seed.request_key,
            now,
        })?;
        let started = Event::RunStarted {
            definition: plan.name.clone(),
            version: seed.compiled.version,
            hash: plan.hash,
            by: seed.principal.id.as_str().into(),
            inputs: seed.inputs.hash(),
            parent: seed.parent.as_ref().map(|(_, parent)| parent.clone()),
            rerun_of: seed.rerun_of.map(|of| of.to_string().into()),
        };
        let mut run = Run::default();
        run.apply(plan, &started);
        let parent = seed.parent.as_ref();
        let head = Head {
            key,
            id: seed.id,
            definition: seed.compiled.id,
            principal: seed.principal.clone(),
            parent: parent.map(|(run, step)| (*run, step.n, step.attempt)),
            depth: parent.map_or(0, |(_, step)| step.depth),
            rerun: seed.rerun.clone(),
            seq: 0,
            hash: Hash([0; 32]),
            status: RunStatus::Pending,
            active: false,
        };
        let entry = Entry {
            head,
            run,
            compiled: seed.compiled.clone(),
            principal: Arc::new(seed.principal.clone()),
            reusable: None,
            hashes: Hashes::of_run(seed.inputs.hash()),
            unwritten: vec![Record::plain(started)],
            parked: false,
        };
        self.values.put(key, Wanted::Inputs, seed.inputs.clone());
        self.touched.insert(key);
        self.children += usize::from(seed.parent.is_some());
        self.runs.insert(key, entry);
        self.follow_ups.push_back((key, Input::Continue));
        Ok(())
    }

    pub(super) fn compiled(&mut self, definition: i64) -> Result<Arc<Compiled>, StoreError> {
        self.plans.get(&mut *self.store, definition)
    }
}
