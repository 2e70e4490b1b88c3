//! Read-only queries that run concurrently with the writer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use steprail_core::run::Millis;

use super::{bindings, definitions, identity, outbox, policy, proposals, read_only, rows, schedules, steps};
use crate::Reads;
use crate::limits::READ_TIME;
use crate::page::PageBuilder;
use crate::{
    ADMIN_LOG, Account, AccountKind, AdminEvent, After, Approval, ChainHead, Cursor, Definition, Delivery,
    EventPage, ListRuns, ListSteps, Notification, NotificationQuery, OutboxWork, PolicyState, Proposal,
    RawEvent, RowKind, RunId, RunRow, Schedule, Session, Starter, StepCounts, StepPage, StoreError,
    StoredAdminEvent, StoredEvent, UnknownCall, Usage, Visibility, attempt_digest,
};

/// A run and its descendants, with the path of the steps that wait for them. A run has one parent, so none is found
/// twice, and SQLite needs no table of those that it has found.
const BELOW: &str = "WITH RECURSIVE below (id, above) AS (
    SELECT id, '' FROM runs WHERE run_id = ?1
    UNION ALL SELECT c.id, b.above || coalesce((SELECT s.path || '/' FROM step_runs s
                                            WHERE s.run_id = b.id AND s.n = c.parent_n LIMIT 1), '')
    FROM runs c JOIN below b ON c.parent_id = b.id WHERE c.completed_at IS NULL)";

/// The maximum number of log rows that one page of a user's feed reads. Other users' events advance the feed by pages
/// without events.
const FEED_ROWS: i64 = 5_000;

/// The maximum number of idle connections in the pool.
const IDLE_CONNECTIONS: usize = 4;

/// Instructions of SQLite between two checks of the time limit of a query.
const CHECK_INTERVAL: i32 = 1_000;

/// A pool of read-only connections to a database. A query takes one and returns it, and its read transaction lasts at
/// most [`READ_TIME`].
#[derive(Debug, Clone)]
pub struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Reader>>>,
    read_time: Duration,
}

/// A connection whose statements are interrupted at a deadline.
#[derive(Debug)]
pub(super) struct Reader {
    pub connection: Connection,
    deadline: Arc<Mutex<Instant>>,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
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

    /// Readers of a database file that an engine or nobody writes to.
    pub fn open(path: PathBuf) -> Self {
        Self::new(path)
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
        self.keep(reader);
        Ok(answer)
    }

    /// Returns a connection to the pool.
    pub(super) fn keep(&self, reader: Reader) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(reader);
        }
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.with(|connection| rows::all(connection, sql, params, read))
    }

    /// The first rows that `sees` accepts.
    fn first<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        limit: usize,
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
        sees: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        self.with(|connection| {
            rows::each(connection, sql, params, |row| {
                found.extend(Some(read(row)?).filter(&sees));
                Ok(found.len() < limit)
            })
        })?;
        found.truncate(limit);
        Ok(found)
    }
}

impl Reads for Readers {
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let sql = format!("SELECT {} FROM {} WHERE r.run_id = ?1", rows::RUN, rows::RUNS);
        Ok(self.all(&sql, [id.to_string()], rows::run)?.pop())
    }

    fn steps(&self, id: RunId, list: &ListSteps) -> Result<StepPage, StoreError> {
        self.with(|connection| steps::page(connection, id, list))
    }

    fn step_counts(&self, id: RunId) -> Result<StepCounts, StoreError> {
        self.with(|connection| steps::counts(connection, id))
    }

    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError> {
        let columns = if list.brief { rows::BRIEF_RUN } else { rows::RUN };
        let mut sql = format!("SELECT {columns} FROM {} WHERE 1", rows::RUNS);
        let mut values: Vec<Value> = Vec::new();
        let mut only = |column: &str, value: Value| {
            values.push(value);
            sql.push_str(&format!(" AND {column} ?{}", values.len()));
        };
        if let Some(status) = list.status {
            only("r.status =", status.name().to_owned().into());
        }
        if let Some(user) = &list.created_by {
            only("r.created_by =", user.clone().into());
        }
        if let Some(name) = &list.name {
            only("r.name =", name.clone().into());
        }
        if let Some(user) = &list.visible.user {
            only("r.created_by =", user.clone().into());
        }
        if let Some(before) = list.before {
            only("r.id <", before.row().into());
        }
        // Whether a scope is within another is not decided by SQL, so the limit counts the rows that are left.
        if list.visible.within.is_some() {
            sql.push_str(&format!(" AND {} ORDER BY r.id DESC", rows::IS_SCOPED));
        } else {
            let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
            sql.push_str(&format!(" ORDER BY r.id DESC LIMIT {limit}"));
        }
        let sees = |run: &RunRow| list.visible.includes_run(run);
        self.first(&sql, params_from_iter(values), list.limit, rows::run, sees)
    }

    fn events(&self, id: RunId, after: After, limit: usize) -> Result<EventPage<StoredEvent>, StoreError> {
        // The row of the position is read again: it can contain later events.
        let from = match after {
            After::Seq(_) => {
                "l.seq >= coalesce((SELECT max(b.seq) FROM workflow_log b WHERE b.run_id = l.run_id
                              AND b.seq <= ?2), 0)"
            }
            After::Cursor(_) => "l.id >= ?2",
        };
        let sql = format!(
            "SELECT {} FROM workflow_log l WHERE l.run_id = (SELECT id FROM runs WHERE run_id = ?1) AND {from}
             ORDER BY l.seq",
            rows::LOG
        );
        let from = match after {
            After::Seq(seq) => i64::try_from(seq).unwrap_or(i64::MAX),
            After::Cursor(cursor) => cursor.row(),
        };
        let is_after = |event: &StoredEvent| match after {
            After::Seq(seq) => event.seq > seq,
            After::Cursor(cursor) => event.cursor > cursor,
        };
        self.with(|connection| {
            let mut page = PageBuilder::new(limit);
            rows::each(connection, &sql, params![id.to_string(), from], |row| {
                let bytes = rows::log_body(row, 3)?.0.len();
                let events = rows::log_events(id, row)?.filter(is_after);
                Ok(page.add(bytes, events.map(|event| (event.cursor, event))))
            })?;
            Ok(page.finish())
        })
    }

    fn feed(
        &self,
        after: Cursor,
        limit: usize,
        visible: &Visibility,
    ) -> Result<EventPage<(RawEvent, Arc<Starter>)>, StoreError> {
        let sql = format!(
            "SELECT {}, r.run_id, r.created_by, l.count, r.principal_json ->> '$.scope' FROM workflow_log l LEFT JOIN runs r ON r.id = l.run_id
             WHERE l.id >= ?1 ORDER BY l.id LIMIT ?2",
            rows::LOG
        );
        self.with(|connection| {
            let mut page = PageBuilder::new(limit);
            let (mut scanned, mut last) = (0, after);
            let limit = if visible.is_all() { i64::MAX } else { FEED_ROWS };
            rows::each(connection, &sql, params![after.row(), limit], |row| {
                scanned += 1;
                last = Cursor::new(row.get(0)?, row.get::<_, u32>(8)? - 1);
                let (Some(run), Some(user)) =
                    (row.get::<_, Option<String>>(6)?, row.get::<_, Option<String>>(7)?)
                else {
                    return Ok(true);
                };
                let starter = Starter { user, scope: rows::scope(row, 9)? };
                if !visible.includes_starter(&starter) {
                    return Ok(true);
                }
                let starter = Arc::new(starter);
                let bytes = rows::log_body(row, 3)?.0.len();
                let events = rows::log_events(rows::run_id(&run)?, row)?;
                let events = events.filter(|event: &RawEvent| event.cursor > after);
                Ok(page.add(bytes, events.map(|event| (event.cursor, (event, starter.clone())))))
            })?;
            Ok(if scanned == FEED_ROWS { page.stop_at(last) } else { page.finish() })
        })
    }

    fn last_event(&self) -> Result<Cursor, StoreError> {
        let sql = "SELECT id, count FROM workflow_log WHERE run_id <> 0 ORDER BY id DESC LIMIT 1";
        let last = self.all(sql, [], |row| Ok(Cursor::new(row.get(0)?, row.get::<_, u32>(1)? - 1)))?.pop();
        Ok(last.unwrap_or(Cursor::START))
    }

    fn open_approvals(&self, visible: &Visibility, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let sql = format!(
            "SELECT {} FROM approvals a JOIN runs r ON r.id = a.run_id WHERE a.status = 'open' {} ORDER BY a.id",
            rows::APPROVAL,
            visible.user.as_ref().map_or("", |_| "AND a.user = ?1")
        );
        let sees = |approval: &Approval| visible.includes_approval(approval);
        self.first(&sql, params_from_iter(&visible.user), limit, rows::approval, sees)
    }

    fn run_approvals(&self, run: RunId, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let sql = format!(
            "{BELOW} SELECT {} FROM below b CROSS JOIN approvals a ON a.run_id = b.id JOIN runs r ON r.id = b.id
             WHERE a.status = 'open' ORDER BY a.id LIMIT ?2",
            rows::APPROVAL
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.all(&sql, params![run.to_string(), limit], rows::approval)
    }

    fn last_approval(&self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError> {
        let sql = format!(
            "SELECT {} FROM approvals a JOIN runs r ON r.id = a.run_id
             WHERE r.run_id = ?1 AND a.path = ?2 ORDER BY a.id DESC LIMIT 1",
            rows::APPROVAL
        );
        Ok(self.all(&sql, params![run.to_string(), path], rows::approval)?.pop())
    }

    fn unknown_calls(&self, run: RunId, limit: usize) -> Result<Vec<UnknownCall>, StoreError> {
        let sql = format!(
            "{BELOW} SELECT r.run_id, s.path, b.above || s.path, s.tool, s.error_json, s.attempt FROM below b
             CROSS JOIN step_runs s ON s.run_id = b.id JOIN runs r ON r.id = b.id
             WHERE s.status = 'uncertain' ORDER BY s.started_at, s.n LIMIT ?2"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.all(&sql, params![run.to_string(), limit], |row| {
            let run_id = rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?;
            let (path, shown, tool): (String, _, _) = (row.get(1)?, row.get(2)?, row.get(3)?);
            let digest = attempt_digest(run_id, &path, row.get(5)?);
            Ok(UnknownCall { run_id, path, shown, digest, tool, error: rows::failure(row, 4)? })
        })
    }

    fn usage(&self, user: &str, limit: u64) -> Result<Usage, StoreError> {
        let sql = "SELECT count(*), coalesce(sum(stored_bytes), 0)
                          + coalesce((SELECT bytes FROM workflow_usage WHERE created_by = ?1), 0)
                   FROM (SELECT stored_bytes FROM runs INDEXED BY idx_runs_of_user
                         WHERE created_by = ?1 AND completed_at IS NULL AND parent_id IS NULL LIMIT ?2)";
        let read = |row: &Row<'_>| Ok(Usage { active_runs: row.get(0)?, stored_bytes: row.get(1)? });
        Ok(self.all(sql, params![user, limit], read)?.pop().unwrap_or_default())
    }

    fn session(&self, id: &str) -> Result<Option<Session>, StoreError> {
        let sql = "SELECT id, user, state_json FROM sessions WHERE id = ?1";
        let read = |row: &Row<'_>| Ok(Session { id: row.get(0)?, user: row.get(1)?, state: row.get(2)? });
        Ok(self.all(sql, [id], read)?.pop())
    }

    fn policy_state(&self) -> Result<PolicyState, StoreError> {
        self.with(policy::state)
    }

    fn outbox_work(&self, now: Millis, limit: usize, busy: &[String]) -> Result<OutboxWork, StoreError> {
        self.with(|connection| outbox::work(connection, now, limit, busy))
    }

    fn notifications(
        &self,
        query: NotificationQuery,
        limit: usize,
    ) -> Result<Vec<(Notification, Vec<Delivery>)>, StoreError> {
        self.with(|connection| outbox::notifications(connection, query, limit))
    }

    fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        self.with(|connection| {
            // One moment: an account and its binding change together.
            let _moment = connection.unchecked_transaction()?;
            for kind in AccountKind::ALL.map(RowKind::from) {
                for (id, content) in bindings::contents(connection, &bindings::select(kind, ""), [])? {
                    bindings::check(connection, kind, &id, content)?;
                }
            }
            rows::all(connection, "SELECT kind, id, body_json FROM accounts", [], |row| {
                let kind = AccountKind::from_name(row.get_ref(0)?.as_str().map_err(rows::damaged)?);
                let unknown = || StoreError::Corrupt("an account of an unknown kind".to_owned());
                Ok(Account { kind: kind.ok_or_else(unknown)?, id: row.get(1)?, body: row.get(2)? })
            })
        })
    }

    fn schedules(&self) -> Result<Vec<Schedule>, StoreError> {
        self.with(schedules::all)
    }

    fn definitions(&self) -> Result<Vec<Definition>, StoreError> {
        self.with(|connection| definitions::newest(connection, false))
    }

    fn published(&self) -> Result<Vec<Definition>, StoreError> {
        self.with(|connection| definitions::newest(connection, true))
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

    fn proposals(&self) -> Result<Vec<Proposal>, StoreError> {
        self.with(proposals::all)
    }

    fn proposal(&self, name: &str) -> Result<Option<Proposal>, StoreError> {
        self.with(|connection| {
            // One moment: a proposal and its binding change together.
            let _moment = connection.unchecked_transaction()?;
            proposals::find(connection, name)
        })
    }

    fn admin_events(&self, after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, StoreError> {
        let sql = format!(
            "SELECT {} FROM workflow_log l WHERE l.run_id = 0 AND l.id >= ?1 ORDER BY l.seq",
            rows::LOG
        );
        self.with(|connection| {
            let mut page = PageBuilder::new(limit);
            rows::each(connection, &sql, [after.row()], |row| {
                let bytes = rows::log_body(row, 3)?.0.len();
                let events = rows::log_events::<AdminEvent>(ADMIN_LOG, row)?;
                let events = events.filter(|event| event.cursor > after).map(|stored| {
                    let StoredEvent { cursor, seq, at, event, hash, .. } = stored;
                    (cursor, StoredAdminEvent { cursor, seq, at, event, hash })
                });
                Ok(page.add(bytes, events))
            })?;
            Ok(page.finish())
        })
    }

    fn chain_head(&self) -> Result<ChainHead, StoreError> {
        self.with(identity::chain_head)
    }
}
