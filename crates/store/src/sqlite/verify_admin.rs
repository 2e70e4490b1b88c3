//! Audit of administrative actions: what they bind is compared with the rows, and the rows with what they bind.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};
use steprail_core::plan::Hash;

use super::verify_budgets::CountedCalls;
use super::{bindings, migrate, rows};
use crate::{AdminAction, AdminEvent, RowKind, StoreError};

/// What the actions of the log say, folded in their order.
#[derive(Default)]
pub(super) struct Actions {
    /// The number of actions.
    pub count: u64,
    /// The last content of each row, and the row of the log that says it.
    bound: BTreeMap<(RowKind, String), (Hash, i64)>,
    /// Numbers of runs that retention deleted.
    purged: BTreeSet<i64>,
    /// Numbers of runs whose rows of the log are empty, with the first of these rows.
    emptied: BTreeMap<i64, i64>,
    /// Rows of the log up to this one may have been purged without an action.
    baseline: i64,
    /// The calls that count for budgets of users and tools.
    calls: CountedCalls,
}

impl Actions {
    /// Follows a row of the log, with the columns that the audit reads.
    pub(super) fn follow(&mut self, row: &Row<'_>) -> Result<(), StoreError> {
        let (id, key): (i64, i64) = (row.get(0)?, row.get(7)?);
        let (body, hashes) = rows::log_body(row, 3)?;
        if key != 0 {
            if body.is_empty() {
                self.emptied.entry(key).or_insert(id);
            }
            return self.calls.follow_row(body, hashes);
        }
        let (seq, count): (u64, u64) = (row.get(1)?, row.get(9)?);
        let events = bindings::admin_events(body, hashes)?;
        let is_next = seq == self.count + 1 && count == events.len() as u64;
        self.count = seq + count - 1;
        events.into_iter().for_each(|event| self.apply(event, id));
        if is_next {
            Ok(())
        } else {
            Err(StoreError::Corrupt("administrative actions are missing".to_owned()))
        }
    }

    fn apply(&mut self, event: AdminEvent, log_row: i64) {
        match event.action {
            AdminAction::BaselineTaken { log_row } => self.baseline = self.baseline.max(log_row),
            AdminAction::RunsPurged { runs, budgets } => {
                self.purged.extend(runs.iter().map(|run| run.key));
                self.calls.purged(budgets);
            }
            _ => {}
        }
        for row in event.rows {
            match row.hash {
                Some(hash) => drop(self.bound.insert((row.kind, row.id), (hash, log_row))),
                None => drop(self.bound.remove(&(row.kind, row.id))),
            }
        }
    }

    /// Every difference between the actions and the tables.
    pub(super) fn differences(mut self, connection: &Connection) -> Result<Vec<String>, StoreError> {
        let mut found = self.index_differences(connection)?;
        found.extend(std::mem::take(&mut self.calls).differences(connection)?);
        let format = migrate::format(connection)?;
        let has_rows = |kind: &RowKind| *kind != RowKind::Proposal || format >= migrate::OWNED;
        for kind in bindings::BOUND.into_iter().filter(has_rows) {
            let sql = bindings::in_format(bindings::select(kind, ""), format);
            for (id, content) in bindings::contents(connection, &sql, [])? {
                let bound = self.bound.remove(&(kind, id.clone()));
                found.extend(difference(kind, &id, Some(content), bound.map(|(hash, _)| hash)));
            }
        }
        let without_run = "AND run_id NOT IN (SELECT id FROM runs)";
        for (id, content) in bindings::contents(connection, &bindings::select(RowKind::Key, without_run), [])?
        {
            let bound = self.bound.remove(&(RowKind::Key, id.clone()));
            found.extend(difference(RowKind::Key, &id, Some(content), bound.map(|(hash, _)| hash)));
        }
        found.extend(self.unrecorded_purges());
        for ((kind, id), (hash, _)) in &self.bound {
            match kind {
                // A result under a key can expire, and a key can be claimed anew.
                RowKind::Key | RowKind::Setting => {}
                kind => {
                    let content = bindings::find_in(connection, *kind, id, format)?;
                    found.extend(difference(*kind, id, content, Some(*hash)));
                }
            }
        }
        Ok(found)
    }

    /// Empty rows of the log whose run no action purged.
    fn unrecorded_purges(&self) -> Vec<String> {
        let is_old = |key: i64, row: i64| {
            row <= self.baseline && !self.bound.contains_key(&(RowKind::Run, key.to_string()))
        };
        let unrecorded =
            self.emptied.iter().filter(|(key, row)| !self.purged.contains(key) && !is_old(**key, **row));
        unrecorded
            .map(|(key, row)| {
                format!("the events of run number {key} were removed from row {row} of the log on, without a purge")
            })
            .collect()
    }

    /// The index by which rows are checked when they are loaded says the same.
    fn index_differences(&self, connection: &Connection) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT kind, id, hash, log_row FROM audit_bindings";
        let mut index = BTreeMap::new();
        rows::each(connection, sql, [], |row| {
            let hash = rows::hash_from_bytes(row.get_ref(2)?.as_blob().map_err(rows::damaged)?)?;
            index.insert((row.get::<_, String>(0)?, row.get::<_, String>(1)?), (hash, row.get::<_, i64>(3)?));
            Ok(true)
        })?;
        let mut found = Vec::new();
        for ((kind, id), bound) in &self.bound {
            if index.remove(&(kind.name().to_owned(), id.clone())) != Some(*bound) {
                found.push(format!("{kind} {id}: the index of bindings is not what the log says"));
            }
        }
        let unknown = index.keys().map(|(kind, id)| format!("{kind} {id}: no action bound it"));
        Ok(found.into_iter().chain(unknown).collect())
    }
}

fn difference(kind: RowKind, id: &str, content: Option<Hash>, bound: Option<Hash>) -> Option<String> {
    match (content, bound) {
        (Some(content), Some(bound)) if content == bound => None,
        (Some(_), Some(_)) => Some(format!("{kind} {id}: not what the log says")),
        (Some(_), None) => Some(format!("{kind} {id}: the log does not contain it")),
        (None, Some(_)) => Some(format!("{kind} {id}: missing")),
        (None, None) => None,
    }
}
