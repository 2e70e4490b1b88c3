//! One turn of a run: an input, the decision, and the consequences of its events.

use steprail_core::plan::{Kind, Plan};
use steprail_core::run::{Event, Input, Millis, Record, decide};
use steprail_core::spec::policy::KeyScope;
use steprail_store::{ClaimKey, ClaimState, Head, RunId, RunState, StoreError};

use super::batch::Decided;
use super::world::{KernelWorld, Spawned};
use super::{Done, Kernel, NextTimer};

impl Kernel {
    /// Applies an input to a run and adds the decision to the batch. Returns false if the input has no effect.
    pub(super) fn input(
        &mut self,
        id: RunId,
        input: Input,
        now: Millis,
        done: &mut Done,
    ) -> Result<bool, StoreError> {
        // A damaged run is not decided; it finds missed messages when it is loaded again. A run can have been deleted.
        if self.damaged.contains_key(&id) || !self.load(id)? {
            return Ok(false);
        }
        self.touched.insert(id);
        let (records, spawned) = self.decide(id, input, now, self.slice_limit(done))?;
        if records.is_empty() {
            return Ok(false);
        }
        self.append(id, records, done)?;
        for child in spawned {
            self.begin_child(id, child, now);
        }
        Ok(true)
    }

    fn decide(
        &mut self,
        id: RunId,
        input: Input,
        now: Millis,
        limit: usize,
    ) -> Result<(Vec<Record>, Vec<Spawned>), StoreError> {
        let Some(entry) = self.runs.get_mut(&id) else { return Ok(Default::default()) };
        // Runs that wait for a slot have priority; each of them starts one call at a time.
        let quota = match &input {
            Input::Admitted => 1,
            _ if self.flights.has_queue() => 0,
            _ => u32::MAX,
        };
        self.flights.begin_decision();
        let compiled = entry.compiled.clone();
        let mut world = KernelWorld {
            head: &entry.head,
            batch: &mut self.batch,
            tools: &*self.tools,
            env: &self.env,
            secret: &self.secret,
            random: &mut self.random,
            values: &mut self.values,
            flights: &mut self.flights,
            policy: &self.policy,
            call_limits: &mut self.call_limits,
            authorizer: &*self.authorizer,
            compiled: &compiled,
            frozen: self.batch_frozen,
            plans: &mut self.plans,
            reusable: &mut entry.reusable,
            children: self.children + self.continuations.children(),
            hashes: &entry.hashes,
            now,
            quota,
            spawned: Vec::new(),
            server: Box::default(),
            fault: None,
        };
        let decided = decide(&compiled.plan, &mut entry.run, input, limit, &mut world);
        let (spawned, fault) = (world.spawned, world.fault);
        let records = match (decided, fault) {
            (Ok(records), _) => records,
            (Err(_), Some(fault)) => return Err(fault),
            (Err(error), None) => return Err(StoreError::Other(error.0)),
        };
        self.continuations.note(id, &entry.head, &entry.run);
        let mut first = std::mem::take(&mut entry.unwritten);
        let records = if first.is_empty() {
            records
        } else {
            first.extend(records);
            first
        };
        Ok((records, spawned))
    }

    /// Adds the events of a decision to the batch, with their consequences.
    fn append(&mut self, id: RunId, records: Vec<Record>, done: &mut Done) -> Result<(), StoreError> {
        let Some(entry) = self.runs.get_mut(&id) else { return Ok(()) };
        let compiled = entry.compiled.clone();
        let after = RunState { status: entry.run.status(), active: entry.run.is_active() };
        entry.head.stored_bytes += self.quotas.stored(&entry.head.principal.id, &records);
        let decided = Decided {
            run: id,
            expected_seq: entry.run.seq().saturating_sub(records.len() as u64),
            new: entry.new.take(),
            before: entry.head.state,
            after,
            stored_bytes: entry.head.stored_bytes,
        };
        entry.head.state = after;
        for record in &records {
            let changes = record.event.changes();
            entry.hashes.note(&changes);
            self.deadlines.note(id, record, &changes);
            self.batch.note(id, record, &changes);
            done.stats.record(&compiled.plan, record.at, &changes);
            if record.moves_timers(&changes) {
                self.next_timer = NextTimer::Unknown;
            }
        }
        self.values.keep(id, &records);
        let mut released = Vec::new();
        if records.iter().any(|record| record.had_claim.is_some()) {
            let head = entry.head.clone();
            released
                .extend(records.iter().filter_map(|record| self.release_key(&compiled.plan, &head, record)));
        }
        self.consequences(id, &records, done)?;
        self.batch.append(decided, records);
        for key in released {
            for (run, n) in self.batch.waiting(&key.wait_name())? {
                self.messages.push_back((run, Input::KeyFreed { n }));
            }
        }
        Ok(())
    }

    /// Returns the idempotency key of a step that has ended, for the steps that wait for it.
    fn release_key(&mut self, plan: &Plan, head: &Head, record: &Record) -> Option<ClaimKey> {
        let name = record.had_claim.as_deref().filter(|_| record.event.ends_step())?;
        let Kind::Call(call) = &plan.step(record.at?).kind else { return None };
        let scope = call.idempotency.as_ref()?.scope;
        let key = claim_key(head, scope, &call.full_name(), name);
        let result = match (&record.event, &record.payload) {
            (Event::StepCompleted { .. }, Some(output)) => {
                self.batch.claim_state(&key).ok().and_then(|state| {
                    let (ClaimState::Held { args } | ClaimState::Done { args, .. }) = state else {
                        return None;
                    };
                    Some(ClaimState::Done { args, output: output.clone() })
                })
            }
            _ => None,
        };
        self.batch.settle(key.clone(), result);
        Some(key)
    }
}

/// An idempotency key. Results of one user's calls are never shown to another user. All tokens of a user share the keys, so
/// that an effect happens once; a token gets a result only of a tool that its scope covers (`KernelWorld::claim`).
pub(super) fn claim_key(head: &Head, scope: KeyScope, tool: &str, key: &str) -> ClaimKey {
    let scope = match scope {
        KeyScope::Workflow => format!("run:{}", head.id),
        KeyScope::Global => format!("user:{}", head.principal.id),
    };
    ClaimKey { scope, tool: tool.to_owned(), key: key.to_owned() }
}
