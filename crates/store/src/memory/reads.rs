//! [`Reads`] in memory.

use std::sync::Arc;

use serde_json::value::RawValue;
use steprail_core::run::{Failure, Millis, Payload, StepStatus};
use steprail_core::spec::step::KindName;

use super::tables::{LogEntry, RunTables, StepEntry, Tables};
use super::{MemoryStore, steps};
use crate::page::PageBuilder;
use crate::{
    Account, After, Approval, ChainHead, Cursor, Definition, DefinitionQuery, Delivery, EventPage, ListRuns,
    ListSteps, Notification, NotificationQuery, OutboxWork, PolicyState, Principal, Proposal, RawEvent,
    Reads, RunCursor, RunId, RunRow, Schedule, Session, Starter, StepCounts, StepPage, StepRow, StoreError,
    StoredAdminEvent, StoredEvent, UnknownCall, Usage, Visibility, attempt_digest, log_row,
};

impl Reads for MemoryStore {
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let tables = self.tables();
        tables.run(id).ok().map(|run| run_row(&tables, run, false)).transpose()
    }

    fn steps(&self, id: RunId, list: &ListSteps) -> Result<StepPage, StoreError> {
        let tables = self.tables();
        let Ok(run) = tables.run(id) else { return Ok(StepPage { steps: Vec::new(), has_more: false }) };
        steps::page(run, list)
    }

    fn step_counts(&self, id: RunId) -> Result<StepCounts, StoreError> {
        let tables = self.tables();
        let mut counts = StepCounts::default();
        if let Ok(run) = tables.run(id) {
            run.steps.iter().for_each(|((_, attempt), step)| counts.add(step.status, *attempt));
        }
        Ok(counts)
    }

    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError> {
        let tables = self.tables();
        let is_listed = |run: &RunTables| {
            list.status.is_none_or(|status| run.state.status == status)
                && list.created_by.as_ref().is_none_or(|user| run.new.principal.id == *user)
                && list.name.as_ref().is_none_or(|name| run.name == *name)
                && list.before.is_none_or(|before| run.key < before.row())
                && list.visible.includes(&run.new.principal.id, run.new.principal.scope.as_ref())
        };
        let listed = tables.runs.values().rev().filter(|run| is_listed(run)).take(list.limit);
        listed.map(|run| run_row(&tables, run, list.brief)).collect()
    }

    fn events(&self, id: RunId, after: After, limit: usize) -> Result<EventPage<StoredEvent>, StoreError> {
        let tables = self.tables();
        let mut page = PageBuilder::new(limit);
        if tables.run(id).is_err() {
            return Ok(page.finish());
        }
        let is_after = |event: &StoredEvent| match after {
            After::Seq(seq) => event.seq > seq,
            After::Cursor(cursor) => event.cursor > cursor,
        };
        for (row, entry) in tables.log_rows().filter(|(_, entry)| entry.run == id) {
            let events = entry.stored_events(row)?.filter(is_after);
            if !page.add(entry.body.len(), events.map(|event| (event.cursor, event))) {
                break;
            }
        }
        Ok(page.finish())
    }

    fn feed(
        &self,
        after: Cursor,
        limit: usize,
        visible: &Visibility,
    ) -> Result<EventPage<(RawEvent, Arc<Starter>)>, StoreError> {
        let tables = self.tables();
        let mut page = PageBuilder::new(limit);
        for (row, entry) in tables.log_rows().filter(|(row, _)| *row >= after.row()) {
            let Ok(run) = tables.run(entry.run) else { continue };
            let principal = &run.new.principal;
            let starter = Starter { user: principal.id.clone(), scope: principal.scope.clone() };
            if !visible.includes_starter(&starter) {
                continue;
            }
            let starter = Arc::new(starter);
            let events = raw_events(row, entry)?.into_iter().filter(|event| event.cursor > after);
            let events = events.map(|event| (event.cursor, (event, starter.clone())));
            if !page.add(entry.body.len(), events) {
                break;
            }
        }
        Ok(page.finish())
    }

    fn last_event(&self) -> Result<Cursor, StoreError> {
        Ok(self.tables().log_rows().last().map_or(Cursor::START, |(row, entry)| entry.end(row)))
    }

    fn open_approvals(&self, visible: &Visibility, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let tables = self.tables();
        let is_visible = |run: &RunTables| {
            let principal = &run.new.principal;
            visible.includes(&principal.id, principal.scope.as_ref())
        };
        let runs = tables.runs.values().map(AsRef::as_ref).filter(|run| is_visible(run));
        let mut open = open_approvals(runs);
        open.truncate(limit);
        Ok(open)
    }

    fn run_approvals(&self, run: RunId, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let tables = self.tables();
        let mut open = open_approvals(below(&tables, run).into_iter().map(|(_, run)| run));
        open.truncate(limit);
        Ok(open)
    }

    fn last_approval(&self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError> {
        let tables = self.tables();
        let Ok(run) = tables.run(run) else { return Ok(None) };
        Ok(run.approvals.values().rev().find(|approval| approval.path == path).cloned())
    }

    fn unknown_calls(&self, run: RunId, limit: usize) -> Result<Vec<UnknownCall>, StoreError> {
        let tables = self.tables();
        let mut found = Vec::new();
        for (above, run) in below(&tables, run) {
            let uncertain = run.steps.iter().filter(|(_, step)| step.status == StepStatus::Uncertain);
            for ((n, attempt), step) in uncertain {
                let call = UnknownCall {
                    run_id: run.id,
                    path: step.path.to_string(),
                    shown: format!("{above}{}", step.path),
                    digest: attempt_digest(run.id, &step.path, *attempt),
                    tool: step.tool.clone(),
                    error: failure(step.error.as_deref())?,
                };
                found.push(((step.started_at, *n), call));
            }
        }
        found.sort_by_key(|(order, _)| *order);
        Ok(found.into_iter().map(|(_, call)| call).take(limit).collect())
    }

    fn policy_state(&self) -> Result<PolicyState, StoreError> {
        Ok(self.tables().policy.state.clone())
    }

    fn outbox_work(&self, now: Millis, limit: usize, busy: &[String]) -> Result<OutboxWork, StoreError> {
        Ok(self.tables().outbox.work(now, limit, busy))
    }

    fn notifications(
        &self,
        query: NotificationQuery,
        limit: usize,
    ) -> Result<Vec<(Notification, Vec<Delivery>)>, StoreError> {
        Ok(self.tables().outbox.notifications(query, limit))
    }

    fn usage(&self, user: &str, limit: u64) -> Result<Usage, StoreError> {
        let tables = self.tables();
        let of_user = || tables.runs.values().filter(|run| run.new.principal.id == user);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let active = || of_user().filter(|run| is_active(run)).take(limit);
        let ended = of_user().filter(|run| run.completed_at.is_some()).map(|run| run.stored_bytes);
        let definitions = tables.definitions.values().map(|row| &row.definition);
        let definitions = definitions.filter(|known| known.created_by == user);
        Ok(Usage {
            active_runs: active().count() as u64,
            stored_bytes: active().map(|run| run.stored_bytes).sum::<u64>()
                + ended.sum::<u64>()
                + definitions.map(|known| known.spec_json.len() as u64).sum::<u64>(),
        })
    }

    fn session(&self, id: &str) -> Result<Option<Session>, StoreError> {
        Ok(self.tables().sessions.get(id).map(|(session, _)| session.clone()))
    }

    fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        let tables = self.tables();
        let account = |((kind, id), body): (&(_, String), &String)| Account {
            kind: *kind,
            id: id.clone(),
            body: body.clone(),
        };
        Ok(tables.accounts.iter().map(account).collect())
    }

    fn schedules(&self) -> Result<Vec<Schedule>, StoreError> {
        Ok(self.tables().schedules.values().cloned().collect())
    }

    fn definitions(&self) -> Result<Vec<Definition>, StoreError> {
        Ok(newest(&self.tables(), false))
    }

    fn published(&self) -> Result<Vec<Definition>, StoreError> {
        Ok(newest(&self.tables(), true))
    }

    fn versions(&self, name: &str) -> Result<Vec<Definition>, StoreError> {
        let mut versions: Vec<Definition> = self.tables().versions(name).cloned().collect();
        versions.sort_by_key(|known| std::cmp::Reverse(known.version));
        Ok(versions)
    }

    fn definition(&self, name: &str, version: Option<u32>) -> Result<Option<Definition>, StoreError> {
        let which =
            version.map_or(DefinitionQuery::Newest(name), |version| DefinitionQuery::Version(name, version));
        Ok(self.tables().find_definition(which).cloned())
    }

    fn proposals(&self) -> Result<Vec<Proposal>, StoreError> {
        Ok(self.tables().proposals.values().cloned().collect())
    }

    fn proposal(&self, name: &str) -> Result<Option<Proposal>, StoreError> {
        Ok(self.tables().proposals.get(name).cloned())
    }

    /// This store records no administrative actions.
    fn admin_events(&self, _after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, StoreError> {
        Ok(PageBuilder::new(limit).finish())
    }

    fn chain_head(&self) -> Result<ChainHead, StoreError> {
        let tables = self.tables();
        let row = i64::try_from(tables.log.len()).map_err(|error| StoreError::Other(error.to_string()))?;
        Ok(ChainHead { database: "memory".to_owned(), incarnation: 1, row, hash: tables.chain })
    }
}

/// Whether a run counts as active in the quota of its user.
fn is_active(run: &RunTables) -> bool {
    run.completed_at.is_none() && run.new.parent.is_none()
}

/// The newest versions that can be started, by name; only published ones if `published`.
fn newest(tables: &Tables, published: bool) -> Vec<Definition> {
    let is_newest = |known: &Definition| {
        tables
            .find_definition(DefinitionQuery::Newest(&known.name))
            .is_some_and(|newest| newest.id == known.id)
    };
    let rows = tables.definitions.values().filter(|row| row.published || !published);
    let mut newest: Vec<_> =
        rows.map(|row| &row.definition).filter(|known| is_newest(known)).cloned().collect();
    newest.sort_by(|one, other| one.name.cmp(&other.name));
    newest
}

/// A run and the unfinished runs that it waits for, with the path of the steps that wait.
fn below(tables: &Tables, run: RunId) -> Vec<(String, &RunTables)> {
    let mut found: Vec<(String, &RunTables)> =
        tables.run(run).map(|run| (String::new(), run.as_ref())).into_iter().collect();
    let mut at = 0;
    while let Some((above, run)) = found.get(at).cloned() {
        for child in tables.runs.values().filter(|child| child.completed_at.is_none()) {
            let Some((_, parent)) = child.new.parent.as_ref().filter(|(id, _)| *id == run.id) else {
                continue;
            };
            let step = run.steps.range((parent.n, 0)..=(parent.n, u32::MAX)).next();
            let path = step.map(|(_, step)| format!("{above}{}/", step.path));
            found.push((path.unwrap_or_else(|| above.clone()), child));
        }
        at += 1;
    }
    found
}

/// The open approvals of some runs, oldest first.
fn open_approvals<'t>(runs: impl Iterator<Item = &'t RunTables>) -> Vec<Approval> {
    let open = runs.flat_map(|run| run.approvals.iter()).filter(|(_, approval)| approval.status == "open");
    let mut open: Vec<_> = open.collect();
    open.sort_by_key(|(id, _)| **id);
    open.into_iter().map(|(_, approval)| approval.clone()).collect()
}

fn raw_events(row: i64, entry: &LogEntry) -> Result<Vec<RawEvent>, StoreError> {
    let events: Vec<Box<RawValue>> = serde_json::from_str(&log_row::decode(&entry.body, &entry.hashes)?)?;
    let event = |(index, event): (u32, Box<RawValue>)| StoredEvent {
        cursor: Cursor::new(row, index),
        run: entry.run,
        seq: entry.seq + u64::from(index),
        at: entry.at,
        event,
        hash: entry.hash,
    };
    Ok((0..).zip(events).map(event).collect())
}

fn run_row(tables: &Tables, run: &RunTables, brief: bool) -> Result<RunRow, StoreError> {
    let definition = tables.definitions.get(&run.new.definition);
    let missing = || StoreError::Corrupt("the definition of a run is missing".to_owned());
    let principal: Principal = serde_json::from_str(&run.principal)?;
    let parent = run.new.parent.as_ref().map(|(parent, _)| *parent);
    Ok(RunRow {
        cursor: RunCursor::new(run.key),
        run_id: run.id,
        name: run.name.clone(),
        version: definition.ok_or_else(missing)?.definition.version,
        status: run.state.status,
        parent: parent.filter(|parent| tables.keys.contains_key(parent)),
        created_by: principal.id,
        via: principal.via,
        trace: principal.trace,
        scope: principal.scope,
        current_step: run.steps.last_key_value().map(|(_, step)| step.path.to_string()),
        input: if brief { RawValue::from_string("null".to_owned())? } else { raw(&run.new.inputs)? },
        output: run.output.as_ref().filter(|_| !brief).map(raw).transpose()?,
        error: failure(run.error.as_deref())?,
        started_at: run.created_at,
        updated_at: run.updated_at,
        completed_at: run.completed_at,
        seq: run.seq,
    })
}

pub(super) fn step_row(n: u32, attempt: u32, step: &StepEntry) -> Result<StepRow, StoreError> {
    let unknown = || StoreError::Corrupt(format!("`{}` is no kind of step", step.kind));
    Ok(StepRow {
        n,
        path: step.path.to_string(),
        id: step.id.to_string(),
        kind: KindName::from_name(&step.kind).ok_or_else(unknown)?,
        tool: step.tool.clone(),
        status: step.status,
        attempt,
        input: step.input.as_ref().map(raw).transpose()?,
        output: step.output.as_ref().map(raw).transpose()?,
        error: failure(step.error.as_deref())?,
        ready_at: step.ready_at.or(step.started_at),
        started_at: step.started_at,
        completed_at: step.completed_at,
    })
}

fn raw(payload: &Payload) -> Result<Box<RawValue>, StoreError> {
    Ok(RawValue::from_string(payload.json().to_owned())?)
}

fn failure(json: Option<&str>) -> Result<Option<Failure>, StoreError> {
    Ok(json.map(serde_json::from_str).transpose()?)
}
