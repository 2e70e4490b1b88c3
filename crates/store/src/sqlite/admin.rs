//! Administrative actions of a commit: one row of the log, in the transaction of the changes.

use rusqlite::{Connection, params};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use super::commit::Transaction;
use super::{SqliteStore, bindings, rows};
use crate::admin::ADMIN_LOG;
use crate::log_row::LogRow;
use crate::{Actor, AdminAction, AdminEvent, Binding, Commit, RowContent, RowKind, StoreError, link};

/// Bindings whose check is remembered.
const CHECKED: usize = 20_000;
/// Rows in one action of the baseline.
const BASELINE_ROWS: usize = 200;

const INSERT_LOG: &str = "INSERT INTO workflow_log (run_id, seq, count, at, body, hashes, hash) VALUES (0, ?1, ?2, ?3, ?4, ?5, ?6)";

/// The end of the log, to which rows are appended.
pub(super) struct LogEnd {
    pub chain: Hash,
    /// The last administrative action.
    pub admin_seq: u64,
    pub last_row: i64,
}

impl LogEnd {
    pub(super) fn read(connection: &Connection) -> Result<Self, StoreError> {
        let sql = "SELECT id, hash FROM workflow_log ORDER BY id DESC LIMIT 1";
        let last = rows::all(connection, sql, [], |row| {
            Ok((row.get(0)?, rows::hash_from_bytes(row.get_ref(1)?.as_blob().map_err(rows::damaged)?)?))
        })?;
        let (last_row, chain) = last.first().copied().unwrap_or((0, Hash([0; 32])));
        let sql = "SELECT seq + count - 1 FROM workflow_log WHERE run_id = 0 ORDER BY seq DESC LIMIT 1";
        let admin_seq = rows::all(connection, sql, [], |row| Ok(row.get(0)?))?.pop().unwrap_or(0);
        Ok(Self { chain, admin_seq, last_row })
    }

    /// Appends actions as one row of the log and notes what they bind.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        row: &mut LogRow,
        events: &[AdminEvent],
        at: Millis,
    ) -> Result<(), StoreError> {
        row.encode_actions(events)?;
        let (seq, body, hashes) = (self.admin_seq + 1, row.text()?, &row.hashes[..]);
        let digest = RowContent { run: ADMIN_LOG, seq, at, body, hashes }.digest();
        self.chain = link(&self.chain, &digest);
        let params = params![seq, events.len(), at, body, hashes, &self.chain.0[..]];
        connection.prepare_cached(INSERT_LOG)?.execute(params)?;
        self.last_row = connection.last_insert_rowid();
        self.admin_seq += events.len() as u64;
        let bound = events.iter().flat_map(|event| &event.rows);
        bound.into_iter().try_for_each(|binding| bindings::note(connection, binding, self.last_row))
    }
}

impl Transaction<'_> {
    /// Records a change of rows, unless their content is the same as before.
    pub(super) fn record(
        &mut self,
        by: Option<&Actor>,
        kind: RowKind,
        ids: impl IntoIterator<Item = String>,
        action: impl FnOnce(bool) -> AdminAction,
    ) -> Result<(), StoreError> {
        let (mut changed, mut is_new) = (Vec::new(), false);
        for id in ids {
            let (before, hash) = (self.bound(kind, &id)?, bindings::find(self.connection(), kind, &id)?);
            is_new |= before.is_none();
            if before != hash {
                changed.push(Binding { kind, id, hash });
            }
        }
        if !changed.is_empty() {
            self.actions.push(AdminEvent { action: action(is_new), by: by.cloned(), rows: changed });
        }
        Ok(())
    }

    /// The hash that a row had after the last action, of this commit or before.
    fn bound(&self, kind: RowKind, id: &str) -> Result<Option<Hash>, StoreError> {
        let pending = self.actions.iter().flat_map(|event| &event.rows);
        match pending.rev().find(|row| row.kind == kind && row.id == id) {
            Some(binding) => Ok(binding.hash),
            None => bindings::bound(self.connection(), kind, id),
        }
    }

    /// Writes the actions of a commit. A setting with the same hash as before is no action.
    pub(super) fn append_actions(&mut self, commit: &Commit) -> Result<(), StoreError> {
        for event in &commit.admin {
            let mut is_known = !event.rows.is_empty();
            for row in &event.rows {
                is_known &= self.bound(row.kind, &row.id)? == row.hash;
            }
            if !is_known {
                self.actions.push(event.clone());
            }
        }
        if self.actions.is_empty() {
            return Ok(());
        }
        let events = std::mem::take(&mut self.actions);
        for binding in events.iter().flat_map(|event| &event.rows) {
            self.checked.remove(&(binding.kind, binding.id.clone()));
        }
        let mut end = LogEnd { chain: *self.chain, admin_seq: *self.admin_seq, last_row: *self.last_row };
        end.append(self.connection(), self.row, &events, commit.now)?;
        (*self.chain, *self.admin_seq, *self.last_row) = (end.chain, end.admin_seq, end.last_row);
        Ok(())
    }
}

impl SqliteStore {
    /// An error unless the log contains the content of a row. A row that was checked before is compared in memory.
    pub(super) fn check_bound(&mut self, kind: RowKind, id: &str, content: Hash) -> Result<(), StoreError> {
        let key = (kind, id.to_owned());
        if self.checked.get(&key) == Some(&content) {
            return Ok(());
        }
        bindings::check(&self.connection, kind, id, content)?;
        if self.checked.len() >= CHECKED {
            self.checked.clear();
        }
        self.checked.insert(key, content);
        Ok(())
    }
}

/// Binds the rows of a database of an earlier format.
pub(super) fn take_baseline(connection: &Connection) -> Result<(), StoreError> {
    let mut bound = Vec::new();
    let without_run = "AND run_id NOT IN (SELECT id FROM runs)";
    let kinds = bindings::BOUND.into_iter().map(|kind| (kind, ""));
    for (kind, ends) in kinds.chain([(RowKind::Run, ""), (RowKind::Key, without_run)]) {
        let found = bindings::contents(connection, &bindings::select(kind, ends), [])?;
        bound.extend(found.into_iter().map(|(id, hash)| Binding { kind, id, hash: Some(hash) }));
    }
    let mut end = LogEnd::read(connection)?;
    if bound.is_empty() && end.last_row == 0 {
        return Ok(());
    }
    let at = super::identity::last_time(connection)?.unwrap_or(0);
    let action = AdminAction::BaselineTaken { log_row: end.last_row };
    let mut row = LogRow::default();
    // A database without rows to bind still needs to know which rows of its log may be purged.
    let chunks = bound.chunks(BASELINE_ROWS).chain(bound.is_empty().then_some(&[][..]));
    for rows in chunks {
        let event = AdminEvent { action: action.clone(), by: None, rows: rows.to_vec() };
        end.append(connection, &mut row, &[event], at)?;
    }
    Ok(())
}
