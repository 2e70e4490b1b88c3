//! The contract of [`Reads`]: every store gives the same answers about the same commits.

use std::fmt::Write as _;

use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Failure, Parent, Payload, Record, RunStatus, Started, StepStatus};
use steprail_store::memory::MemoryStore;
use steprail_store::sqlite::{Options, SqliteStore};
use steprail_store::{
    Account, AccountKind, Actor, After, Commit, Cursor, DefinitionChange, ListRuns, ListSteps, NewDefinition,
    Principal, Purge, Reads, RegistryChange, RunCommit, RunId, RunState, Schedule, ScheduleChange, Session,
    StepFilter, Storage, Store, StoredEvent, Visibility,
};

use super::common::{decide, definition, first_decision};
use super::{call, id, put, started, step};

#[test]
fn every_store_gives_the_same_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
    let [memory, sqlite] = [MemoryStore::new().into_storage(), sqlite.into_storage().expect("a storage")]
        .map(|mut storage| {
            write(&mut *storage.writer);
            answers(&storage)
        });
    assert_eq!(memory, sqlite);
    for expected in ["may I?", "it failed", "nightly", "s1/s1"] {
        assert!(memory.contains(expected), "{expected} is missing in {memory}");
    }
}

/// Writes something for every question.
fn write(store: &mut dyn Store) {
    put(store, definition()).expect("a definition");
    let published =
        NewDefinition { hash: Hash([2; 32]), published: true, by: Actor::user("bob"), ..definition() };
    put(store, published).expect("a version");
    let hidden = NewDefinition { name: "two".to_owned(), hidden: true, ..definition() };
    let other = NewDefinition { name: "another".to_owned(), ..definition() };
    let definitions = vec![DefinitionChange::Put(hidden), DefinitionChange::Put(other)];
    store.commit(&Commit { now: 1, definitions, ..Commit::default() }).expect("definitions");
    // The second run is a child of the first, and a call of it has an unknown outcome.
    let child = Started::Workflow {
        run: id(2).to_string().into(),
        definition: "one".into(),
        input: Payload::new(json!({})).hash(),
    };
    let child = Record { payload: Some(Payload::new(json!({}))), ..started(1, child, None) };
    begin(store, 1, "ann", None, vec![child]);
    let parent = Some((id(1), Parent { run: id(1).to_string().into(), n: 1, attempt: 1, depth: 1 }));
    let lost = Event::StepUncertain { step: step(1), error: failure("lost") };
    begin(
        store,
        2,
        "ann",
        parent,
        vec![call(1, &Payload::new(json!({ "a": 1 })), false), Record::plain(lost)],
    );
    begin(store, 3, "bob", None, vec![started(1, Started::Approve {}, None), asked(1)]);
    begin(store, 4, "bob", None, vec![call(1, &Payload::new(json!("l".repeat(2_000))), false)]);
    let retried = Event::RetryScheduled { step: step(1), error: failure("busy"), due: 9 };
    decide(store, id(4), 2, [RunStatus::Running; 2], Record::plain(retried));
    let failed = Record::plain(Event::RunFailed { error: failure("it failed") });
    decide(store, id(4), 3, [RunStatus::Running, RunStatus::Failed], failed);
    begin(store, 5, "ann", None, Vec::new());
    let output = Payload::new(json!([1, 2]));
    let end = Record::plain(Event::RunCompleted { output: output.hash() });
    let end = Record { payload: Some(output), ..end };
    decide(store, id(5), 1, [RunStatus::Running, RunStatus::Completed], end);
    write_registry(store);
}

fn write_registry(store: &mut dyn Store) {
    let session = |user: &str, state: &str| {
        RegistryChange::PutSession(Session {
            id: "s".to_owned(),
            user: user.to_owned(),
            state: state.to_owned(),
        })
    };
    let account = |id: &str| Account { kind: AccountKind::Token, id: id.to_owned(), body: "{}".to_owned() };
    let registry = vec![
        session("ann", "1"),
        session("ann", "2"),
        session("bob", "3"),
        RegistryChange::PutAccount(account("t1"), None),
        RegistryChange::PutAccount(account("t2"), None),
        RegistryChange::DropAccount(AccountKind::Token, "t1".to_owned(), None),
    ];
    let schedule = Schedule::new("nightly", "one", "0 2 * * *", Principal::user("ann"));
    let schedules = vec![ScheduleChange::Put(Box::new(schedule), None)];
    store.commit(&Commit { now: 3, registry, schedules, ..Commit::default() }).expect("a registry");
}

fn begin(
    store: &mut dyn Store,
    number: u128,
    user: &str,
    parent: Option<(RunId, Parent)>,
    more: Vec<Record>,
) {
    let mut first = first_decision(1, id(number), json!({ "n": number.to_string() }), more);
    let new = first.new.as_mut().expect("a new run");
    new.principal =
        std::sync::Arc::new(Principal { groups: vec!["g".to_owned()], ..Principal::user(user).via("cli") });
    new.parent = parent;
    let after = RunState { status: RunStatus::Running, active: number == 1 };
    let runs = vec![RunCommit { after, stored_bytes: 100, ..first }];
    store.commit(&Commit { now: 1, runs, ..Commit::default() }).expect("a run");
}

fn asked(n: u32) -> Record {
    Record::plain(Event::ApprovalRequested {
        step: step(n),
        digest: Hash([7; 32]),
        prompt: "may I?".into(),
        tool: Some("demo__a".into()),
        args: None,
        until: Some(99),
        escalate: None,
        remind: None,
        reminders: 0,
        notify: Vec::new(),
        form: Some(json!({ "type": "object" })),
        state: None,
        level: 0,
        subject: None,
        renewed: false,
    })
}

fn failure(message: &str) -> Failure {
    Failure::new(steprail_core::run::FailureKind::Lost, message)
}

/// All answers, before and after ended runs are purged.
fn answers(storage: &Storage) -> String {
    let reads = &*storage.readers;
    let mut text = String::new();
    let mut tell = |question: &str, answer: &dyn std::fmt::Debug| {
        writeln!(text, "{question}: {answer:?}").expect("text");
    };
    for number in 1..=6 {
        let run = id(number);
        tell("run", &reads.run(run).expect("a run"));
        for filter in
            [StepFilter::All, StepFilter::Open, StepFilter::Notable, StepFilter::Status(StepStatus::Done)]
        {
            let list = ListSteps { filter, limit: 2, ..ListSteps::default() };
            tell("steps", &reads.steps(run, &list).expect("steps"));
        }
        tell(
            "last steps",
            &reads.steps(run, &ListSteps { last: true, ..ListSteps::default() }).expect("steps"),
        );
        tell("step_counts", &reads.step_counts(run).expect("counts"));
        let page = reads.events(run, After::Seq(1), 2).expect("events");
        tell("events", &(page.next.is_some(), page.map(without_position).events));
        tell("run_approvals", &reads.run_approvals(run, 10).expect("approvals"));
        tell("unknown_calls", &reads.unknown_calls(run, 10).expect("calls"));
    }
    for user in [None, Some("ann"), Some("bob"), Some("eve")] {
        tell("feed", &feed(reads, user));
        tell("open_approvals", &reads.open_approvals(&Visibility::of_user(user), 9).expect("approvals"));
        tell("usage", &reads.usage(user.unwrap_or("nobody"), 9).expect("usage"));
        let list =
            ListRuns { created_by: user.map(str::to_owned), limit: 2, brief: true, ..ListRuns::default() };
        let page = reads.runs(&list).expect("runs");
        let next = ListRuns { before: page.last().map(|run| run.cursor), ..list };
        tell("runs", &(page, reads.runs(&next).expect("runs")));
    }
    let failed =
        ListRuns { status: Some(RunStatus::Failed), name: Some("one".to_owned()), ..ListRuns::default() };
    tell("failed runs", &reads.runs(&failed).expect("runs"));
    let last = reads.last_event().expect("a cursor");
    tell("after the last event", &reads.feed(last, 9, &Visibility::default()).expect("a feed").events);
    tell("session", &reads.session("s").expect("a session"));
    tell("accounts", &reads.accounts().expect("accounts"));
    tell("schedules", &reads.schedules().expect("schedules"));
    tell("definitions", &reads.definitions().expect("definitions"));
    tell("published", &reads.published().expect("definitions"));
    tell("versions", &reads.versions("one").expect("versions"));
    tell("definition", &reads.definition("one", Some(1)).expect("a definition"));
    tell("definition", &reads.definition("two", None).expect("a definition"));
    text
}

/// An event without its cursor and hash. They depend on administrative actions, which the in-memory store does not log.
fn without_position<E>(stored: StoredEvent<E>) -> (RunId, u64, i64, E) {
    (stored.run, stored.seq, stored.at, stored.event)
}

/// The feed of a user in pages of three events.
fn feed(reads: &dyn Reads, user: Option<&str>) -> Vec<String> {
    let (mut pages, mut after) = (Vec::new(), Some(Cursor::START));
    while let Some(cursor) = after {
        let page = reads.feed(cursor, 3, &Visibility::of_user(user)).expect("a feed");
        after = page.next;
        let page = page.map(|(event, starter)| (without_position(event), starter));
        pages.push(format!("{:?}", page.events));
    }
    pages
}

#[test]
fn purged_runs_leave_the_position_of_the_feed() {
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
    for mut storage in [MemoryStore::new().into_storage(), sqlite.into_storage().expect("a storage")] {
        write(&mut *storage.writer);
        let before = storage.readers.last_event().expect("a cursor");
        let purge = Some(Purge { before: 9, limit: 9 });
        let purged =
            storage.writer.commit(&Commit { now: 9, purge, ..Commit::default() }).expect("a purge").purged;
        assert_eq!(
            (purged.runs, purged.others),
            (2, 1),
            "two runs ended, and a hidden definition has no runs"
        );
        assert_eq!(storage.readers.last_event().expect("a cursor"), before);
        assert_eq!(storage.readers.usage("bob", 9).expect("usage").active_runs, 1);
        assert!(storage.readers.run(id(5)).expect("a query").is_none());
        assert!(storage.writer.head(id(5)).expect("a query").is_none());
        assert!(storage.writer.log(id(5)).is_err());
    }
}
