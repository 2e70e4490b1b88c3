//! Read-only queries beside the writer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::{read_only, rows, schedules};
use crate::Reads;
use crate::limits::READ_TIME;
use crate::{
    Account, AccountKind, Approval, Definition, EventPage, ListRuns, RawEvent, RunId, RunRow, Schedule,
    Session, StepRow, StoreError, StoredEvent, UnknownCall, attempt_digest,
};

/// A run, and those that it waits for, with the path of the steps that wait.
const BELOW: &str = "WITH RECURSIVE below (id, above) AS (
    SELECT id, '' FROM workflow_runs WHERE run_id = ?1
    UNION SELECT c.id, b.above || coalesce((SELECT s.path || '/' FROM workflow_step_runs s
                                            WHERE s.run_id = b.id AND s.n = c.parent_n LIMIT 1), '')
    FROM workflow_runs c JOIN below b ON c.parent_id = b.id WHERE c.completed_at IS NULL)";

/// Connections that are kept for the next question.
const IDLE_CONNECTIONS: usize = 4;

/// Instructions of SQLite between two checks of the time limit of a query.
const CHECK_INTERVAL: i32 = 1_000;

/// Read-only connections to a database. A question takes one and gives it back; none is held in between, and no question
/// holds its read transaction for longer than [`READ_TIME`].
#[derive(Debug, Clone)]
pub struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Reader>>>,
    read_time: Duration,
}

/// A connection whose statements are interrupted at a deadline.
#[derive(Debug)]
struct Reader {
    connection: Connection,
    deadline: Arc<Mutex<Instant>>,
}

impl Reader {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let mut connection = read_only(path)?;
        let deadline = Arc::new(Mutex::new(Instant::now()));
        let until = deadline.clone();
        let is_over = move || Instant::now() > *until.lock().unwrap_or_else(PoisonError::into_inner);
        connection.progress_handler(CHECK_INTERVAL, Some(is_over))?;
        Ok(Self { connection, deadline })
    }
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path: Arc::new(path), idle: Arc::default(), read_time: READ_TIME }
    }

    /// Readers with another time limit, for tests.
    #[must_use]
    pub fn with_read_time(mut self, read_time: Duration) -> Self {
        self.read_time = read_time;
        self
    }

    fn with<T>(&self, ask: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let reader = if let Some(reader) = idle { reader } else { Reader::open(&self.path)? };
        *reader.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + self.read_time;
        let answer = ask(&reader.connection)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(reader);
        }
        Ok(answer)
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.with(|connection| rows::all(connection, sql, params, read))
    }
}

impl Reads for Readers {
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_runs r JOIN workflow_definitions d ON d.id = r.definition_id
             WHERE r.run_id = ?1",
            rows::RUN
        );
        Ok(self.all(&sql, [id.to_string()], rows::run)?.pop())
    }

    fn steps(&self, id: RunId) -> Result<Vec<StepRow>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_step_runs WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = ?1)
             ORDER BY n, attempt",
            rows::STEP
        );
        self.all(&sql, [id.to_string()], rows::step)
    }

    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError> {
        let columns = if list.brief { rows::brief_run() } else { rows::RUN.to_owned() };
        let mut sql = format!(
            "SELECT {columns} FROM workflow_runs r JOIN workflow_definitions d ON d.id = r.definition_id WHERE 1"
        );
        let mut values: Vec<Value> = Vec::new();
        let mut only = |column: &str, value: Value| {
            values.push(value);
            sql.push_str(&format!(" AND {column} ?{}", values.len()));
        };
        if let Some(status) = list.status {
            only("r.status =", status.word().to_owned().into());
        }
        if let Some(user) = &list.created_by {
            only("r.created_by =", user.clone().into());
        }
        if let Some(name) = &list.name {
            only("d.name =", name.clone().into());
        }
        if let Some(before) = list.before {
            only("r.id <", before.0.into());
        }
        let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
        sql.push_str(&format!(" ORDER BY r.id DESC LIMIT {limit}"));
        self.all(&sql, params_from_iter(values), rows::run)
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<EventPage<StoredEvent>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_events e WHERE e.run_id = (SELECT id FROM workflow_runs WHERE run_id = ?1)
             AND e.seq > ?2 ORDER BY e.seq LIMIT ?3",
            rows::EVENT
        );
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let most = limit.saturating_add(1);
        let read = |row: &Row<'_>| rows::event(id, row);
        self.with(|connection| {
            rows::stretch(connection, &sql, params![id.to_string(), after, most], limit, read)
        })
    }

    fn feed(
        &self,
        after: i64,
        limit: usize,
        user: Option<&str>,
    ) -> Result<EventPage<(RawEvent, String)>, StoreError> {
        let sql = format!(
            "SELECT {}, r.run_id, r.created_by FROM workflow_events e JOIN workflow_runs r ON r.id = e.run_id
             WHERE e.id > ?1 AND (?3 IS NULL OR r.created_by = ?3) ORDER BY e.id LIMIT ?2",
            rows::EVENT
        );
        let most = limit.saturating_add(1);
        let read = |row: &Row<'_>| {
            let run = rows::run_id(row.get_ref(5)?.as_str().map_err(rows::damaged)?)?;
            Ok((rows::event(run, row)?, row.get(6)?))
        };
        self.with(|connection| rows::stretch(connection, &sql, params![after, most, user], limit, read))
    }

    fn last_event(&self) -> Result<i64, StoreError> {
        let sql = "SELECT coalesce(max(id), 0) FROM workflow_events";
        Ok(self.all(sql, [], |row| Ok(row.get(0)?))?.pop().unwrap_or_default())
    }

    fn open_approvals(&self, user: Option<&str>, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let sql = format!(
            "SELECT {} FROM approvals a JOIN workflow_runs r ON r.id = a.run_id
             WHERE a.status = 'open' AND (?1 IS NULL OR r.created_by = ?1) ORDER BY a.id LIMIT ?2",
            rows::APPROVAL
        );
        self.all(&sql, params![user, limit], rows::approval)
    }

    fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, StoreError> {
        let sql = format!(
            "{BELOW} SELECT {} FROM below b JOIN approvals a ON a.run_id = b.id JOIN workflow_runs r ON r.id = b.id
             WHERE a.status = 'open' ORDER BY a.id",
            rows::APPROVAL
        );
        self.all(&sql, [run.to_string()], rows::approval)
    }

    fn unknown_calls(&self, run: RunId) -> Result<Vec<UnknownCall>, StoreError> {
        let sql = format!(
            "{BELOW} SELECT r.run_id, s.path, b.above || s.path, s.tool, s.error_json, s.attempt FROM below b
             JOIN workflow_step_runs s ON s.run_id = b.id JOIN workflow_runs r ON r.id = b.id
             WHERE s.status = 'uncertain' ORDER BY s.started_at, s.n"
        );
        self.all(&sql, [run.to_string()], |row| {
            let run_id = rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?;
            let (path, shown, tool): (String, _, _) = (row.get(1)?, row.get(2)?, row.get(3)?);
            let digest = attempt_digest(run_id, &path, row.get(5)?);
            Ok(UnknownCall { run_id, path, shown, digest, tool, error: rows::failure(row, 4)? })
        })
    }

    fn session(&self, id: &str) -> Result<Option<Session>, StoreError> {
        let sql = "SELECT id, user, state_json FROM sessions WHERE id = ?1";
        let read = |row: &Row<'_>| Ok(Session { id: row.get(0)?, user: row.get(1)?, state: row.get(2)? });
        Ok(self.all(sql, [id], read)?.pop())
    }

    fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        self.all("SELECT kind, id, body_json FROM accounts", [], |row| {
            let kind = AccountKind::from_word(row.get_ref(0)?.as_str().map_err(rows::damaged)?);
            let unknown = || StoreError::Corrupt("an account of an unknown kind".to_owned());
            Ok(Account { kind: kind.ok_or_else(unknown)?, id: row.get(1)?, body: row.get(2)? })
        })
    }

    fn schedules(&self) -> Result<Vec<Schedule>, StoreError> {
        self.with(schedules::all)
    }

    fn definitions(&self) -> Result<Vec<Definition>, StoreError> {
        self.newest_definitions("1")
    }

    fn published(&self) -> Result<Vec<Definition>, StoreError> {
        self.newest_definitions("published = 1")
    }

    fn versions(&self, name: &str) -> Result<Vec<Definition>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NULL ORDER BY version DESC",
            rows::DEFINITION
        );
        self.all(&sql, [name], rows::definition)
    }

    fn definition(&self, name: &str, version: Option<u32>) -> Result<Option<Definition>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NULL
             AND (?2 IS NULL OR version = ?2) ORDER BY version DESC LIMIT 1",
            rows::DEFINITION
        );
        Ok(self.all(&sql, params![name, version], rows::definition)?.pop())
    }
}

impl Readers {
    fn newest_definitions(&self, which: &str) -> Result<Vec<Definition>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_definitions d WHERE {which} AND deleted_at IS NULL AND version =
             (SELECT max(version) FROM workflow_definitions WHERE name = d.name AND deleted_at IS NULL)
             ORDER BY name",
            rows::DEFINITION
        );
        self.all(&sql, [], rows::definition)
    }
}
