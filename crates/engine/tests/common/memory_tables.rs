//! The tables of an in-memory store, for the audit.

use std::collections::BTreeMap;

use steprail_core::run::{Event, Millis, StepStatus};
use steprail_store::RunId;
use steprail_store::memory::{MemoryStore, RunTables};

use super::audit::{Approval, LogRow, Rows, RunState, Tables};

impl Tables for MemoryStore {
    fn log(&self) -> Vec<LogRow> {
        let entries = (1..).zip(self.log_entries());
        let row = |(id, entry): (i64, std::sync::Arc<steprail_store::memory::LogEntry>)| LogRow {
            id,
            run: entry.run,
            seq: entry.seq,
            at: entry.at,
            body: entry.body.clone(),
            hashes: entry.hashes.clone(),
            hash: entry.hash.0.to_vec(),
        };
        entries.map(row).collect()
    }

    fn runs(&self) -> Vec<RunState> {
        let state = |run: &RunTables| RunState {
            id: run.id,
            status: run.state.status.name().to_owned(),
            active: run.state.active,
        };
        MemoryStore::runs(self).iter().map(|run| state(run)).collect()
    }

    fn events(&self, run: RunId) -> Vec<(u64, Millis, Event)> {
        let mut events = Vec::new();
        for entry in self.log_entries().iter().filter(|entry| entry.run == run) {
            let decoded = entry.events().expect("events").iter();
            events.extend((entry.seq..).zip(decoded).map(|(seq, event)| (seq, entry.at, event.clone())));
        }
        events
    }

    fn rows(&self, run: RunId) -> Rows {
        let Some(tables) = self.run_tables(run) else { return Rows::default() };
        let open = tables.approvals.values().filter(|approval| approval.status == "open");
        Rows {
            steps: tables.steps.iter().map(|(at, step)| (*at, step.status.name().to_owned())).collect(),
            timers: tables.timers.keys().map(|(n, kind)| (*n, kind.name().to_owned())).collect(),
            waits: tables.waits.clone(),
            gates: open.map(|approval| approval.n).collect(),
            claims: self.key_holders(run),
        }
    }

    fn outputs(&self, run: RunId) -> Vec<(u32, u32, String)> {
        let Some(tables) = self.run_tables(run) else { return Vec::new() };
        let outputs = tables.steps.iter().filter_map(|((n, attempt), step)| {
            step.output.as_ref().map(|output| (*n, *attempt, output.json().to_owned()))
        });
        outputs.collect()
    }

    fn approvals(&self, run: RunId) -> Vec<Approval> {
        let Some(tables) = self.run_tables(run) else { return Vec::new() };
        let last: BTreeMap<u32, _> =
            tables.approvals.values().map(|approval| (approval.n, approval)).collect();
        let approved = last.into_values().filter(|approval| approval.status == "approved");
        let approval = |approval: &steprail_store::Approval| Approval {
            path: approval.path.clone(),
            args: approval.args.as_ref().map(|args| args.get().to_owned()),
            by: approval.decided_by.clone(),
            sent: sent_after(&tables, approval.n, approval.decided_at),
        };
        approved.map(approval).collect()
    }
}

/// The arguments of the first call of an execution after a decision.
fn sent_after(tables: &RunTables, n: u32, decided_at: Option<Millis>) -> Option<String> {
    let attempts = tables.steps.range((n, 0)..=(n, u32::MAX)).map(|(_, step)| step);
    let mut called = attempts.filter(|step| {
        step.started_at >= decided_at
            && step.tool.is_some()
            && matches!(step.status, StepStatus::Running | StepStatus::Done)
    });
    called.next()?.input.as_ref().map(|input| input.json().to_owned())
}
