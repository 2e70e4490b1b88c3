//! The `World` of a decision: time, random numbers, stored values and admission, from memory and the store.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use steprail_core::budget::Budget;
use steprail_core::expr::Ambient;
use steprail_core::limits;
use steprail_core::plan::{Hash, Workflow};
use steprail_core::run::{
    Admission, Annotations, Child, Claim, Claimed, Event, Failure, FailureKind, JudgedCall, Judgement,
    Millis, Payload, Started, Starter, StepRef, World, WorldError,
};
use steprail_store::{ClaimState, Head, NewClaim, RunId, StoreError, StoredEvent, Wanted};

use super::batch::Batch;
use super::cache::{Hashes, Values};
use super::definitions::{Compiled, Plans};
use super::flights::Flights;
use super::policy::CallLimits;
use super::sub_workflows::{AUTHOR_DENIED, check_authorship, keep, resolve};
use super::turn::claim_key;
use crate::calls::{check_author, check_tool};
use crate::limits::CHILD_RUNS;
use crate::policy::PolicyHandle;
use crate::ports::{Authorizer, CallSite, ToolCaller};

/// The world of one decision of one run.
pub(super) struct KernelWorld<'w> {
    pub head: &'w Head,
    pub batch: &'w mut Batch,
    pub tools: &'w dyn ToolCaller,
    pub env: &'w Arc<Value>,
    pub secret: &'w [u8; 32],
    pub random: &'w mut fastrand::Rng,
    pub values: &'w mut Values,
    pub flights: &'w mut Flights,
    pub policy: &'w PolicyHandle,
    pub call_limits: &'w mut CallLimits,
    pub authorizer: &'w dyn Authorizer,
    /// The definition that the run executes.
    pub compiled: &'w Compiled,
    /// Whether no call may start.
    pub frozen: bool,
    pub plans: &'w mut Plans,
    /// Results of the earlier run that a rerun reuses, once they are loaded.
    pub reusable: &'w mut Option<Reusable>,
    /// The number of child runs that this decision starts.
    pub children: usize,
    /// The hashes of values according to the log.
    pub hashes: &'w Hashes,
    pub now: Millis,
    /// The number of calls that this decision may start.
    pub quota: u32,
    pub spawned: Vec<Spawned>,
    /// The server for which a slot was last requested.
    pub server: Box<str>,
    /// The failure of the store, if a load failed.
    pub fault: Option<StoreError>,
}

/// Completed calls of an earlier run: the hash of the arguments and the execution, by path.
pub(super) type Reusable = HashMap<String, (Hash, u32)>;

/// A child run that a step starts.
pub(super) struct Spawned {
    pub id: RunId,
    pub compiled: Arc<Compiled>,
    pub inputs: Payload,
    pub step: StepRef,
}

impl KernelWorld<'_> {
    fn answer<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, WorldError> {
        answer.map_err(|error| {
            let text = error.to_string();
            self.fault = Some(error);
            WorldError(text)
        })
    }

    fn payload(&mut self, wanted: Wanted) -> Result<Payload, WorldError> {
        if let Some(known) = self.values.get(self.head.id, wanted) {
            return Ok(known);
        }
        let found = self.batch.value(self.head.id, wanted).and_then(|found| {
            if self.hashes.matches(wanted, &found) {
                return Ok(found);
            }
            Err(StoreError::Corrupt(format!("{wanted:?} of run {} was changed", self.head.id)))
        });
        let found = self.answer(found)?;
        self.values.put(self.head.id, wanted, found.clone());
        Ok(found)
    }

    fn find_child(
        &mut self,
        child: &Child<'_>,
        budget: &mut Budget,
    ) -> Result<Result<(Arc<Compiled>, Payload), Failure>, StoreError> {
        if self.head.depth + 1 >= limits::RUN_DEPTH {
            let message = format!("child workflows are nested more than {} levels deep", limits::RUN_DEPTH);
            return Ok(Err(Failure::new(FailureKind::Limit, message)));
        }
        if self.children + self.spawned.len() >= CHILD_RUNS {
            let message = format!("more than {CHILD_RUNS} child workflows would start at once");
            return Ok(Err(Failure::new(FailureKind::Limit, message)));
        }
        let mut resolved = match resolve(self.batch, self.compiled, child.workflow)? {
            Ok(resolved) => resolved,
            Err(failure) => return Ok(Err(failure)),
        };
        keep(self.batch, self.compiled, &mut resolved, self.now)?;
        let compiled = self.plans.of(&resolved.definition)?;
        if let Err(error) = check_authorship(self.authorizer, &compiled, &self.head.principal.id) {
            let failure = Failure::new(FailureKind::Permission, error.to_string());
            return Ok(Err(failure.code(AUTHOR_DENIED)));
        }
        match compiled.plan.check_inputs(child.inputs.value(), budget) {
            Ok(inputs) => Ok(Ok((compiled, Payload::new(inputs)))),
            Err(problem) => Ok(Err(Failure::new(FailureKind::Validation, problem))),
        }
    }

    fn look_up(&mut self, path: &str, args: Hash) -> Result<Option<Payload>, StoreError> {
        let Some(rerun) = &self.head.rerun else { return Ok(None) };
        if rerun.except.iter().any(|except| except == path) {
            return Ok(None);
        }
        if self.reusable.is_none() {
            *self.reusable = Some(results(&self.batch.log(rerun.of)?));
        }
        match self.reusable.as_ref().and_then(|known| known.get(path)) {
            Some((hash, n)) if *hash == args => self.batch.value(rerun.of, Wanted::Output(*n)).map(Some),
            _ => Ok(None),
        }
    }
}

/// Finds the completed calls in a log.
fn results(log: &[StoredEvent]) -> Reusable {
    let mut arguments = HashMap::new();
    let mut results = Reusable::new();
    for stored in log {
        match &stored.event {
            Event::StepStarted { step, what: Started::Call { args, .. }, .. } => {
                arguments.insert(step.n, *args);
            }
            Event::StepCompleted { step, .. } => {
                if let Some(args) = arguments.get(&step.n) {
                    results.insert(step.path.to_string(), (*args, step.n));
                }
            }
            _ => {}
        }
    }
    results
}

impl World for KernelWorld<'_> {
    fn now(&self) -> Millis {
        self.now
    }

    fn random(&mut self) -> f64 {
        self.random.f64()
    }

    fn inputs(&mut self) -> Result<Payload, WorldError> {
        self.payload(Wanted::Inputs)
    }

    fn output(&mut self, n: u32) -> Result<Payload, WorldError> {
        self.payload(Wanted::Output(n))
    }

    fn input(&mut self, n: u32) -> Result<Payload, WorldError> {
        self.payload(Wanted::Input(n))
    }

    fn error(&mut self, n: u32) -> Result<Payload, WorldError> {
        self.payload(Wanted::Error(n))
    }

    fn event_value(&mut self, seq: u64) -> Result<Payload, WorldError> {
        self.payload(Wanted::EventValue(seq))
    }

    fn env(&self) -> Arc<Value> {
        self.env.clone()
    }

    fn ambient(&self, what: Ambient) -> Value {
        let principal = &self.head.principal;
        Value::String(match what {
            Ambient::UserName => principal.name.clone(),
            Ambient::UserEmail => principal.email.clone(),
            Ambient::UserId => principal.id.clone(),
            Ambient::RunId => self.head.id.to_string(),
        })
    }

    fn starter(&self) -> Starter {
        let principal = &self.head.principal;
        let via = principal.via.as_deref().map(Into::into);
        Starter { user: principal.id.as_str().into(), agent: principal.agent, via }
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        self.tools.pin(tool)
    }

    fn workflow_hash(&mut self, workflow: &Workflow) -> Result<Option<Hash>, WorldError> {
        let found = resolve(self.batch, self.compiled, workflow);
        Ok(self.answer(found)?.ok().map(|resolved| resolved.definition.hash))
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.tools.annotations(tool)
    }

    fn provider(&self) -> Option<Box<str>> {
        self.tools.provider()
    }

    fn admit(&mut self, tool: &str, path: &str) -> Admission {
        let site = CallSite { tool, principal: &self.head.principal, run: self.head.id, path };
        let capacity = self.tools.capacity(&site);
        self.server = capacity.server.clone();
        self.flights.admit(self.head.id, &capacity, self.head.definition, self.quota)
    }

    fn release(&mut self) {
        self.flights.release(&self.server);
    }

    fn key(&self, path: &str) -> Box<str> {
        let mut hasher = Sha256::new();
        hasher.update(self.secret);
        hasher.update(self.head.id.0.as_bytes());
        hasher.update(path.as_bytes());
        Hash(hasher.finalize().into()).half()
    }

    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed, WorldError> {
        // The result of another run of the user may be stored under the key.
        let principal = &self.head.principal;
        let mut authors = principal.authors.iter();
        let allowed = check_tool(principal, claim.tool)
            .and_then(|()| authors.try_for_each(|author| check_author(self.authorizer, author, claim.tool)));
        if let Err(reason) = allowed {
            return Ok(Claimed::Denied(reason.into()));
        }
        let key = claim_key(self.head, claim.scope, claim.tool, claim.key);
        let state = self.batch.claim_state(&key);
        match self.answer(state)? {
            ClaimState::Free => {
                let (args, n, ttl_secs) = (claim.args, claim.step.n, claim.ttl_secs);
                self.batch.claim(NewClaim { key, args, n, ttl_secs });
                Ok(Claimed::Taken)
            }
            ClaimState::Held { args } | ClaimState::Done { args, .. } if args != claim.args => {
                Ok(Claimed::Conflict)
            }
            ClaimState::Held { .. } => Ok(Claimed::Busy(key.wait_name().into())),
            ClaimState::Done { output, .. } => Ok(Claimed::Hit(output)),
        }
    }

    fn judge(&mut self, call: &JudgedCall<'_>, budget: &mut Budget) -> Result<Judgement, WorldError> {
        let judged = self.judge_call(call, budget);
        self.answer(judged)
    }

    fn reuse(&mut self, path: &str, args: Hash) -> Result<Option<Payload>, WorldError> {
        let found = self.look_up(path, args);
        self.answer(found)
    }

    fn spawn(
        &mut self,
        child: &Child<'_>,
        budget: &mut Budget,
    ) -> Result<Result<Box<str>, Failure>, WorldError> {
        let found = self.find_child(child, budget);
        Ok(match self.answer(found)? {
            Err(failure) => Err(failure),
            Ok((compiled, inputs)) => {
                let id = new_run_id(self.now, self.random);
                self.spawned.push(Spawned { id, compiled, inputs, step: child.step.clone() });
                Ok(id.to_string().into())
            }
        })
    }
}

/// A new id that sorts by time. Time and randomness come from the kernel, so that a simulation can repeat them.
pub(super) fn new_run_id(now: Millis, random: &mut fastrand::Rng) -> RunId {
    let mut bytes = [0; 10];
    random.fill(&mut bytes);
    let builder = uuid::Builder::from_unix_timestamp_millis(now.unsigned_abs(), &bytes);
    RunId(builder.into_uuid())
}
