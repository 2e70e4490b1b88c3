//! Databases that were changed in the file: the audit finds every change of a row that determines what runs, as whom, or
//! what was decided, and the engine refuses such a row when it loads it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params};
use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::source::Source;
use steprail_engine::{
    Account, AccountKind, Actor, Annotations, Cursor, DefineOptions, Engine, Event, Expected, ListRuns,
    ManualClock, Options, PolicyHandle, Principal, Reads, Remembered, RunId, Schedule, SqliteStore, Start,
    Tools, Visibility, compile_policy,
};
use steprail_store::sqlite::{HeadState, Verified, compare_heads, head, verify};
use steprail_store::{ADMIN_LOG, Commit, PolicyChange, RowContent, Store as _, link};

const GATED: &str = "
name: gated
steps:
  - { id: ask, kind: approve, prompt: 'Pay?' }
  - { id: pay, tool: demo__pay, args: { sum: 1 }, idempotency_key: k1 }
  - { id: wait, kind: wait, event: go }
";
const PARENT: &str = "name: parent\nsteps: [{ id: sub, kind: workflow, name: child, inputs: { a: 1 } }]";
const CHILD: &str = "name: child\ninputs: { a: integer }\nsteps: [{ id: one, tool: demo__pay, args: { sum: '{{inputs.a}}' } }]";
const POLICY: &str = "{ default: allow, rules: [
    { name: child, workflows: child, then: { limit: { budget: 50, per: run } } },
    { name: pay, tools: demo__pay, then: { limit: { budget: 99/w, per: user } } } ] }";
const HOUR: i64 = 3_600_000;

fn ann() -> Principal {
    Principal::user("ann")
}

fn engine(database: &Path) -> (Arc<ManualClock>, Engine) {
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let pay = |_| async { Ok(json!({ "paid": true })) };
    let store = SqliteStore::open(database, &Options::default()).expect("a database");
    let tools = Tools::new().tool_with("demo__pay", Annotations::IDEMPOTENT, pay);
    let policy = PolicyHandle::default();
    let (compiled, problems) = compile_policy(&Source::new("policy.yaml", POLICY));
    assert!(problems.is_empty(), "{problems:?}");
    policy.replace(compiled);
    let builder = Engine::builder().store(store).tools(tools).clock(clock.clone()).policy(policy);
    (clock, builder.spawn().expect("an engine"))
}

async fn until(engine: &Engine, run: RunId, path: &str, word: &str) {
    let mut events = engine.subscribe(Some(run), Cursor::START);
    while let Some(stored) = events.next().await.expect("events") {
        if stored.event.name() == word && stored.event.step().is_some_and(|step| &*step.path == path) {
            return;
        }
    }
}

async fn account(engine: &Engine, kind: AccountKind, id: &str, body: &str) {
    let account = Account { kind, id: id.to_owned(), body: body.to_owned() };
    engine.registry().put_account(account, Some(Actor::user("owner"))).await.expect("an account");
}

/// A database with definitions, accounts, schedules, approvals, keys, sub-workflows, a rerun and a purge.
async fn busy_database(folder: &Path) -> PathBuf {
    let path = folder.join("test.db");
    let (clock, engine) = engine(&path);
    let old = "name: old\nsteps: [{ id: a, tool: demo__pay }]";
    let old = engine.start(Start::inline(old, ann())).await.expect("a run");
    old.wait().await.expect("an end");
    clock.advance(48 * HOUR);
    assert_eq!(engine.purge(Duration::from_hours(24)).await.expect("purged"), 1);
    for text in [GATED, CHILD, PARENT] {
        engine.define(text, &ann()).await.expect("a definition");
    }
    let user = engine.as_user(ann());
    let published = "name: offered\ndescription: d\nsteps: [{ id: a, kind: pass }]";
    user.define(published, Some(true), Expected::Absent).await.expect("a definition");
    user.define("name: gone\nsteps: [{ id: a, kind: pass }]", None, Expected::Absent)
        .await
        .expect("a definition");
    user.delete_definition("gone", Expected::Any).await.expect("deleted");
    let options = DefineOptions { propose: true, ..DefineOptions::default() };
    let agent = ann().through_agent();
    let proposed = "name: offered\nsteps: [{ id: a, tool: demo__pay }]";
    engine.define_with(proposed, &agent, &options).await.expect("a proposal");
    account(&engine, AccountKind::User, "lea", r#"{"revision":1,"entry":{"roles":["viewer"]}}"#).await;
    account(&engine, AccountKind::Group, "staff", r#"{"revision":1,"entry":{"roles":["author"]}}"#).await;
    account(&engine, AccountKind::Token, "t1", r#"{"user":"lea","agent":true}"#).await;
    account(&engine, AccountKind::Token, "t2", r#"{"user":"lea","agent":false}"#).await;
    account(&engine, AccountKind::SignIn, "s1", r#"{"user":"lea","seen_at":1}"#).await;
    engine.registry().drop_account(AccountKind::Token, "t2", None).await.expect("revoked");
    engine.schedule(Schedule::new("hourly", "offered", "0 * * * *", ann())).await.expect("a schedule");
    let start = |key: &str| engine.start(Start::named("gated", ann()).request_key(key));
    let (approved, open) = (start("one").await.expect("a run"), start("two").await.expect("a run"));
    let denied = start("three").await.expect("a run");
    for run in [&approved, &open, &denied] {
        until(&engine, run.id(), "ask", "approval_requested").await;
    }
    let lea = Principal::user("lea");
    engine.approve(approved.id(), "ask", &lea, Some("fine".to_owned()), None).await.expect("approved");
    engine.deny(denied.id(), "ask", &lea, None, None).await.expect("denied");
    until(&engine, approved.id(), "wait", "step_started").await;
    let parent = engine.start(Start::named("parent", ann())).await.expect("a run");
    parent.wait().await.expect("an end");
    engine.rerun(parent.id(), Some(Vec::new()), ann()).await.expect("a run").wait().await.expect("an end");
    engine.freeze(&Principal::user("owner"), Some("an incident".to_owned())).await.expect("frozen");
    engine.unfreeze(&Principal::user("owner")).await.expect("not frozen");
    engine.freeze(&Principal::user("owner"), None).await.expect("frozen");
    engine.shutdown().await.expect("shut down");
    drop(engine);
    remember(&path, "r1", 2 * HOUR);
    remember(&path, "r2", 4 * HOUR);
    path
}

/// Stores a remembered approval, one hour before it ends.
fn remember(path: &Path, id: &str, until: i64) {
    let remembered = Remembered {
        id: id.to_owned(),
        rule: "payments".to_owned(),
        terms: Hash([1; 32]),
        user: "ann".to_owned(),
        tool: "demo__pay".to_owned(),
        args: None,
        by: "lea".to_owned(),
        at: until - HOUR,
        until,
    };
    let policy = vec![PolicyChange::Remember(Box::new(remembered))];
    let mut store = SqliteStore::open(path, &Options::default()).expect("a database");
    store.commit(&Commit { now: until - HOUR, policy, ..Commit::default() }).expect("committed");
}

fn audit(path: &Path) -> Verified {
    verify(path, None, &mut |_, _| ControlFlow::Continue(())).expect("an audit")
}

/// Executes statements that the triggers of the database would refuse.
fn tamper(path: &Path, sql: &str) -> usize {
    let connection = Connection::open(path).expect("the database");
    drop_triggers(&connection);
    connection.execute_batch("PRAGMA foreign_keys = OFF").expect("a setting");
    let before = connection.total_changes();
    connection.execute_batch(sql).expect(sql);
    usize::try_from(connection.total_changes() - before).expect("a number")
}

fn drop_triggers(connection: &Connection) {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'trigger'";
    let mut statement = connection.prepare(sql).expect("a statement");
    let names = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
    let names: Vec<String> = names.collect::<Result<_, _>>().expect("names");
    names.iter().for_each(|name| drop(connection.execute(&format!("DROP TRIGGER {name}"), [])));
}

fn copy(from: &Path, folder: &Path, name: &str) -> PathBuf {
    let to = folder.join(name);
    for suffix in ["", "-anchor"] {
        let of = |path: &Path| format!("{}{suffix}", path.display());
        std::fs::copy(of(from), of(&to)).expect("a copy");
    }
    to
}

/// Tampering of single rows, as an attacker with access to the file would do it.
const TAMPERINGS: &[(&str, &str)] = &[
    (
        "gate removed",
        "UPDATE workflow_definitions SET spec_json = '{\"name\":\"gated\",\"steps\":[{\"id\":\"pay\",\"tool\":\"demo__pay\"}]}' WHERE name = 'gated'",
    ),
    (
        "gate removed, hash fixed",
        "UPDATE workflow_definitions SET spec_json = '{}', hash = replace(hash, substr(hash, 1, 4), '0000') WHERE name = 'gated'",
    ),
    (
        "pins changed",
        "UPDATE workflow_definitions SET pins_json = '{\"demo__pay\":\"0000000000000000000000000000000000000000000000000000000000000000\"}' WHERE name = 'gated'",
    ),
    ("published", "UPDATE workflow_definitions SET published = 1 WHERE name = 'gated'"),
    ("owner of a definition", "UPDATE workflow_definitions SET created_by = 'eve' WHERE name = 'gated'"),
    ("deleted definition is back", "UPDATE workflow_definitions SET deleted_at = NULL WHERE name = 'gone'"),
    (
        "version of a sub-workflow",
        "UPDATE workflow_definitions SET workflows_json = replace(workflows_json, '\"version\":1', '\"version\":2') WHERE name = 'parent'",
    ),
    (
        "sub-workflow no longer kept",
        "UPDATE workflow_definitions SET workflows_json = NULL WHERE name = 'parent'",
    ),
    ("sub-workflow added", "UPDATE workflow_definitions SET workflows_json = '{}' WHERE name = 'gated'"),
    ("stored by a person", "UPDATE workflow_definitions SET by_agent = 1 - by_agent WHERE name = 'gated'"),
    ("version of a schedule", "UPDATE schedules SET version_json = '\"latest\"'"),
    ("version of a schedule removed", "UPDATE schedules SET version_json = NULL"),
    ("proposal changed", "UPDATE definition_proposals SET spec_json = '{}'"),
    ("proposer changed", "UPDATE definition_proposals SET created_by = 'eve'"),
    ("proposal deleted", "DELETE FROM definition_proposals"),
    (
        "proposal added",
        "INSERT INTO definition_proposals SELECT 'more', hash, spec_json, created_at, created_by, via FROM definition_proposals",
    ),
    ("all runs deleted", "DELETE FROM runs"),
    ("all runs deleted with their events", "DELETE FROM runs; DELETE FROM workflow_log WHERE run_id > 0"),
    ("one run deleted", "DELETE FROM runs WHERE request_key = 'one'"),
    (
        "one run deleted like a purge",
        "UPDATE workflow_log SET body = '', hashes = zeroblob(32) WHERE run_id = 2; DELETE FROM runs WHERE id = 2",
    ),
    ("end of the log cut", "DELETE FROM workflow_log WHERE id > 20"),
    ("log emptied", "DELETE FROM workflow_log"),
    (
        "account given a right",
        "UPDATE accounts SET body_json = replace(body_json, 'viewer', 'admin') WHERE id = 'lea'",
    ),
    (
        "group given a right",
        "UPDATE accounts SET body_json = replace(body_json, 'author', 'admin') WHERE id = 'staff'",
    ),
    (
        "token no longer an agent",
        "UPDATE accounts SET body_json = replace(body_json, 'true', 'false') WHERE id = 't1'",
    ),
    (
        "revoked token is back",
        "INSERT INTO accounts VALUES ('token', 't2', '{\"user\":\"lea\",\"agent\":false}')",
    ),
    ("account deleted", "DELETE FROM accounts WHERE id = 'staff'"),
    (
        "account added",
        "INSERT INTO accounts VALUES ('user', 'eve', '{\"revision\":1,\"entry\":{\"roles\":[\"admin\"]}}')",
    ),
    (
        "session of another user",
        "UPDATE accounts SET body_json = replace(body_json, 'lea', 'ann') WHERE id = 's1'",
    ),
    ("principal of a schedule", "UPDATE schedules SET principal_json = '{\"id\":\"owner\"}'"),
    ("definition of a schedule", "UPDATE schedules SET definition = 'gated'"),
    ("schedule deleted", "DELETE FROM schedules"),
    (
        "approval flipped",
        "UPDATE approvals SET status = 'approved', decided_by = 'lea', decided_at = 1 WHERE status = 'open'",
    ),
    ("denial flipped", "UPDATE approvals SET status = 'approved' WHERE status = 'denied'"),
    ("decided by another", "UPDATE approvals SET decided_by = 'eve' WHERE status = 'approved'"),
    (
        "principal of a run",
        "UPDATE runs SET principal_json = '{\"id\":\"ann\",\"name\":\"Owner\"}' WHERE request_key = 'one'",
    ),
    ("request key of a run", "UPDATE runs SET request_key = 'other' WHERE request_key = 'one'"),
    (
        "definition of a run",
        "UPDATE runs SET definition_id = (SELECT id FROM workflow_definitions WHERE name = 'offered') WHERE request_key = 'one'",
    ),
    (
        "result under a key",
        "UPDATE idempotency_keys SET result_json = '{\"paid\":false}' WHERE status = 'done'",
    ),
    ("budget reset", "UPDATE policy_counters SET count = 1 WHERE subject = 'user:ann'"),
    ("budget deleted", "DELETE FROM policy_counters WHERE subject = 'user:ann'"),
    ("budget of a run deleted", "DELETE FROM policy_counters WHERE subject GLOB 'run:*'"),
    ("budget of another window", "UPDATE policy_counters SET start = start - 1 WHERE subject = 'user:ann'"),
    ("budget of another user", "UPDATE policy_counters SET subject = 'user:eve' WHERE subject = 'user:ann'"),
    ("spent budget added", "INSERT INTO policy_counters VALUES ('user:bob', 'pay', 1, 99)"),
    ("freeze deleted", "DELETE FROM policy_state WHERE kind = 'freeze'"),
    (
        "remembered approval for another tool",
        "UPDATE policy_state SET body_json = replace(body_json, 'demo__pay', 'demo__wipe') WHERE id = 'r2'",
    ),
    (
        "expired approval is back",
        "INSERT INTO policy_state SELECT kind, 'r1', body_json FROM policy_state WHERE id = 'r2'",
    ),
    ("users who approved", "UPDATE approvals SET signed_json = '[\"eve\"]' WHERE status = 'open'"),
    (
        "what an approval covers",
        "UPDATE approvals SET subject_json = NULL WHERE status = 'open' AND subject_json IS NOT NULL",
    ),
    ("index of bindings", "UPDATE audit_bindings SET log_row = log_row - 1 WHERE kind = 'user'"),
    (
        "row and index",
        "UPDATE accounts SET body_json = replace(body_json, 'viewer', 'admin') WHERE id = 'lea'; UPDATE audit_bindings SET hash = zeroblob(32) WHERE id = 'lea'",
    ),
];

#[tokio::test]
async fn the_audit_finds_each_tampering() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let sound = audit(&path);
    assert_eq!(sound.damages, 0, "{:?}", sound.damaged);
    assert!(sound.actions > 10, "{sound:?}");
    for (number, (name, sql)) in TAMPERINGS.iter().enumerate() {
        let copy = copy(&path, folder.path(), &format!("{number}.db"));
        assert!(tamper(&copy, sql) > 0, "{name} changed nothing");
        assert!(audit(&copy).damages > 0, "{name} was not found");
    }
}

#[tokio::test]
async fn the_engine_refuses_rows_that_were_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let tampering = |name: &str| TAMPERINGS.iter().find(|(known, _)| *known == name).expect("a tampering").1;

    let gate = copy(&path, folder.path(), "gate.db");
    let spec = r#"{"name":"gated","steps":[{"id":"pay","tool":"demo__pay"}]}"#;
    let plan = steprail_core::load(&Source::new("x.json", spec)).plan.expect("a plan");
    let sql = format!(
        "UPDATE workflow_definitions SET spec_json = '{spec}', hash = '{}' WHERE name = 'gated'",
        plan.hash
    );
    tamper(&gate, &sql);
    let (_, refusing) = engine(&gate);
    let error = refusing.start(Start::named("gated", ann())).await.expect_err("a changed definition");
    assert!(error.to_string().contains("not what the log says"), "{error}");
    refusing.start(Start::named("offered", ann())).await.expect("others start").wait().await.expect("an end");

    let kept = copy(&path, folder.path(), "kept.db");
    tamper(&kept, tampering("version of a sub-workflow"));
    let (_, refusing) = engine(&kept);
    let error = refusing.start(Start::named("parent", ann())).await.expect_err("a changed definition");
    assert!(error.to_string().contains("not what the log says"), "{error}");

    let proposal = copy(&path, folder.path(), "proposal.db");
    tamper(&proposal, tampering("proposal changed"));
    let (_, refusing) = engine(&proposal);
    let error = refusing.proposal("offered").await.expect_err("a changed proposal");
    assert!(error.to_string().contains("not what the log says"), "{error}");

    let schedule = copy(&path, folder.path(), "schedule.db");
    tamper(&schedule, tampering("principal of a schedule"));
    let (clock, refusing) = engine(&schedule);
    let before = refusing.list(ListRuns::default()).await.expect("runs").len();
    clock.advance(100 * HOUR);
    let stopped = async {
        while refusing.schedules().await.expect("schedules")[0].due.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), stopped).await.expect("the schedule stops");
    assert_eq!(refusing.list(ListRuns::default()).await.expect("runs").len(), before, "nothing was started");

    let run = copy(&path, folder.path(), "run.db");
    tamper(&run, tampering("principal of a run"));
    let (_, refusing) = engine(&run);
    let runs = refusing.list(ListRuns::default()).await.expect("runs");
    let mut refused = 0;
    for row in runs.iter().filter(|row| row.name == "gated" && !row.status.is_terminal()) {
        refused += usize::from(refusing.signal("go", json!(null), Some(row.run_id)).await.is_err());
    }
    assert_eq!(refused, 1, "only the changed run does not continue");

    let accounts = copy(&path, folder.path(), "accounts.db");
    tamper(&accounts, tampering("account given a right"));
    let store = SqliteStore::open(&accounts, &Options::default()).expect("a database");
    let error = store.readers().expect("readers").accounts().expect_err("a changed account");
    assert!(error.to_string().contains("user lea"), "{error}");

    for (number, name) in
        ["freeze deleted", "remembered approval for another tool", "expired approval is back"]
            .iter()
            .enumerate()
    {
        let policy = copy(&path, folder.path(), &format!("policy{number}.db"));
        tamper(&policy, tampering(name));
        let store = SqliteStore::open(&policy, &Options::default()).expect("a database");
        let error = store.readers().expect("readers").policy_state().expect_err(name);
        assert!(error.to_string().contains("not what the log says"), "{error}");
    }
}

/// Tables and columns that determine what runs, as whom, or what was decided, and their key for the update.
///
/// Not listed: `alarms` and `workflow_waits` (they only wake a run, whose events say what it waits for), `sessions` (state of
/// MCP clients; the user is authenticated with each request), `workflow_usage` and `stored_bytes` (quotas), `active`
/// (whether recovery loads a run), next and last times of schedules, times of steps, and `seen_at` of browser sessions.
const COVERED: &[(&str, &[&str])] = &[
    (
        "workflow_definitions",
        &[
            "name",
            "version",
            "hash",
            "spec_json",
            "created_at",
            "created_by",
            "deleted_at",
            "published",
            "pins_json",
            "by_agent",
            "workflows_json",
        ],
    ),
    (
        "runs",
        &[
            "run_id",
            "definition_id",
            "name",
            "status",
            "created_by",
            "principal_json",
            "parent_id",
            "parent_n",
            "parent_attempt",
            "depth",
            "rerun_json",
            "interruptible",
            "request_key",
            "input_json",
            "output_json",
            "error_json",
            "created_at",
            "completed_at",
        ],
    ),
    ("workflow_log", &["id", "run_id", "seq", "count", "at", "body", "hashes", "hash"]),
    (
        "step_runs",
        &["n", "attempt", "path", "kind", "tool", "status", "input_json", "output_json", "error_json"],
    ),
    (
        "approvals",
        &[
            "n",
            "path",
            "user",
            "status",
            "digest",
            "prompt",
            "tool",
            "args_json",
            "notify_json",
            "requested_at",
            "expires_at",
            "decided_at",
            "decided_by",
            "reason",
            "form_json",
            "subject_json",
            "signed_json",
        ],
    ),
    ("policy_state", &["kind", "id", "body_json"]),
    ("policy_counters", &["subject", "rule", "start", "count"]),
    ("accounts", &["kind", "id", "body_json"]),
    (
        "schedules",
        &["name", "definition", "cron", "zone", "input_json", "principal_json", "overlap", "version_json"],
    ),
    ("definition_proposals", &["name", "hash", "spec_json", "created_at", "created_by", "via"]),
    ("idempotency_keys", &["scope", "tool", "key", "args_hash", "n", "status", "result_json"]),
    ("audit_bindings", &["kind", "id", "hash", "log_row"]),
];

fn changed(value: &Sql, random: &mut fastrand::Rng) -> Sql {
    match value {
        Sql::Null => Sql::Text("x".to_owned()),
        Sql::Integer(number) => Sql::Integer(number + random.i64(1..3)),
        Sql::Real(number) => Sql::Real(number + 1.0),
        Sql::Text(text) if text.is_empty() => Sql::Text("x".to_owned()),
        Sql::Text(text) => {
            let mut letters: Vec<char> = text.chars().collect();
            let at = random.usize(..letters.len());
            letters[at] = if letters[at] == '7' { '8' } else { '7' };
            Sql::Text(letters.into_iter().collect())
        }
        Sql::Blob(bytes) if bytes.is_empty() => Sql::Blob(vec![1]),
        Sql::Blob(bytes) => {
            let mut bytes = bytes.clone();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            Sql::Blob(bytes)
        }
    }
}

/// Changes one value of a random row. False if the value cannot be changed alone.
fn change_one(path: &Path, table: &str, column: &str, random: &mut fastrand::Rng) -> Option<String> {
    let connection = Connection::open(path).expect("the database");
    drop_triggers(&connection);
    connection
        .execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;")
        .expect("settings");
    let count: i64 =
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).ok()?;
    let offset = random.i64(..count.max(1));
    let sql = format!("SELECT {column} FROM {table} LIMIT 1 OFFSET {offset}");
    let before: Sql = connection.query_row(&sql, [], |row| row.get(0)).ok()?;
    // The input of a step whose events name none is never read.
    if (table, column, &before) == ("step_runs", "input_json", &Sql::Null) {
        return None;
    }
    let after = changed(&before, random);
    // Tables have different keys: the row is found by all of its columns.
    let sql = format!("SELECT * FROM {table} LIMIT 1 OFFSET {offset}");
    let mut statement = connection.prepare(&sql).expect("a statement");
    let names: Vec<String> = statement.column_names().map(ToString::to_string).collect();
    let values: Vec<Sql> = statement
        .query_row([], |row| (0..names.len()).map(|at| row.get(at)).collect::<rusqlite::Result<_>>())
        .expect("a row");
    let found: Vec<String> =
        names.iter().enumerate().map(|(at, name)| format!("{name} IS ?{}", at + 2)).collect();
    let sql = format!("UPDATE {table} SET {column} = ?1 WHERE {}", found.join(" AND "));
    let parameters = std::iter::once(after.clone()).chain(values);
    let updated = connection.execute(&sql, rusqlite::params_from_iter(parameters)).ok()?;
    (updated == 1).then(|| format!("{table}.{column}: {before:?} -> {after:?}"))
}

#[tokio::test]
async fn the_audit_finds_a_change_of_any_covered_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let mut random = fastrand::Rng::with_seed(7);
    let (mut tried, mut missed) = (0, Vec::new());
    for (table, columns) in COVERED {
        for column in *columns {
            for _ in 0..6 {
                let copy = copy(&path, folder.path(), "changed.db");
                let Some(what) = change_one(&copy, table, column, &mut random) else { continue };
                tried += 1;
                let is_found = verify(&copy, None, &mut |_, _| ControlFlow::Continue(()))
                    .map_or(true, |verified| verified.damages > 0);
                missed.extend((!is_found).then_some(what));
            }
        }
    }
    println!("{tried} changes");
    assert!(missed.is_empty(), "not found: {missed:#?}");
    assert!(tried > 250, "{tried}");
}

/// The covered contents of a database, read by full scans.
fn contents(path: &Path) -> rusqlite::Result<Vec<Vec<Sql>>> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(path, flags)?;
    let mut all = Vec::new();
    for (table, columns) in COVERED {
        let mut statement =
            connection.prepare(&format!("SELECT {} FROM {table} NOT INDEXED", columns.join(", ")))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            all.push((0..columns.len()).map(|at| row.get(at)).collect::<rusqlite::Result<_>>()?);
        }
    }
    Ok(all)
}

/// A byte that changes no covered value belongs to free space or to rows that determine nothing.
#[tokio::test]
async fn the_audit_finds_a_change_of_any_byte_that_changes_a_covered_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let (bytes, sound) = (std::fs::read(&path).expect("the file"), contents(&path).expect("contents"));
    let (mut changes, mut missed) = (0, Vec::new());
    for seed in 0..600 {
        let mut random = fastrand::Rng::with_seed(seed);
        let at = random.usize(100..bytes.len());
        let damaged_file = copy(&path, folder.path(), "byte.db");
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.u8(..8);
        std::fs::write(&damaged_file, damaged).expect("a file");
        if contents(&damaged_file).is_ok_and(|found| found == sound) {
            continue;
        }
        changes += 1;
        let is_found = verify(&damaged_file, None, &mut |_, _| ControlFlow::Continue(()))
            .map_or(true, |verified| verified.damages > 0);
        missed.extend((!is_found).then_some((seed, at)));
    }
    println!("{changes} of 600 bytes change a covered value");
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(changes > 50, "{changes}");
}

/// Recomputes the hash chain, as an attacker with the source code would.
fn rewrite_chain(path: &Path) {
    type Row = (i64, Option<String>, u64, i64, String, Vec<u8>);

    let connection = Connection::open(path).expect("the database");
    drop_triggers(&connection);
    let sql = "SELECT l.id, r.run_id, l.seq, l.at, l.body, l.hashes FROM workflow_log l
               LEFT JOIN runs r ON r.id = l.run_id ORDER BY l.id";
    let mut statement = connection.prepare(sql).expect("a statement");
    let rows = statement.query_map([], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
    });
    let rows: Vec<Row> = rows.expect("rows").collect::<Result<_, _>>().expect("rows");
    let mut chain = Hash([0; 32]);
    for (id, run, seq, at, body, hashes) in rows {
        let run = run.map_or(ADMIN_LOG, |run| run.parse().expect("a run id"));
        let digest = if body.is_empty() {
            Hash(hashes.clone().try_into().expect("32 bytes"))
        } else {
            RowContent { run, seq, at, body: &body, hashes: &hashes }.digest()
        };
        chain = link(&chain, &digest);
        connection
            .execute("UPDATE workflow_log SET hash = ?2 WHERE id = ?1", params![id, &chain.0[..]])
            .expect("a hash");
    }
}

#[tokio::test]
async fn heads_reveal_a_chain_that_was_cut_or_rewritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let kept = [head(&path).expect("a head")];
    assert_eq!(compare_heads(&path, &kept).expect("states"), [HeadState::Contained]);
    let admin = "(SELECT min(id) FROM workflow_log WHERE run_id = 0)";
    let attacks = [
        ("delete", format!("DELETE FROM workflow_log WHERE id = {admin}")),
        ("edit", format!("UPDATE workflow_log SET at = at + 1 WHERE id = {admin}")),
        (
            "reorder",
            "UPDATE workflow_log SET id = -1 WHERE id = 10; UPDATE workflow_log SET id = 10 WHERE id = 11;
             UPDATE workflow_log SET id = 11 WHERE id = -1"
                .to_owned(),
        ),
        ("truncate", "DELETE FROM workflow_log WHERE id > 25".to_owned()),
    ];
    for (name, sql) in &attacks {
        let copy = copy(&path, folder.path(), &format!("{name}.db"));
        assert!(tamper(&copy, sql) > 0, "{name}");
        let is_missing = compare_heads(&copy, &kept).expect("states") == [HeadState::Missing];
        assert!(is_missing || audit(&copy).damages > 0, "{name} was not found");
        rewrite_chain(&copy);
        assert_eq!(compare_heads(&copy, &kept).expect("states"), [HeadState::Missing], "{name}, rewritten");
    }
    let edited = folder.path().join("edit.db");
    assert_eq!(audit(&edited).damages, 0, "only a head reveals an action that was rewritten with its chain");
}

#[tokio::test]
async fn administrative_actions_are_read_in_order_and_not_in_the_feed_of_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = busy_database(folder.path()).await;
    let (_, engine) = engine(&path);
    let page = engine.registry().actions(Cursor::START, 1_000).await.expect("actions");
    let words: Vec<&str> = page.events.iter().map(|stored| stored.event.action.name()).collect();
    for word in [
        "definition_stored",
        "definition_deleted",
        "definition_proposed",
        "user_created",
        "token_revoked",
        "signed_in",
        "schedule_stored",
        "runs_purged",
        "frozen",
        "unfrozen",
        "approval_remembered",
        "remembered_expired",
    ] {
        assert!(words.contains(&word), "{word}: {words:?}");
    }
    let seqs: Vec<u64> = page.events.iter().map(|stored| stored.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let second = engine.registry().actions(page.events[2].cursor, 2).await.expect("actions");
    assert_eq!(second.events, page.events[3..5]);
    let feed = engine.feed(Cursor::START, 1_000, Visibility::default()).await.expect("a feed");
    assert!(feed.events.iter().all(|(event, _)| event.run != ADMIN_LOG));
    assert!(feed.events.iter().any(|(event, _)| {
        event.clone().read().is_ok_and(|read| matches!(read.event, Event::RunStarted { .. }))
    }));
}
