//! Conversion of SQLite rows to values.

use rusqlite::{Connection, Row};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use steprail_core::plan::Hash;
use steprail_core::run::{RunStatus, StepStatus};
use steprail_core::spec::step::KindName;
use uuid::Uuid;

use crate::{
    Approval, Cursor, Definition, RunCursor, RunId, RunRow, StepRow, StoreError, StoredEvent, TokenScope,
    log_row,
};

pub(super) const DEFINITION: &str =
    "id, name, version, hash, spec_json, created_at, created_by, deleted_at IS NOT NULL, pins_json,
    deleted_at, published, by_agent, workflows_json";

/// The number of columns of [`DEFINITION`].
pub(super) const DEFINITION_COLUMNS: usize = 13;

pub(super) fn definition(row: &Row<'_>) -> Result<Definition, StoreError> {
    let workflows = row.get_ref(12)?.as_str_or_null().map_err(damaged)?;
    Ok(Definition {
        id: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        hash: hash_from_text(row.get_ref(3)?.as_str().map_err(damaged)?)?,
        spec_json: row.get(4)?,
        created_at: row.get(5)?,
        created_by: row.get(6)?,
        deleted: row.get(7)?,
        pins: serde_json::from_str(row.get_ref(8)?.as_str().map_err(damaged)?)?,
        by_agent: row.get(11)?,
        workflows: workflows.map(serde_json::from_str).transpose()?.unwrap_or_default(),
    })
}

/// Columns of a log row, for [`LogEvents`].
pub(super) const LOG: &str = "l.id, l.seq, l.at, l.body, l.hashes, l.hash";

/// The body of a log row and its hashes, from two columns.
pub(super) fn log_body<'r>(row: &'r Row<'_>, at: usize) -> Result<(&'r str, &'r [u8]), StoreError> {
    Ok((row.get_ref(at)?.as_str().map_err(damaged)?, row.get_ref(at + 1)?.as_blob().map_err(damaged)?))
}

/// The events of a log row after a position.
pub(super) fn log_events<E: DeserializeOwned>(
    run: RunId,
    row: &Row<'_>,
) -> Result<impl Iterator<Item = StoredEvent<E>> + use<E>, StoreError> {
    let (id, first, at): (i64, u64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let (body, hashes) = log_body(row, 3)?;
    let events: Vec<E> = serde_json::from_str(&log_row::decode(body, hashes)?)?;
    let hash = hash_from_bytes(row.get_ref(5)?.as_blob().map_err(damaged)?)?;
    Ok((0..).zip(events).map(move |(index, event)| {
        let (cursor, seq) = (Cursor::new(id, index), first + u64::from(index));
        StoredEvent { cursor, run, seq, at, event, hash }
    }))
}

/// Reads rows until `read` returns false.
pub(super) fn each(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    mut read: impl FnMut(&Row<'_>) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    while let Some(row) = found.next()? {
        if !read(row)? {
            break;
        }
    }
    Ok(())
}

/// All rows that a query finds.
pub(super) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    let mut list = Vec::new();
    while let Some(row) = found.next()? {
        list.push(read(row)?);
    }
    Ok(list)
}

/// Columns of a run, from [`RUNS`].
pub(super) const RUN: &str = "r.id, r.run_id, r.name, d.version, r.status, r.created_by,
    (SELECT s.path FROM step_runs s WHERE s.run_id = r.id ORDER BY s.n DESC, s.attempt DESC LIMIT 1),
    coalesce(r.input_json, (SELECT v.json FROM run_values v WHERE v.id = r.input_value)),
    coalesce(r.output_json, (SELECT v.json FROM run_values v WHERE v.id = r.output_value)), r.error_json, r.created_at,
    l.at, r.completed_at, l.seq + l.count - 1, (SELECT p.run_id FROM runs p WHERE p.id = r.parent_id),
    json_extract(r.principal_json, '$.via'), json_extract(r.principal_json, '$.trace'), r.principal_json ->> '$.scope'";

/// The same columns without values.
pub(super) const BRIEF_RUN: &str = "r.id, r.run_id, r.name, d.version, r.status, r.created_by,
    (SELECT s.path FROM step_runs s WHERE s.run_id = r.id ORDER BY s.n DESC, s.attempt DESC LIMIT 1),
    'null', NULL, r.error_json, r.created_at, l.at, r.completed_at, l.seq + l.count - 1,
    (SELECT p.run_id FROM runs p WHERE p.id = r.parent_id), json_extract(r.principal_json, '$.via'),
    json_extract(r.principal_json, '$.trace'), r.principal_json ->> '$.scope'";

/// Selects runs that were started with a scoped token, as the partial index `idx_runs_scoped` does.
pub(super) const IS_SCOPED: &str = "r.principal_json ->> '$.scope' IS NOT NULL";

/// Runs with their definitions and the last row of their logs.
pub(super) const RUNS: &str = "runs r JOIN workflow_definitions d ON d.id = r.definition_id
    JOIN workflow_log l ON l.id = (SELECT e.id FROM workflow_log e WHERE e.run_id = r.id ORDER BY e.seq DESC LIMIT 1)";

pub(super) fn run(row: &Row<'_>) -> Result<RunRow, StoreError> {
    Ok(RunRow {
        cursor: RunCursor::new(row.get(0)?),
        run_id: run_id(row.get_ref(1)?.as_str().map_err(damaged)?)?,
        name: row.get(2)?,
        version: row.get(3)?,
        status: status(row.get_ref(4)?.as_str().map_err(damaged)?)?,
        created_by: row.get(5)?,
        current_step: row.get(6)?,
        input: raw(row, 7)?.ok_or_else(|| StoreError::Corrupt("a run without inputs".to_owned()))?,
        output: raw(row, 8)?,
        error: failure(row, 9)?,
        started_at: row.get(10)?,
        updated_at: row.get(11)?,
        completed_at: row.get(12)?,
        seq: row.get(13)?,
        parent: row.get::<_, Option<String>>(14)?.as_deref().map(run_id).transpose()?,
        via: row.get(15)?,
        trace: row.get(16)?,
        scope: scope(row, 17)?,
    })
}

pub(super) const STEP: &str = "n, path, coalesce(step_id, path), kind, tool, status, attempt,
    coalesce(input_json, (SELECT v.json FROM run_values v WHERE v.id = input_value)),
    coalesce(output_json, (SELECT v.json FROM run_values v WHERE v.id = output_value)),
    error_json, coalesce(ready_at, started_at), started_at, completed_at";

/// The same columns without values.
pub(super) const BRIEF_STEP: &str =
    "n, path, coalesce(step_id, path), kind, tool, status, attempt, NULL, NULL,
    error_json, coalesce(ready_at, started_at), started_at, completed_at";

pub(super) fn step(row: &Row<'_>) -> Result<StepRow, StoreError> {
    Ok(StepRow {
        n: row.get(0)?,
        path: row.get(1)?,
        id: row.get(2)?,
        kind: kind(row.get_ref(3)?.as_str().map_err(damaged)?)?,
        tool: row.get(4)?,
        status: step_status(row.get_ref(5)?.as_str().map_err(damaged)?)?,
        attempt: row.get(6)?,
        input: raw(row, 7)?,
        output: raw(row, 8)?,
        error: failure(row, 9)?,
        ready_at: row.get(10)?,
        started_at: row.get(11)?,
        completed_at: row.get(12)?,
    })
}

pub(super) const APPROVAL: &str = "r.run_id, a.n, a.path, a.status, a.digest, a.prompt, a.tool,
    coalesce(a.args_json, (SELECT v.json FROM run_values v WHERE v.id = a.args_value)), a.requested_at, a.expires_at, a.decided_at, a.decided_by, a.reason, a.form_json,
    a.subject_json, a.signed_json,
    r.created_by, coalesce(json_extract(r.principal_json, '$.agent'), 0), r.name,
    (SELECT d.version FROM workflow_definitions d WHERE d.id = r.definition_id), r.principal_json ->> '$.scope'";

pub(super) fn approval(row: &Row<'_>) -> Result<Approval, StoreError> {
    Ok(Approval {
        run_id: run_id(row.get_ref(0)?.as_str().map_err(damaged)?)?,
        n: row.get(1)?,
        path: row.get(2)?,
        status: row.get(3)?,
        digest: hash_from_text(row.get_ref(4)?.as_str().map_err(damaged)?)?,
        prompt: row.get(5)?,
        tool: row.get(6)?,
        args: raw(row, 7)?,
        requested_at: row.get(8)?,
        expires_at: row.get(9)?,
        decided_at: row.get(10)?,
        decided_by: row.get(11)?,
        reason: row.get(12)?,
        form: raw(row, 13)?,
        subject: raw(row, 14)?,
        signed: serde_json::from_str(row.get_ref(15)?.as_str().map_err(damaged)?)?,
        created_by: row.get(16)?,
        by_agent: row.get(17)?,
        definition: row.get(18)?,
        version: row.get(19)?,
        scope: scope(row, 20)?,
    })
}

/// The scope of the token that started a run.
pub(super) fn scope(row: &Row<'_>, at: usize) -> Result<Option<TokenScope>, StoreError> {
    match row.get_ref(at)?.as_str_or_null().map_err(damaged)? {
        Some(text) => Ok(Some(serde_json::from_str(text)?)),
        None => Ok(None),
    }
}

fn raw(row: &Row<'_>, at: usize) -> Result<Option<Box<RawValue>>, StoreError> {
    let text: Option<String> = row.get(at)?;
    Ok(text.map(RawValue::from_string).transpose()?)
}

pub(super) fn failure(row: &Row<'_>, at: usize) -> Result<Option<steprail_core::run::Failure>, StoreError> {
    let text: Option<String> = row.get(at)?;
    Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
}

pub(super) fn run_id(text: &str) -> Result<RunId, StoreError> {
    Uuid::parse_str(text).map(RunId).map_err(|_| StoreError::Corrupt(format!("`{text}` is not a run id")))
}

pub(super) fn status(word: &str) -> Result<RunStatus, StoreError> {
    RunStatus::from_name(word).ok_or_else(|| StoreError::Corrupt(format!("`{word}` is not a run status")))
}

pub(super) fn step_status(word: &str) -> Result<StepStatus, StoreError> {
    word.parse().map_err(|_| StoreError::Corrupt(format!("`{word}` is not a step status")))
}

fn kind(word: &str) -> Result<KindName, StoreError> {
    KindName::from_name(word).ok_or_else(|| StoreError::Corrupt(format!("`{word}` is not a step kind")))
}

pub(super) fn hash_from_text(text: &str) -> Result<Hash, StoreError> {
    Hash::from_hex(text).ok_or_else(|| StoreError::Corrupt(format!("`{text}` is not a hash")))
}

pub(super) fn hash_from_bytes(bytes: &[u8]) -> Result<Hash, StoreError> {
    bytes.try_into().map(Hash).map_err(|_| StoreError::Corrupt("a hash does not have 32 bytes".to_owned()))
}

pub(super) fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}
