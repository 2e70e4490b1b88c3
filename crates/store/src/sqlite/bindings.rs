//! Bindings: the hash of the content of a row, and the check that the log contains it.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use sha2::{Digest, Sha256};
use steprail_core::plan::Hash;

use super::{migrate, proposals, rows};
use crate::admin::ADMIN_LOG;
use crate::{AdminEvent, Binding, RowContent, RowKind, StoreError, link, log_row};

/// Kinds whose rows all have a binding. A row without one was not written by the engine.
pub(super) const BOUND: [RowKind; 9] = [
    RowKind::Definition,
    RowKind::Proposal,
    RowKind::Schedule,
    RowKind::User,
    RowKind::Group,
    RowKind::Token,
    RowKind::SignIn,
    RowKind::Freeze,
    RowKind::Remembered,
];

/// Columns of a schedule that decide what it starts and as whom, but not its next and last times.
pub(super) const SCHEDULE: &str =
    "name, definition, cron, zone, input_json, principal_json, overlap, due_at IS NULL, version_json";
/// Columns that were added after the first format with bindings. They are not part of the content of a row while they are
/// NULL, so that older rows keep their hashes.
const ADDED: [&str; 2] = ["workflows_json", "version_json"];
/// The last use of a browser session changes without an action.
const ACCOUNT: &str =
    "id, iif(kind = 'sign_in' AND json_valid(body_json), json_remove(body_json, '$.seen_at'), body_json)";
const RUN: &str =
    "id, run_id, definition_id, name, created_by, principal_json, parent_id, parent_n, parent_attempt,
    depth, rerun_json, interruptible, request_key, created_at";
const KEY: &str =
    "json_array(scope, tool, key), args_hash, run_id, n, status, result_json, ttl_secs, expires_at";
const SELECT_BINDING: &str = "SELECT b.hash, l.run_id, l.seq, l.at, l.body, l.hashes, l.hash,
    (SELECT p.hash FROM workflow_log p WHERE p.id = l.id - 1)
    FROM audit_bindings b LEFT JOIN workflow_log l ON l.id = b.log_row WHERE b.kind = ?1 AND b.id = ?2";

/// The statement that reads the rows of a kind, with the id in the first column. `ends` has further conditions.
pub(super) fn select(kind: RowKind, ends: &str) -> String {
    match kind {
        RowKind::Definition => {
            format!("SELECT {} FROM workflow_definitions WHERE 1 {ends}", rows::DEFINITION)
        }
        RowKind::Proposal => {
            format!("SELECT {} FROM definition_proposals WHERE 1 {ends}", proposals::COLUMNS)
        }
        RowKind::Schedule => format!("SELECT {SCHEDULE} FROM schedules WHERE 1 {ends}"),
        RowKind::User | RowKind::Group | RowKind::Token | RowKind::SignIn => {
            format!("SELECT {ACCOUNT} FROM accounts WHERE kind = '{kind}' {ends}")
        }
        RowKind::Freeze | RowKind::Remembered => {
            format!("SELECT id, body_json FROM policy_state WHERE kind = '{kind}' {ends}")
        }
        RowKind::Run => format!("SELECT {RUN} FROM runs WHERE 1 {ends}"),
        RowKind::Key => format!("SELECT {KEY} FROM idempotency_keys WHERE 1 {ends}"),
        RowKind::Setting => "SELECT NULL WHERE 0".to_owned(),
    }
}

/// The statement for a database of an earlier format, without the columns that it lacks.
pub(super) fn in_format(sql: String, format: i64) -> String {
    let without = |sql: String, column: &&str| sql.replace(column, &format!("NULL AS {column}"));
    if format < migrate::OWNED { ADDED.iter().fold(sql, without) } else { sql }
}

/// The row of a kind with an id.
fn select_one(kind: RowKind) -> String {
    match kind {
        RowKind::Schedule | RowKind::Proposal => select(kind, "AND name = ?1"),
        RowKind::Key => select(
            kind,
            "AND scope = json_extract(?1, '$[0]') AND tool = json_extract(?1, '$[1]') AND key = json_extract(?1, '$[2]')",
        ),
        _ => select(kind, "AND id = ?1"),
    }
}

/// Id and content hash of a row, from its first columns.
pub(super) fn content(row: &Row<'_>, columns: usize) -> Result<(String, Hash), StoreError> {
    let id = match row.get_ref(0)? {
        ValueRef::Integer(id) => id.to_string(),
        other => other.as_str().map_err(rows::damaged)?.to_owned(),
    };
    let mut hasher = Sha256::new();
    for column in 0..columns {
        match row.get_ref(column)? {
            ValueRef::Null if ADDED.contains(&row.as_ref().column_name(column)?) => {}
            ValueRef::Null => hasher.update([0]),
            ValueRef::Integer(number) => {
                hasher.update([1]);
                hasher.update(number.to_be_bytes());
            }
            ValueRef::Real(number) => {
                hasher.update([2]);
                hasher.update(number.to_be_bytes());
            }
            ValueRef::Text(bytes) => update_bytes(&mut hasher, 3, bytes),
            ValueRef::Blob(bytes) => update_bytes(&mut hasher, 4, bytes),
        }
    }
    Ok((id, Hash(hasher.finalize().into())))
}

fn update_bytes(hasher: &mut Sha256, kind: u8, bytes: &[u8]) {
    hasher.update([kind]);
    hasher.update((bytes.len() as u64).to_be_bytes());
    hasher.update(bytes);
}

/// Content hashes of all rows that a statement of [`select`] finds.
pub(super) fn contents(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Vec<(String, Hash)>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns = statement.column_count();
    let mut found = statement.query(params)?;
    let mut list = Vec::new();
    while let Some(row) = found.next()? {
        list.push(content(row, columns)?);
    }
    Ok(list)
}

/// Content hash of one row, if it exists.
pub(super) fn find(connection: &Connection, kind: RowKind, id: &str) -> Result<Option<Hash>, StoreError> {
    find_in(connection, kind, id, migrate::OWNED)
}

/// The same in a database of a format.
pub(super) fn find_in(
    connection: &Connection,
    kind: RowKind,
    id: &str,
    format: i64,
) -> Result<Option<Hash>, StoreError> {
    let sql = in_format(select_one(kind), format);
    let found = match (kind, id.parse::<i64>()) {
        (RowKind::Definition | RowKind::Run, Ok(number)) => contents(connection, &sql, [number])?,
        _ => contents(connection, &sql, [id])?,
    };
    Ok(found.into_iter().next().map(|(_, hash)| hash))
}

/// The hash that the index has for a row.
pub(super) fn bound(connection: &Connection, kind: RowKind, id: &str) -> Result<Option<Hash>, StoreError> {
    let sql = "SELECT hash FROM audit_bindings WHERE kind = ?1 AND id = ?2";
    let found: Option<Vec<u8>> =
        connection.prepare_cached(sql)?.query_row([kind.name(), id], |row| row.get(0)).optional()?;
    found.map(|bytes| rows::hash_from_bytes(&bytes)).transpose()
}

/// An error unless the rows of a kind are exactly those that the log contains.
pub(super) fn check_all(connection: &Connection, kind: RowKind) -> Result<(), StoreError> {
    let found = contents(connection, &select(kind, ""), [])?;
    for (id, content) in &found {
        check(connection, kind, id, *content)?;
    }
    let sql = "SELECT id FROM audit_bindings WHERE kind = ?1";
    let bound = rows::all(connection, sql, [kind.name()], |row| Ok(row.get::<_, String>(0)?))?;
    match bound.iter().find(|id| !found.iter().any(|(known, _)| known == *id)) {
        Some(missing) => Err(changed(kind, missing)),
        None => Ok(()),
    }
}

/// Writes what an action bound into the index.
pub(super) fn note(connection: &Connection, binding: &Binding, log_row: i64) -> Result<(), StoreError> {
    let Binding { kind, id, hash } = binding;
    if let Some(hash) = hash {
        let sql = "INSERT OR REPLACE INTO audit_bindings (kind, id, hash, log_row) VALUES (?1, ?2, ?3, ?4)";
        connection.prepare_cached(sql)?.execute(params![kind.name(), id, &hash.0[..], log_row])?;
    } else {
        let sql = "DELETE FROM audit_bindings WHERE kind = ?1 AND id = ?2";
        connection.prepare_cached(sql)?.execute([kind.name(), id])?;
    }
    Ok(())
}

/// An error unless an action in the hash chain established a row with this content.
pub(super) fn check(
    connection: &Connection,
    kind: RowKind,
    id: &str,
    content: Hash,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(SELECT_BINDING)?;
    let mut found = statement.query([kind.name(), id])?;
    let is_bound = match found.next()? {
        Some(row) => is_established(row, kind, id, content)?,
        None => false,
    };
    if is_bound { Ok(()) } else { Err(changed(kind, id)) }
}

pub(super) fn changed(kind: RowKind, id: &str) -> StoreError {
    StoreError::Corrupt(format!(
        "the stored {kind} {id} is not what the log says; it was changed in the file: run `steprail audit verify`"
    ))
}

fn is_established(row: &Row<'_>, kind: RowKind, id: &str, content: Hash) -> Result<bool, StoreError> {
    let bytes = |at: usize| row.get_ref(at)?.as_blob().map_err(rows::damaged);
    if row.get_ref(1)? != ValueRef::Integer(0) || bytes(0)? != content.0 {
        return Ok(false);
    }
    let (body, hashes) = rows::log_body(row, 4)?;
    let before = row.get_ref(7)?.as_blob_or_null().map_err(rows::damaged)?;
    let before = before.map_or(Ok(Hash([0; 32])), rows::hash_from_bytes)?;
    let digest = RowContent { run: ADMIN_LOG, seq: row.get(2)?, at: row.get(3)?, body, hashes }.digest();
    if link(&before, &digest).0 != bytes(6)? {
        return Ok(false);
    }
    let mut last = None;
    for event in admin_events(body, hashes)? {
        let found = event.rows.into_iter().rev().find(|row| row.kind == kind && row.id == id);
        last = found.or(last);
    }
    Ok(last.is_some_and(|binding| binding.hash == Some(content)))
}

/// The administrative actions of a row of the log.
pub(super) fn admin_events(body: &str, hashes: &[u8]) -> Result<Vec<AdminEvent>, StoreError> {
    Ok(serde_json::from_str(&log_row::decode(body, hashes)?)?)
}
