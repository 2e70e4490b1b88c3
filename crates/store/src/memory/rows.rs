//! The rows of a run in memory, as `projection.rs` changes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::value::RawValue;
use steprail_core::run::{GateRequest, Millis, Payload, StepRef, StepStatus, TimerKind};

use super::tables::{ClaimRow, RunTables, StepEntry, TimerRow};
use crate::projection::{RunRows, StepStart, one_row};
use crate::{Approval, ClaimKey, NewClaim, Refused, StoreError};

pub(super) struct Rows<'t> {
    pub run: &'t mut RunTables,
    pub claims: &'t mut BTreeMap<ClaimKey, ClaimRow>,
    pub last_approval: &'t mut i64,
    pub now: Millis,
}

impl Rows<'_> {
    /// An attempt that has not ended.
    fn open_step(&mut self, step: &StepRef, what: &str) -> Result<&mut StepEntry, StoreError> {
        let found = self.run.steps.get_mut(&(step.n, step.attempt));
        let open = found.filter(|row| row.completed_at.is_none());
        open.ok_or_else(|| StoreError::Corrupt(what.to_owned()))
    }
}

impl RunRows for Rows<'_> {
    type Value<'p> = Option<&'p Payload>;

    fn value<'p>(&mut self, payload: Option<&'p Payload>) -> Result<Self::Value<'p>, StoreError> {
        Ok(payload)
    }

    fn claim(&mut self, claim: &NewClaim) -> Result<(), Refused> {
        if self.claims.get(&claim.key).is_some_and(|known| !known.is_expired(self.now)) {
            return Err(Refused::Held(claim.key.wait_name()));
        }
        let row = ClaimRow {
            args: claim.args,
            run: self.run.id,
            n: claim.n,
            ttl_secs: claim.ttl_secs,
            result: None,
            expires_at: None,
        };
        self.claims.insert(claim.key.clone(), row);
        Ok(())
    }

    fn keep_result(&mut self, n: u32, output: &Payload) -> Result<(), StoreError> {
        let run = self.run.id;
        let held =
            self.claims.values_mut().find(|claim| claim.run == run && claim.n == n && claim.result.is_none());
        let Some(claim) = held else { return one_row(0, "a key without its holder") };
        let ttl = claim.ttl_secs.filter(|secs| *secs != 0).and_then(|secs| i64::try_from(secs).ok());
        claim.expires_at = ttl.map(|secs| self.now.saturating_add(secs.saturating_mul(1_000)));
        claim.result = Some(output.clone());
        Ok(())
    }

    fn release_key(&mut self, n: u32) -> Result<(), StoreError> {
        let run = self.run.id;
        self.claims.retain(|_, claim| claim.run != run || claim.n != n || claim.result.is_some());
        Ok(())
    }

    fn start_step(
        &mut self,
        step: &StepRef,
        start: StepStart<'_, Self::Value<'_>>,
    ) -> Result<(), StoreError> {
        let StepStart { info, status, tool, input, error } = start;
        let is_ready = status == StepStatus::Ready;
        let (ready_at, started_at) = (is_ready.then_some(self.now), (!is_ready).then_some(self.now));
        let tool = tool.map(str::to_owned);
        match self.run.steps.entry((step.n, step.attempt)) {
            Entry::Vacant(entry) => {
                entry.insert(StepEntry {
                    path: step.path.clone(),
                    status,
                    tool,
                    input: input.cloned(),
                    started_at,
                    completed_at: None,
                    id: info.id.clone(),
                    kind: info.kind.clone(),
                    output: None,
                    error: error.map(str::to_owned),
                    ready_at,
                });
            }
            Entry::Occupied(entry) => {
                let row = entry.into_mut();
                if row.completed_at.is_some() {
                    return one_row(0, "a step that ended began again");
                }
                row.status = status;
                row.tool = tool.or(row.tool.take());
                row.input = input.cloned().or(row.input.take());
                row.ready_at = row.ready_at.or(ready_at).or(row.started_at);
                row.started_at = started_at;
                row.error = error.map(str::to_owned);
            }
        }
        Ok(())
    }

    fn change_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        input: Self::Value<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let row = self.open_step(step, "a step that ended changed")?;
        row.status = status;
        row.input = input.cloned().or(row.input.take());
        row.error = error.map(str::to_owned);
        Ok(())
    }

    fn end_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        output: Self::Value<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        if output.is_some() != (status == StepStatus::Done) {
            return Err(StoreError::Other("an output without a completed step, or the other way".to_owned()));
        }
        let now = self.now;
        let row = self.open_step(step, "a step ended twice")?;
        row.status = status;
        row.output = output.cloned();
        row.error = error.map(str::to_owned);
        row.completed_at = Some(now);
        Ok(())
    }

    fn next_attempt(&mut self, failed: &StepRef, due: Millis) -> Result<(), StoreError> {
        let Some(before) = self.run.steps.get(&(failed.n, failed.attempt)) else {
            return one_row(0, "an attempt without the one before");
        };
        let row = StepEntry {
            status: StepStatus::Pending,
            input: None,
            started_at: None,
            completed_at: None,
            output: None,
            error: None,
            ready_at: Some(due),
            ..before.clone()
        };
        match self.run.steps.insert((failed.n, failed.attempt + 1), row) {
            None => Ok(()),
            Some(_) => Err(StoreError::Other("an attempt exists already".to_owned())),
        }
    }

    fn set_timer(&mut self, n: u32, kind: TimerKind, due: Millis) -> Result<(), StoreError> {
        self.run.timers.insert((n, kind), TimerRow { due, held: false });
        Ok(())
    }

    fn clear_timers(&mut self, n: u32) -> Result<(), StoreError> {
        self.run.timers.retain(|(of, _), _| *of != n);
        Ok(())
    }

    fn hold_timers(&mut self, held: bool) -> Result<(), StoreError> {
        self.run.timers.values_mut().for_each(|timer| timer.held = held);
        Ok(())
    }

    fn wait(&mut self, n: u32, event: &str) -> Result<(), StoreError> {
        match self.run.waits.insert(n, event.to_owned()) {
            None => Ok(()),
            Some(_) => Err(StoreError::Other("a step waits for two events".to_owned())),
        }
    }

    fn clear_wait(&mut self, n: u32) -> Result<(), StoreError> {
        self.run.waits.remove(&n);
        Ok(())
    }

    fn ask(
        &mut self,
        step: &StepRef,
        request: &GateRequest<'_>,
        args: Self::Value<'_>,
    ) -> Result<(), StoreError> {
        if self.run.approvals.values().any(|known| known.n == step.n && known.status == "open") {
            return Err(StoreError::Other("a step has two open approvals".to_owned()));
        }
        let args = args.map(|args| RawValue::from_string(args.json().to_owned())).transpose()?;
        let approval = Approval {
            run_id: self.run.id,
            n: step.n,
            path: step.path.to_string(),
            status: "open".to_owned(),
            digest: request.digest,
            prompt: request.prompt.to_owned(),
            tool: request.tool.map(str::to_owned),
            args,
            requested_at: self.now,
            expires_at: request.until,
            decided_at: None,
            decided_by: None,
            reason: None,
            form: request.form.map(|form| RawValue::from_string(form.to_string())).transpose()?,
            subject: request.subject.map(serde_json::value::to_raw_value).transpose()?,
            signed: Vec::new(),
            created_by: self.run.new.principal.id.clone(),
            by_agent: self.run.new.principal.agent,
            definition: self.run.name.clone(),
            version: self.run.version,
            scope: self.run.new.principal.scope.clone(),
        };
        *self.last_approval += 1;
        self.run.approvals.insert(*self.last_approval, approval);
        Ok(())
    }

    fn answer(
        &mut self,
        step: &StepRef,
        status: &str,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let open = self.run.approvals.values_mut().find(|known| known.n == step.n && known.status == "open");
        let Some(approval) = open else { return one_row(0, "a decision without an open question") };
        status.clone_into(&mut approval.status);
        approval.decided_at = Some(self.now);
        approval.decided_by = by.map(str::to_owned);
        approval.reason = reason.map(str::to_owned);
        Ok(())
    }

    fn sign(&mut self, step: &StepRef, by: &str) -> Result<(), StoreError> {
        let open = self.run.approvals.values_mut().find(|known| known.n == step.n && known.status == "open");
        let Some(approval) = open else { return one_row(0, "an approval without an open request") };
        approval.signed.push(by.to_owned());
        Ok(())
    }
}
