//! Tests that no statement scans a table that grows: every statement of the store is traced and explained.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::run::{
    BudgetUse, Event, Failure, FailureKind, PauseReason, Payload, PolicyRule, PolicyUse, Record, RunStatus,
    Started, StepInfo, StepRef, StepStatus, TimerKind,
};
use uuid::Uuid;

use super::readers::Reader;
use super::{Options, SqliteStore};
use crate::{
    Account, AccountKind, After, AttemptOutcome, ClaimKey, Commit, Cursor, DefinitionChange, DefinitionQuery,
    Expected, Freeze, ListRuns, ListSteps, NewClaim, NewDefinition, NewDelivery, NewNotification, NewRun,
    NotificationKind, NotificationQuery, OutboxChange, Pins, PolicyChange, Principal, Purge, Reads,
    RegistryChange, Remembered, RunCommit, RunId, RunState, Schedule, ScheduleChange, Session, StepFilter,
    Store, Timer, TokenScope, Unfinished, Visibility, Wanted,
};

/// Tables that do not grow with the number of runs.
const SMALL_TABLES: [&str; 5] = ["accounts", "policy_state", "schedules", "steprail_meta", "sqlite_schema"];

/// Statements whose scan is bounded, with the reason.
const BOUNDED: &[(&str, &str)] = &[
    ("WHERE 1 ORDER BY r.id DESC LIMIT", "a list without filters reads its page from the end"),
    ("WHERE 1 AND r.id < ? ORDER BY r.id DESC LIMIT", "the next page of such a list"),
    ("FROM workflow_log ORDER BY id DESC LIMIT 1", "the last row"),
    ("WHERE run_id <> 0 ORDER BY id DESC LIMIT 1", "the last row, after administrative actions"),
    ("FROM approvals a JOIN runs r ON r.id = a.run_id WHERE a.status = 'open'", "an index of open approvals"),
    ("principal_json ->> '$.scope' IS NOT NULL", "an index of the runs of scoped tokens"),
    ("FROM notifications o ORDER BY o.id DESC LIMIT", "the newest ones, from the end"),
    ("o.planned_at IS NULL ORDER BY o.id LIMIT", "an index of notifications without a plan"),
    (
        "FROM deliveries WHERE status = 'failed' ORDER BY id DESC LIMIT",
        "an index of dead letters, from the end",
    ),
    ("DELETE FROM workflow_definitions", "retention: hidden definitions, once an hour"),
    ("FROM workflow_definitions d WHERE", "the list of definitions contains all of them"),
    ("DELETE FROM sessions WHERE id IN", "the end of an index, beyond the limit of sessions"),
];

type Traced = Arc<Mutex<BTreeSet<String>>>;

#[test]
fn no_statement_scans_a_growing_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("test.db");
    let traced = Traced::default();
    let mut store = SqliteStore::open(&path, &Options::default()).expect("a store");
    trace(&mut store.connection, &traced);
    write(&mut store);
    load(&mut store);
    read(&store, &path, &traced);
    store.connection.trace_v2(TraceEventCodes::empty(), None::<fn(TraceEvent<'_>)>).expect("no trace");
    let traced = traced.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(traced.len() > 60, "{} statements are traced", traced.len());
    let scans: Vec<String> = traced.iter().flat_map(|sql| scans(&store.connection, sql)).collect();
    assert!(scans.is_empty(), "{}", scans.join("\n"));
}

fn trace(connection: &mut Connection, traced: &Traced) {
    let traced = traced.clone();
    let note = move |event: TraceEvent<'_>| {
        if let TraceEvent::Stmt(statement, _) = event {
            let sql = statement.sql().split_whitespace().collect::<Vec<_>>().join(" ");
            traced.lock().unwrap_or_else(PoisonError::into_inner).insert(sql);
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note)).expect("a trace");
}

/// The scans of growing tables in the plan of a statement.
fn scans(connection: &Connection, sql: &str) -> Vec<String> {
    let is_query = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].iter().any(|word| sql.starts_with(word));
    let numberless: String = sql.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    let is_bounded = BOUNDED.iter().any(|(part, _)| {
        let part: String = part.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        numberless.contains(&part)
    });
    if !is_query || is_bounded || sql.contains("sqlite_sequence") {
        return Vec::new();
    }
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a plan");
    let none = vec![rusqlite::types::Null; statement.parameter_count()];
    let lines =
        statement.query_map(rusqlite::params_from_iter(none), |row| row.get::<_, String>(3)).expect("lines");
    let lines: Vec<String> = lines.map(|line| line.expect("a line")).collect();
    let is_scan = |line: &&String| {
        let table = line.strip_prefix("SCAN ").map(|rest| rest.split(' ').next().unwrap_or_default());
        // Parts of a recursive query and subqueries have names of their own.
        let is_part = |table: &str| {
            matches!(table, "b" | "below" | "CONSTANT" | "json_each") || table.starts_with("(subquery")
        };
        table.is_some_and(|table| !(SMALL_TABLES.contains(&table) || is_part(table)))
    };
    lines.iter().filter(is_scan).map(|line| format!("{line}: {sql}")).collect()
}

fn id(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

fn state(status: RunStatus) -> RunState {
    RunState { status, active: false }
}

fn step(n: u32) -> StepRef {
    StepRef { n, path: format!("s{n}").into(), attempt: 1 }
}

fn started(n: u32, what: Started) -> Event {
    let place = StepInfo {
        id: format!("s{n}").into(),
        kind: "tool".into(),
        scope: steprail_core::run::ScopeKey::ROOT,
    };
    Event::StepStarted { step: step(n), place, what, until: Some(9) }
}

fn remembered() -> Remembered {
    Remembered {
        id: "r".to_owned(),
        rule: "mails".to_owned(),
        terms: Hash([3; 32]),
        user: "ann".to_owned(),
        tool: "t".to_owned(),
        args: None,
        by: "lea".to_owned(),
        at: 5,
        until: 9,
    }
}

/// Commits that use every statement of the writer.
fn write(store: &mut SqliteStore) {
    let mut commit = |commit: Commit| store.commit(&Commit { now: 5, ..commit }).expect("a commit");
    let definition = |hidden| NewDefinition {
        name: "one".to_owned(),
        hash: Hash([1; 32]),
        spec_json: "{}".into(),
        by: crate::Actor::user("ann"),
        hidden,
        published: true,
        pins: Pins::new(),
        workflows: crate::WorkflowPins::new(),
        expected: Expected::Any,
        owner: Some("ann".to_owned()),
    };
    let put = [false, true].map(|hidden| DefinitionChange::Put(definition(hidden)));
    let definitions = commit(Commit { definitions: put.into(), ..Commit::default() }).definitions;
    let large = Payload::new(json!("x".repeat(1_000)));
    let new = NewRun {
        definition: definitions[0].id,
        principal: Arc::new(Principal::user("ann")),
        inputs: large.clone(),
        parent: None,
        rerun: None,
        interruptible: true,
        request_key: Some("once".to_owned()),
    };
    let key = ClaimKey { scope: "user:ann".to_owned(), tool: "t".to_owned(), key: "k".to_owned() };
    let claim = NewClaim { key, args: large.hash(), n: 1, ttl_secs: Some(1) };
    let with_payload = |event| Record { payload: Some(large.clone()), ..Record::plain(event) };
    let policy = PolicyUse {
        rule: PolicyRule { rule: "mails".into(), version: "1".into() },
        budget: Some(BudgetUse { subject: "user:ann".into(), start: 0 }),
        approved: None,
    };
    let call = Started::Call {
        tool: "t".into(),
        args: large.hash(),
        key: "k".into(),
        claimed: true,
        policy: Some(Box::new(policy)),
    };
    let begun = Event::RunStarted {
        definition: "one".into(),
        version: 1,
        hash: Hash([1; 32]),
        by: "ann".into(),
        inputs: large.hash(),
        parent: None,
        rerun_of: None,
        facts: None,
    };
    let error = Failure::new(FailureKind::ToolError, "no");
    let gate = Event::ApprovalRequested {
        step: step(2),
        digest: Hash([2; 32]),
        prompt: "?".into(),
        tool: None,
        args: None,
        until: Some(8),
        escalate: None,
        remind: None,
        reminders: 0,
        level: 0,
        notify: Vec::new(),
        form: None,
        state: None,
        subject: None,
        renewed: false,
    };
    let signed = Event::ApprovalSigned {
        step: step(2),
        by: "ann".into(),
        reason: None,
        digest: Hash([2; 32]),
        provenance: None,
        remaining: 1,
    };
    let wait = Started::Wait { event: "go".into(), correlate: None, signal: None };
    let records = vec![
        Record::plain(begun),
        with_payload(started(1, call)),
        Record::plain(started(2, Started::Approve {})),
        Record::plain(gate),
        Record { had_gate: true, had_timer: true, ..Record::plain(signed) },
        Record {
            had_gate: true,
            had_timer: true,
            ..Record::plain(Event::ApprovalGranted {
                step: step(2),
                by: "lea".into(),
                reason: None,
                answer: None,
                digest: None,
                provenance: None,
            })
        },
        Record::plain(started(3, wait)),
        Record {
            had_wait: true,
            had_timer: true,
            ..Record::plain(Event::StepSkipped { step: step(3), reason: "".into() })
        },
        Record::plain(Event::RetryScheduled { step: step(2), error: error.clone(), due: 7 }),
        Record {
            had_claim: Some("k".into()),
            ..with_payload(Event::StepCompleted { step: step(1), output: large.hash(), from: None })
        },
        Record::plain(Event::StepUncertain { step: StepRef { attempt: 2, ..step(2) }, error }),
        Record::plain(Event::RunInterrupted { restored: None }),
    ];
    let decision = |run, expected_seq, new, records, before, after, claims| RunCommit {
        run,
        expected_seq,
        new,
        records,
        before: state(before),
        after: state(after),
        claims,
        stored_bytes: 0,
    };
    let written = records.len() as u64;
    let first = decision(
        id(1),
        0,
        Some(Box::new(new)),
        records,
        RunStatus::Pending,
        RunStatus::Interrupted,
        vec![claim],
    );
    commit(Commit { runs: vec![first], ..Commit::default() });
    let fired = vec![Timer { run: id(1), n: 2, kind: TimerKind::Retry, due: 7 }];
    let resumed = vec![Record::plain(Event::RunResumed { by: None })];
    let second =
        decision(id(1), written, None, resumed, RunStatus::Interrupted, RunStatus::Running, Vec::new());
    commit(Commit { runs: vec![second], fired, ..Commit::default() });
    let paused = Record::plain(Event::RunPaused { reason: PauseReason::Requested, by: None });
    let output = with_payload(Event::RunCompleted { output: large.hash() });
    let end = decision(
        id(1),
        written + 1,
        None,
        vec![paused, output],
        RunStatus::Running,
        RunStatus::Completed,
        Vec::new(),
    );
    commit(Commit { runs: vec![end], ..Commit::default() });
    let schedule = Schedule::new("nightly", "one", "0 2 * * *", Principal::user("ann"));
    let account = Account { kind: AccountKind::User, id: "ann".to_owned(), body: "{}".to_owned() };
    let session = Session { id: "s".to_owned(), user: "ann".to_owned(), state: "{}".to_owned() };
    commit(Commit {
        schedules: vec![
            ScheduleChange::Put(Box::new(schedule), None),
            ScheduleChange::Delete("nightly".to_owned(), None),
        ],
        registry: vec![
            RegistryChange::PutAccount(account, None),
            RegistryChange::DropAccount(AccountKind::User, "ann".to_owned(), None),
            RegistryChange::PutSession(session),
            RegistryChange::DropSession("s".to_owned()),
        ],
        policy: vec![
            PolicyChange::Freeze(Freeze { by: "ann".to_owned(), reason: None, at: 5 }),
            PolicyChange::Remember(Box::new(remembered())),
            PolicyChange::Revoke { id: "r".to_owned(), by: crate::Actor::user("bob") },
            PolicyChange::Unfreeze { by: crate::Actor::user("bob") },
        ],
        ..Commit::default()
    });
    let add = |run| {
        OutboxChange::Add(Box::new(NewNotification {
            kind: NotificationKind::ApprovalRequested,
            run,
            path: Some("a".to_owned()),
            to: Vec::new(),
            body: serde_json::value::to_raw_value(&1).expect("JSON"),
        }))
    };
    let new = NewDelivery {
        recipient: "ann".to_owned(),
        channel: "ntfy".to_owned(),
        address: "a".to_owned(),
        due: 1,
        in_digest: false,
    };
    let in_digest = NewDelivery { in_digest: true, ..new.clone() };
    let failed = AttemptOutcome::Failed { error: "no".to_owned() };
    let sent = AttemptOutcome::Sent { receipt: None };
    commit(Commit {
        outbox: vec![
            add(Some(id(1))),
            add(Some(id(1))),
            OutboxChange::Plan { notification: 1, deliveries: vec![new, in_digest.clone()] },
            OutboxChange::Attempt { delivery: 1, last: 1, outcome: failed },
            OutboxChange::Resend { delivery: 1 },
            OutboxChange::Attempt { delivery: 1, last: 1, outcome: sent.clone() },
            OutboxChange::Attempt { delivery: 2, last: 2, outcome: sent },
            OutboxChange::Withdraw { decided: 2 },
            OutboxChange::Read { delivery: 1 },
        ],
        ..Commit::default()
    });
    commit(Commit { outbox: vec![add(None)], ..Commit::default() });
    commit(Commit { purge: Some(Purge { before: 9, limit: 10 }), ..Commit::default() });
    let plan = OutboxChange::Plan { notification: 4, deliveries: vec![in_digest] };
    commit(Commit { outbox: vec![add(None), plan], ..Commit::default() });
    let delete = DefinitionChange::Delete {
        name: "one".to_owned(),
        expected: Expected::Version(1),
        owner: None,
        by: None,
    };
    commit(Commit { definitions: vec![delete], ..Commit::default() });
}

/// Every load of decisions. The run is gone, so some of them find nothing.
fn load(store: &mut SqliteStore) {
    store.secret().expect("a secret");
    store.keys.insert(id(1), 1);
    let _ = store.head(id(1)).expect("a head");
    assert!(store.log(id(1)).is_err(), "the run was purged");
    for wanted in [
        Wanted::Inputs,
        Wanted::Result,
        Wanted::Input(1),
        Wanted::Output(1),
        Wanted::Error(1),
        Wanted::EventValue(1),
    ] {
        assert!(store.value(id(1), wanted).is_err(), "the run was purged");
    }
    for which in [DefinitionQuery::Id(1), DefinitionQuery::Newest("one"), DefinitionQuery::Version("one", 1)]
    {
        let _ = store.definition(which).expect("a definition");
    }
    for which in
        [Unfinished::Active, Unfinished::Interruptible, Unfinished::All, Unfinished::ChildrenOf(id(1))]
    {
        let _ = store.unfinished(which, Some(id(2)), 10).expect("runs");
    }
    let key = ClaimKey { scope: "user:ann".to_owned(), tool: "t".to_owned(), key: "k".to_owned() };
    let _ = store.claim(&key, 5).expect("a state");
    let _ = store.request("ann", "once").expect("a run");
    let _ = store.due(9, 10).expect("timers");
    let _ = store.waiting("go").expect("steps");
    let _ = store.approval(id(1), "s2").expect("an approval");
    let _ = store.counter("user:ann", "mails", 0).expect("a count");
}

/// Every query of the readers.
fn read(store: &SqliteStore, path: &Path, traced: &Traced) {
    let readers = store.readers().expect("readers");
    let mut reader = Reader::open(path).expect("a connection");
    trace(&mut reader.connection, traced);
    readers.keep(reader);
    let _ = readers.run(id(1)).expect("a run");
    for filter in [
        StepFilter::All,
        StepFilter::Status(StepStatus::Failed),
        StepFilter::Named(vec!["s1".to_owned()]),
        StepFilter::Open,
        StepFilter::Notable,
    ] {
        for last in [false, true] {
            let list = ListSteps { filter: filter.clone(), last, brief: last, ..ListSteps::default() };
            let _ = readers.steps(id(1), &list).expect("steps");
        }
    }
    let _ = readers.step_counts(id(1)).expect("counts");
    let _ = readers.policy_state().expect("the state of the policy");
    let _ = readers.outbox_work(9, 10, &[]).expect("work");
    for query in [
        NotificationQuery::OfRun(id(1)),
        NotificationQuery::Decisions(id(1), "a".to_owned()),
        NotificationQuery::OfDelivery(1),
        NotificationQuery::DeadLetters,
        NotificationQuery::Newest,
    ] {
        let _ = readers.notifications(query, 10).expect("notifications");
    }
    for (status, created_by, name) in [
        (None, None, None),
        (Some(RunStatus::Failed), None, None),
        (None, Some("ann".to_owned()), None),
        (None, None, Some("one".to_owned())),
        (Some(RunStatus::Failed), Some("ann".to_owned()), None),
        (Some(RunStatus::Failed), None, Some("one".to_owned())),
        (Some(RunStatus::Failed), Some("ann".to_owned()), Some("one".to_owned())),
    ] {
        for (before, brief) in [(None, false), (Some(crate::RunCursor::new(9)), true)] {
            let list = ListRuns {
                status,
                created_by: created_by.clone(),
                name: name.clone(),
                before,
                brief,
                ..ListRuns::default()
            };
            let _ = readers.runs(&list).expect("runs");
        }
    }
    for after in [After::Seq(3), After::Cursor(Cursor::new(2, 0))] {
        let _ = readers.events(id(1), after, 10).expect("events");
    }
    for user in [None, Some("ann")] {
        for within in [None, Some(TokenScope::default())] {
            let visible = Visibility { within, ..Visibility::of_user(user) };
            let _ = readers.feed(Cursor::new(1, 0), 10, &visible).expect("events");
            let _ = readers.open_approvals(&visible, 10).expect("approvals");
            let list = ListRuns { visible, ..ListRuns::default() };
            let _ = readers.runs(&list).expect("runs");
        }
    }
    readers.last_event().expect("a cursor");
    let _ = readers.run_approvals(id(1), 10).expect("approvals");
    let _ = readers.last_approval(id(1), "a").expect("approvals");
    let _ = readers.unknown_calls(id(1), 10).expect("calls");
    let _ = readers.usage("ann", 10).expect("usage");
    let _ = readers.session("s").expect("a session");
    let _ = readers.accounts().expect("accounts");
    let _ = readers.schedules().expect("schedules");
    let _ = readers.definitions().expect("definitions");
    let _ = readers.published().expect("definitions");
    let _ = readers.versions("one").expect("versions");
    let _ = readers.definition("one", Some(1)).expect("a definition");
}
