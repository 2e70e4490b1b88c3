//! Projection of events into rows: which rows of a run an event changes. Each store has its own rows ([`RunRows`]).

use steprail_core::run::{
    Changes, Event, GateChange, GateRequest, Millis, Payload, Record, RunStatus, Started, StepChange,
    StepInfo, StepRef, StepStatus, TimerKind, ValueChange,
};

use crate::{NewClaim, Refused, RunCommit, StoreError};

/// The rows of one run, while events are projected onto them. A change that finds no row to change is an error.
pub(crate) trait RunRows {
    /// A value as rows refer to it. Several rows can refer to one stored value.
    type Value<'p>: Copy + Default;

    /// Stores the value of an event.
    fn value<'p>(&mut self, payload: Option<&'p Payload>) -> Result<Self::Value<'p>, StoreError>;
    /// Claims an idempotency key. Precondition: it is free.
    fn claim(&mut self, claim: &NewClaim) -> Result<(), Refused>;
    /// Stores the output of a completed step under the key that the step holds.
    fn keep_result(&mut self, n: u32, output: &Payload) -> Result<(), StoreError>;
    /// Releases the key that a step holds.
    fn release_key(&mut self, n: u32) -> Result<(), StoreError>;
    /// Creates an attempt, or changes one that has not ended.
    fn start_step(&mut self, step: &StepRef, start: StepStart<'_, Self::Value<'_>>)
    -> Result<(), StoreError>;
    /// Changes the status of an attempt that has not ended, and its input if there is one.
    fn change_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        input: Self::Value<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError>;
    /// Ends an attempt.
    fn end_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        output: Self::Value<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError>;
    /// Creates the attempt after one that failed.
    fn next_attempt(&mut self, failed: &StepRef, due: Millis) -> Result<(), StoreError>;
    /// Sets a timer. It is not held, also if the others of the run are.
    fn set_timer(&mut self, n: u32, kind: TimerKind, due: Millis) -> Result<(), StoreError>;
    /// Deletes the timers of a step.
    fn clear_timers(&mut self, n: u32) -> Result<(), StoreError>;
    /// Holds the timers of the run, or releases them. A timer that is held is never due.
    fn hold_timers(&mut self, held: bool) -> Result<(), StoreError>;
    /// Lets a step wait for an event or for an idempotency key.
    fn wait(&mut self, n: u32, event: &str) -> Result<(), StoreError>;
    /// Deletes what a step waits for.
    fn clear_wait(&mut self, n: u32) -> Result<(), StoreError>;
    /// Opens an approval.
    fn ask(
        &mut self,
        step: &StepRef,
        request: &GateRequest<'_>,
        args: Self::Value<'_>,
    ) -> Result<(), StoreError>;
    /// Ends the open approval of a step.
    fn answer(
        &mut self,
        step: &StepRef,
        status: &str,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(), StoreError>;
    /// Adds a user to those who approved the open approval of a step.
    fn sign(&mut self, step: &StepRef, by: &str) -> Result<(), StoreError>;
}

/// An attempt that becomes ready, waits or starts.
pub(crate) struct StepStart<'s, V> {
    pub info: &'s StepInfo,
    pub status: StepStatus,
    pub tool: Option<&'s str>,
    pub input: V,
    pub error: Option<&'s str>,
}

/// Writes the rows that follow from the events of a decision. A key that one step releases can be claimed by the next.
pub(crate) fn project(rows: &mut impl RunRows, run: &RunCommit) -> Result<(), Refused> {
    for record in &run.records {
        if let Event::StepStarted { step, what: Started::Call { claimed: true, .. }, .. } = &record.event {
            for claim in run.claims.iter().filter(|claim| claim.n == step.n && record.had_claim.is_none()) {
                rows.claim(claim)?;
            }
        }
        project_event(rows, record, run.before.status)?;
    }
    Ok(())
}

fn project_event(rows: &mut impl RunRows, record: &Record, before: RunStatus) -> Result<(), StoreError> {
    let Changes { run, step, value } = record.event.changes();
    if let Some(change) = step {
        reset(rows, record, &change)?;
        project_step(rows, record, &change, value)?;
    }
    match run.status {
        Some(RunStatus::Interrupted) => rows.hold_timers(true),
        Some(RunStatus::Running) if before == RunStatus::Interrupted => rows.hold_timers(false),
        _ => Ok(()),
    }
}

fn project_step<R: RunRows>(
    rows: &mut R,
    record: &Record,
    change: &StepChange<'_>,
    value: Option<ValueChange>,
) -> Result<(), StoreError> {
    let step = change.step;
    let (mut input, mut output) = (R::Value::default(), R::Value::default());
    match value {
        Some(ValueChange::StepInput(_)) => input = rows.value(record.payload.as_ref())?,
        Some(ValueChange::StepOutput(_)) => output = rows.value(record.payload.as_ref())?,
        Some(ValueChange::RunInputs(_) | ValueChange::RunOutput(_)) | None => {}
    }
    let error = change.error.map(serde_json::to_string).transpose()?;
    let error = error.as_deref();
    match (change.info, change.status) {
        (Some(info), Some(status)) => {
            rows.start_step(step, StepStart { info, status, tool: change.tool, input, error })?;
        }
        (None, Some(status)) if status.is_end() => rows.end_step(step, status, output, error)?,
        (None, Some(status)) => rows.change_step(step, status, input, error)?,
        (_, None) => {}
    }
    if let Some(due) = change.retry_at {
        rows.next_attempt(step, due)?;
    }
    match &change.gate {
        Some(GateChange::Requested(request)) => rows.ask(step, request, input)?,
        Some(GateChange::Decided(decision)) => {
            rows.answer(step, decision.outcome.into(), decision.by, decision.reason)?;
        }
        Some(GateChange::Signed { by, .. }) => rows.sign(step, by)?,
        Some(GateChange::Escalated { .. } | GateChange::Reminded { .. }) | None => {}
    }
    change.timers().try_for_each(|(kind, due)| rows.set_timer(step.n, kind, due))?;
    change.wait.map_or(Ok(()), |event| rows.wait(step.n, event))
}

/// Removes the rows of a step that become void with an event.
fn reset(rows: &mut impl RunRows, record: &Record, change: &StepChange<'_>) -> Result<(), StoreError> {
    let step = change.step;
    if !change.clears_waits {
        return Ok(());
    }
    if record.had_timer {
        rows.clear_timers(step.n)?;
    }
    if record.had_wait {
        rows.clear_wait(step.n)?;
    }
    if record.had_gate && !matches!(change.gate, Some(GateChange::Decided(_))) {
        let status = if change.ends() { "cancelled" } else { "superseded" };
        rows.answer(step, status, None, None)?;
    }
    match (&record.had_claim, &record.event, &record.payload) {
        (Some(_), Event::StepCompleted { .. }, Some(output)) => rows.keep_result(step.n, output),
        (Some(_), _, _) if change.ends() => rows.release_key(step.n),
        _ => Ok(()),
    }
}

/// What the row of a run gets when the run ends: its output, or why it failed.
pub(crate) fn end_of(run: &RunCommit) -> Result<(Option<&Payload>, Option<String>), StoreError> {
    // A late result can follow the end of the run in the same commit.
    let Some(ended) = run.records.iter().rev().find(|record| record.event.ends_run()) else {
        return Ok((None, None));
    };
    match ended.event.changes() {
        Changes { value: Some(ValueChange::RunOutput(_)), .. } => Ok((ended.payload.as_ref(), None)),
        changes => Ok((None, changes.run.error.map(serde_json::to_string).transpose()?)),
    }
}

/// Whether a decision changes the state in the row of its run. The row of a new run already has it, unless the run ended
/// with its first decision.
pub(crate) fn changes_state(run: &RunCommit) -> bool {
    let is_written = run.new.is_some() && !run.after.status.is_terminal();
    run.before != run.after && !is_written
}

/// A change that finds no row to change must not be kept.
pub(crate) fn one_row(changed: usize, what: &str) -> Result<(), StoreError> {
    match changed {
        1 => Ok(()),
        _ => Err(StoreError::Corrupt(what.to_owned())),
    }
}
