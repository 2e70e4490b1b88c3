//! Heads of the hash chain that were kept elsewhere, and the export of the log.

use std::io::Write;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use super::{identity, migrate, read_only, rows};
use crate::{ADMIN_LOG, ChainHead, StoreError, log_row};

const SELECT_EXPORT: &str = "SELECT l.id, l.run_id, r.run_id, l.seq, l.count, l.at, l.body, l.hashes, l.hash
    FROM workflow_log l LEFT JOIN runs r ON r.id = l.run_id WHERE l.id > ?1 ORDER BY l.id LIMIT 1000";

/// The end of the hash chain of a database file, beside the writer.
pub fn head(database: &Path) -> Result<ChainHead, StoreError> {
    let connection = read_only(database)?;
    migrate::format(&connection)?;
    identity::chain_head(&connection)
}

/// How a head that was kept elsewhere relates to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    /// The chain contains it.
    Contained,
    /// It belongs to an earlier incarnation: a restore replaced the rows.
    Replaced,
    /// The chain was cut or rewritten, or it is another database.
    Missing,
}

/// Compares heads that were kept elsewhere with the chain of a database file.
pub fn compare_heads(database: &Path, heads: &[ChainHead]) -> Result<Vec<HeadState>, StoreError> {
    let connection = read_only(database)?;
    migrate::format(&connection)?;
    let _moment = connection.unchecked_transaction()?;
    let present = identity::chain_head(&connection)?;
    heads.iter().map(|head| state(&connection, head, &present)).collect()
}

fn state(connection: &Connection, head: &ChainHead, present: &ChainHead) -> Result<HeadState, StoreError> {
    let sql = "SELECT hash FROM workflow_log WHERE id = ?1";
    let found: Option<Vec<u8>> =
        connection.prepare_cached(sql)?.query_row([head.row], |row| row.get(0)).optional()?;
    let is_same = head.database == present.database && head.incarnation <= present.incarnation;
    let is_contained = if head.row == 0 { true } else { found.as_deref() == Some(&head.hash.0[..]) };
    Ok(match (is_same, is_contained) {
        (true, true) => HeadState::Contained,
        (true, false) if head.incarnation < present.incarnation => HeadState::Replaced,
        _ => HeadState::Missing,
    })
}

/// Writes every row of the log as a line of JSON, with the bytes that its hash covers. Returns the number of rows.
pub fn export(database: &Path, out: &mut dyn Write) -> Result<u64, StoreError> {
    let connection = read_only(database)?;
    migrate::format(&connection)?;
    let (mut last, mut count) = (0, 0);
    loop {
        let before = count;
        rows::each(&connection, SELECT_EXPORT, [last], |row| {
            let id: i64 = row.get(0)?;
            writeln!(out, "{}", line(row)?).map_err(|error| StoreError::Io(error.to_string()))?;
            (last, count) = (id, count + 1);
            Ok(true)
        })?;
        if count == before {
            return Ok(count);
        }
    }
}

fn line(row: &rusqlite::Row<'_>) -> Result<Value, StoreError> {
    let (id, key): (i64, i64) = (row.get(0)?, row.get(1)?);
    let run: Option<String> = row.get(2)?;
    let run = if key == 0 { Some(ADMIN_LOG.to_string()) } else { run };
    let (seq, events, at): (u64, u64, i64) = (row.get(3)?, row.get(4)?, row.get(5)?);
    let (body, hashes) = rows::log_body(row, 6)?;
    let hash = rows::hash_from_bytes(row.get_ref(8)?.as_blob().map_err(rows::damaged)?)?.to_string();
    if body.is_empty() {
        let digest = rows::hash_from_bytes(hashes)?.to_string();
        return Ok(json!({ "type": "purged", "id": id, "seq": seq, "count": events, "at": at,
                          "digest": digest, "hash": hash }));
    }
    let decoded: Value = serde_json::from_str(&log_row::decode(body, hashes)?)?;
    let hashes: String = hashes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(json!({ "type": "row", "id": id, "run": run, "seq": seq, "count": events, "at": at,
               "body": body, "hashes": hashes, "hash": hash, "events": decoded }))
}
