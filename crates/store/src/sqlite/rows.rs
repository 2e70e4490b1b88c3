//! Conversion of SQLite rows to values.

use rusqlite::{Connection, Row};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use steprail_core::plan::Hash;
use steprail_core::run::{RunStatus, StepStatus};
use steprail_core::spec::step::KindName;
use uuid::Uuid;

use crate::{
    Approval, Cursor, Definition, EventPage, RunCursor, RunId, RunRow, StepRow, StoreError, StoredEvent,
};

/// Bytes of events after which no more are read at once.
const STRETCH_BYTES: usize = 1024 * 1024;

pub(super) const DEFINITION: &str =
    "id, name, version, hash, spec_json, created_at, created_by, deleted_at IS NOT NULL, pins_json";

pub(super) fn definition(row: &Row<'_>) -> Result<Definition, StoreError> {
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
    })
}

pub(super) const EVENT: &str = "e.id, e.seq, e.at, e.body, e.hash";

pub(super) fn event<E: DeserializeOwned>(run: RunId, row: &Row<'_>) -> Result<StoredEvent<E>, StoreError> {
    let body = row.get_ref(3)?.as_str().map_err(damaged)?;
    Ok(StoredEvent {
        cursor: cursor(row)?,
        run,
        seq: row.get(1)?,
        at: row.get(2)?,
        event: serde_json::from_str(body)?,
        hash: hash_from_bytes(row.get_ref(4)?.as_blob().map_err(damaged)?)?,
    })
}

/// The cursor of an event, from its number in the first column.
fn cursor(row: &Row<'_>) -> Result<Cursor, StoreError> {
    Ok(Cursor::new(row.get(0)?, 0))
}

/// Events that a question finds: at most so many, and no more once they have [`STRETCH_BYTES`]. The question asks for
/// one more than that, to know whether there is one.
pub(super) fn stretch<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    limit: usize,
    mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<EventPage<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    let (mut events, mut bytes, mut last) = (Vec::new(), 0, None);
    while let Some(row) = found.next()? {
        if events.len() == limit || bytes >= STRETCH_BYTES {
            return Ok(EventPage { events, next: last });
        }
        bytes += row.get_ref(3)?.as_str().map_err(damaged)?.len();
        last = Some(cursor(row)?);
        events.push(read(row)?);
    }
    Ok(EventPage { events, next: None })
}

/// Everything that a question finds.
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

pub(super) const RUN: &str = "r.id, r.run_id, d.name, d.version, r.status, r.created_by, r.current_step,
    (SELECT i.input_json FROM workflow_inputs i WHERE i.run_id = r.id), r.output_json, r.error_json, r.created_at, r.updated_at, r.completed_at, r.seq,
    (SELECT p.run_id FROM workflow_runs p WHERE p.id = r.parent_id), json_extract(r.principal_json, '$.via'),
    json_extract(r.principal_json, '$.trace')";

/// The same without values.
pub(super) fn brief_run() -> String {
    let inputs = "(SELECT i.input_json FROM workflow_inputs i WHERE i.run_id = r.id), r.output_json";
    RUN.replace(inputs, "'null', NULL")
}

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
    })
}

pub(super) const STEP: &str = "n, path, step_id, kind, tool, status, attempt, input_json, output_json,
    error_json, ready_at, started_at, completed_at";

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

pub(super) const APPROVAL: &str = "r.run_id, a.n, a.path, a.status, a.digest, a.prompt, a.tool, a.args_json,
    a.requested_at, a.expires_at, a.decided_at, a.decided_by, a.reason, a.form_json";

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
    })
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
    Uuid::parse_str(text).map(RunId).map_err(|_| StoreError::Corrupt(format!("`{text}` is no run id")))
}

pub(super) fn status(word: &str) -> Result<RunStatus, StoreError> {
    RunStatus::from_word(word).ok_or_else(|| StoreError::Corrupt(format!("`{word}` is no status of a run")))
}

fn step_status(word: &str) -> Result<StepStatus, StoreError> {
    word.parse().map_err(|_| StoreError::Corrupt(format!("`{word}` is no status of a step")))
}

fn kind(word: &str) -> Result<KindName, StoreError> {
    KindName::from_word(word).ok_or_else(|| StoreError::Corrupt(format!("`{word}` is no kind of step")))
}

pub(super) fn hash_from_text(text: &str) -> Result<Hash, StoreError> {
    Hash::from_hex(text).ok_or_else(|| StoreError::Corrupt(format!("`{text}` is no hash")))
}

pub(super) fn hash_from_bytes(bytes: &[u8]) -> Result<Hash, StoreError> {
    bytes.try_into().map(Hash).map_err(|_| StoreError::Corrupt("a hash has 32 bytes".to_owned()))
}

pub(super) fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}
