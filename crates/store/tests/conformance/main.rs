//! The contract of a [`Store`]: what every store must do, whatever it is built on.

#[path = "../common/mod.rs"]
mod common;
mod outbox;
mod reads;

use std::collections::BTreeMap;

use common::{decide, definition, first_decision};
use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::run::{
    Event, PauseReason, Payload, Record, RunStatus, Started, StepInfo, StepRef, TimerKind,
};
use steprail_store::limits::PROPOSALS_PER_USER;
use steprail_store::memory::MemoryStore;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{
    Actor, ClaimKey, ClaimState, Commit, Conflict, DefinitionChange, DefinitionQuery, Expected, NewClaim,
    NewDefinition, Principal, Purge, Reads, Refused, RunCommit, RunId, RunState, Schedule, ScheduleChange,
    Store, Timer, Unfinished, VersionPin, Wanted, WorkflowPins,
};
use uuid::Uuid;

/// Runs a scenario on every store.
fn on_every_store(scenario: impl Fn(&mut dyn Store)) {
    scenario(&mut MemoryStore::new());
    scenario(&mut SqliteStore::in_memory().expect("a database"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("test.db");
    scenario(&mut SqliteStore::open(path, &steprail_store::sqlite::Options::default()).expect("a database"));
}

/// Runs a scenario on every store with its readers.
fn on_every_storage(scenario: impl Fn(&mut dyn Store, &dyn Reads)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("test.db");
    let sqlite = SqliteStore::open(path, &steprail_store::sqlite::Options::default()).expect("a database");
    for mut storage in [MemoryStore::new().into_storage(), sqlite.into_storage().expect("a storage")] {
        scenario(&mut *storage.writer, &*storage.readers);
    }
}

fn id(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

fn put(store: &mut dyn Store, new: NewDefinition) -> Result<u32, Refused> {
    let definitions = vec![DefinitionChange::Put(new)];
    let committed = store.commit(&Commit { now: 1, definitions, ..Commit::default() })?;
    Ok(committed.definitions[0].version)
}

fn conflict(refused: Refused) -> Conflict {
    match refused {
        Refused::Conflict(conflict) => conflict,
        refused => panic!("{refused:?}"),
    }
}

/// Starts a run of a definition that is stored first.
fn start(store: &mut dyn Store, number: u128, more: Vec<Record>) -> RunId {
    put(store, definition()).expect("a definition");
    let stored = store.definition(DefinitionQuery::Newest("one")).expect("a query").expect("a definition");
    let runs = vec![first_decision(stored.id, id(number), json!({ "n": number.to_string() }), more)];
    store.commit(&Commit { now: 1, runs, ..Commit::default() }).expect("a run");
    id(number)
}

fn step(n: u32) -> StepRef {
    StepRef { n, path: format!("s{n}").into(), attempt: 1 }
}

fn started(n: u32, what: Started, until: Option<i64>) -> Record {
    let place = StepInfo {
        id: format!("s{n}").into(),
        kind: "tool".into(),
        scope: steprail_core::run::ScopeKey::ROOT,
    };
    Record::plain(Event::StepStarted { step: step(n), place, what, until })
}

fn call(n: u32, args: &Payload, claimed: bool) -> Record {
    let what = Started::Call { tool: "t".into(), args: args.hash(), key: "k".into(), claimed, policy: None };
    Record { payload: Some(args.clone()), ..started(n, what, None) }
}

fn running(run: RunId, seq: u64, records: Vec<Record>) -> RunCommit {
    let state = RunState { status: RunStatus::Running, active: false };
    RunCommit {
        run,
        expected_seq: seq,
        new: None,
        records,
        before: state,
        after: state,
        claims: Vec::new(),
        stored_bytes: 0,
    }
}

fn commit(store: &mut dyn Store, run: RunCommit) -> Result<(), Refused> {
    store.commit(&Commit { now: 2, runs: vec![run], ..Commit::default() }).map(drop)
}

/// Applies a change of definitions.
fn change(store: &mut dyn Store, change: DefinitionChange) -> Result<(), Conflict> {
    let changed = store.commit(&Commit { now: 3, definitions: vec![change], ..Commit::default() });
    changed.map(drop).map_err(conflict)
}

#[test]
fn versions_of_sub_workflows_are_kept_and_a_definition_is_adopted() {
    on_every_store(|store| {
        let pin = |version| VersionPin { version, hash: Hash([9; 32]) };
        let pins = |version| WorkflowPins::from([("child".to_owned(), pin(version))]);
        put(store, definition()).expect("a version");
        let of = |store: &mut dyn Store| {
            store.definition(DefinitionQuery::Newest("one")).expect("a query").expect("a definition")
        };
        let id = of(store).id;
        for version in [1, 2] {
            change(store, DefinitionChange::PinWorkflows { id, workflows: pins(version) }).expect("pinned");
            assert_eq!(of(store).workflows, pins(1), "a version that is kept stays");
        }
        let same = NewDefinition { workflows: pins(1), ..definition() };
        assert_eq!(put(store, same.clone()).expect("the same"), 1);
        let other = NewDefinition { workflows: pins(2), ..same };
        assert_eq!(put(store, other).expect("another version of the sub-workflow"), 2);
        let by_agent = Actor { agent: true, ..Actor::user("ann") };
        let agents = NewDefinition { name: "two".to_owned(), by: by_agent, ..definition() };
        put(store, agents).expect("a definition");
        let adopt = |name: &str, expected| DefinitionChange::Adopt {
            name: name.to_owned(),
            expected,
            by: Actor::user("bob"),
        };
        let stale = Conflict::Version { name: "one".to_owned(), newest: Some(2) };
        assert_eq!(change(store, adopt("one", Expected::Version(1))), Err(stale));
        assert_eq!(
            change(store, adopt("none", Expected::Any)),
            Err(Conflict::NoDefinition("none".to_owned()))
        );
        for name in ["one", "two"] {
            change(store, adopt(name, Expected::Any)).expect("adopted");
            let found = store.definition(DefinitionQuery::Version(name, 1)).expect("a query").expect("it");
            assert_eq!((&*found.created_by, found.by_agent), ("bob", false));
        }
    });
}

#[test]
fn a_proposal_is_no_version_and_is_closed_once() {
    on_every_store(|store| {
        let by = |user: &str, hash: u8| NewDefinition {
            hash: Hash([hash; 32]),
            by: Actor { agent: true, ..Actor::user(user) },
            owner: Some(user.to_owned()),
            ..definition()
        };
        let close = |hash: u8, accepted| DefinitionChange::CloseProposal {
            name: "one".to_owned(),
            hash: Hash([hash; 32]),
            accepted,
            by: Actor::user("ann"),
        };
        let changed = |changed| Err(Conflict::Proposal { name: "one".to_owned(), changed });
        assert_eq!(change(store, close(1, true)), changed(false));
        change(store, DefinitionChange::Propose(by("ann", 1))).expect("a proposal");
        assert!(store.definition(DefinitionQuery::Newest("one")).expect("a query").is_none());
        let of_ann = Err(Conflict::Owned { name: "one".to_owned(), by: "ann".to_owned() });
        assert_eq!(change(store, DefinitionChange::Propose(by("bob", 2))), of_ann);
        change(store, DefinitionChange::Propose(by("ann", 3))).expect("it is replaced");
        assert_eq!(change(store, close(1, true)), changed(true));
        change(store, close(3, false)).expect("rejected");
        assert_eq!(change(store, close(3, false)), changed(false));
        put(store, definition()).expect("a person's version");
        change(store, DefinitionChange::Propose(by("ann", 4))).expect("an agent proposes a change");
        let accepted = NewDefinition { by: Actor::user("ann"), ..by("ann", 4) };
        let definitions = vec![DefinitionChange::Put(accepted), close(4, true)];
        let committed = store.commit(&Commit { now: 3, definitions, ..Commit::default() }).expect("accepted");
        assert_eq!((committed.definitions[0].version, committed.definitions[0].by_agent), (2, false));
    });
}

#[test]
fn the_proposals_of_a_user_are_limited() {
    on_every_store(|store| {
        let named = |user: &str, number: usize| {
            let name = format!("proposal {number}");
            DefinitionChange::Propose(NewDefinition { name, by: Actor::user(user), ..definition() })
        };
        let proposals = (0..PROPOSALS_PER_USER).map(|number| named("ann", number)).collect();
        let commit = Commit { now: 3, definitions: proposals, ..Commit::default() };
        store.commit(&commit).expect("proposals");
        assert_eq!(change(store, named("ann", PROPOSALS_PER_USER)), Err(Conflict::ProposalLimit));
        change(store, named("ann", 0)).expect("it is replaced");
        change(store, named("bob", PROPOSALS_PER_USER)).expect("other users are not affected");
    });
}

#[test]
fn names_belong_to_their_owner_and_versions_are_preconditions() {
    on_every_store(|store| {
        let by = |user: &str, hash: u8| NewDefinition {
            hash: Hash([hash; 32]),
            by: Actor::user(user),
            owner: Some(user.to_owned()),
            ..definition()
        };
        assert_eq!(put(store, by("ann", 1)).expect("the first version"), 1);
        assert_eq!(put(store, by("ann", 1)).expect("the same again"), 1);
        let of_ann = Conflict::Owned { name: "one".to_owned(), by: "ann".to_owned() };
        assert_eq!(conflict(put(store, by("bob", 2)).expect_err("it is ann's")), of_ann);
        let changed = NewDefinition { expected: Expected::Version(1), ..by("ann", 2) };
        assert_eq!(put(store, changed.clone()).expect("the second version"), 2);
        let version = Conflict::Version { name: "one".to_owned(), newest: Some(2) };
        let late = NewDefinition { hash: Hash([3; 32]), ..changed };
        assert_eq!(conflict(put(store, late.clone()).expect_err("version 2 is newer")), version);
        let absent = NewDefinition { expected: Expected::Absent, ..late };
        assert_eq!(conflict(put(store, absent).expect_err("the name is taken")), version);
        let delete = |expected, owner: &str| {
            let (name, owner) = ("one".to_owned(), Some(owner.to_owned()));
            Commit {
                definitions: vec![DefinitionChange::Delete { name, expected, owner, by: None }],
                ..Commit::default()
            }
        };
        assert_eq!(conflict(store.commit(&delete(Expected::Any, "bob")).expect_err("it is ann's")), of_ann);
        store.commit(&delete(Expected::Version(2), "ann")).expect("it is deleted");
        let missing = store.commit(&delete(Expected::Any, "ann")).expect_err("it is gone");
        assert_eq!(conflict(missing), Conflict::NoDefinition("one".to_owned()));
        assert!(store.definition(DefinitionQuery::Newest("one")).expect("a query").is_none());
    });
}

#[test]
fn the_name_of_a_deleted_definition_belongs_to_its_owner() {
    on_every_store(|store| {
        let by = |user: &str, agent| {
            let by = Actor { agent, ..Actor::user(user) };
            NewDefinition { by, owner: Some(user.to_owned()), ..definition() }
        };
        let delete = |store: &mut dyn Store| {
            let (name, owner, expected) = ("one".to_owned(), None, Expected::Any);
            let definitions = vec![DefinitionChange::Delete { name, expected, owner, by: None }];
            store.commit(&Commit { definitions, ..Commit::default() }).expect("it is deleted");
        };
        let inline = NewDefinition { hidden: true, ..by("bob", false) };
        put(store, inline.clone()).expect("an inline definition reserves no name");
        put(store, by("ann", false)).expect("a version");
        delete(store);
        let purge = Some(Purge { before: 9, limit: 9 });
        store.commit(&Commit { now: 9, purge, ..Commit::default() }).expect("a purge");
        let of_ann = Conflict::Owned { name: "one".to_owned(), by: "ann".to_owned() };
        assert_eq!(conflict(put(store, by("bob", false)).expect_err("it is ann's")), of_ann);
        let of_person = Conflict::OfPerson { name: "one".to_owned() };
        assert_eq!(conflict(put(store, by("ann", true)).expect_err("not an agent's")), of_person);
        let proposed = DefinitionChange::Propose(by("bob", true));
        let refused = store.commit(&Commit { definitions: vec![proposed], ..Commit::default() });
        assert_eq!(conflict(refused.expect_err("it is ann's")), of_ann);
        put(store, inline).expect("an inline definition needs no name");
        put(store, by("ann", false)).expect("ann's name");
        delete(store);
        put(store, NewDefinition { owner: None, ..by("bob", false) }).expect("bob may administer");
    });
}

#[test]
fn decision_on_an_outdated_state_is_refused_and_changes_nothing() {
    on_every_store(|store| {
        let run = start(store, 1, Vec::new());
        let pause = || Record::plain(Event::RunPaused { reason: PauseReason::Requested, by: None });
        decide(store, run, 1, [RunStatus::Running, RunStatus::Paused], pause());
        let stale = commit(store, running(run, 1, vec![pause()])).expect_err("event 2 exists");
        assert!(matches!(stale, Refused::Stale(of) if of == run), "{stale:?}");
        // A refused commit leaves nothing behind, also of other runs.
        let other = start(store, 2, Vec::new());
        let resume = || Record::plain(Event::RunResumed { by: None });
        let runs = vec![running(other, 1, vec![resume()]), running(run, 1, vec![resume()])];
        store.commit(&Commit { now: 2, runs, ..Commit::default() }).expect_err("event 2 exists");
        assert_eq!(store.log(other).expect("a log").len(), 1);
        let seqs: Vec<u64> = store.log(run).expect("a log").iter().map(|event| event.seq).collect();
        assert_eq!(seqs, [1, 2]);
    });
}

#[test]
fn log_of_a_run_has_no_gap_and_no_overlap() {
    on_every_store(|store| {
        let run = start(store, 1, Vec::new());
        let resume = || Record::plain(Event::RunResumed { by: None });
        commit(store, running(run, 1, vec![resume(), resume(), resume()])).expect("events 2 to 4");
        // Event 3 is inside a row, and event 6 leaves a gap.
        for expected in [0, 1, 2, 3, 5, 100] {
            let refused =
                commit(store, running(run, expected, vec![resume()])).expect_err("the log ends at 4");
            assert!(matches!(refused, Refused::Stale(of) if of == run), "after {expected}: {refused:?}");
        }
        commit(store, running(run, 4, vec![resume()])).expect("event 5");
    });
}

#[test]
fn request_key_starts_one_run() {
    on_every_store(|store| {
        put(store, definition()).expect("a definition");
        let definition = store.definition(DefinitionQuery::Newest("one")).expect("a query").expect("it").id;
        let keyed = |number| {
            let mut decision = first_decision(definition, id(number), json!({}), Vec::new());
            decision.new.as_mut().expect("a new run").request_key = Some("once".to_owned());
            Commit { now: 1, runs: vec![decision], ..Commit::default() }
        };
        store.commit(&keyed(1)).expect("the first");
        let second = store.commit(&keyed(2)).expect_err("the key is used");
        assert_eq!(conflict(second), Conflict::RequestKey("once".to_owned()));
        assert_eq!(store.request("ann", "once").expect("a query"), Some(id(1)));
        assert_eq!(store.request("bob", "once").expect("a query"), None);
        assert!(store.head(id(2)).expect("a query").is_none());
    });
}

#[test]
fn key_is_held_until_its_step_ends() {
    on_every_store(|store| {
        let args = Payload::new(json!({ "a": 1 }));
        let key = ClaimKey { scope: "user:ann".to_owned(), tool: "t".to_owned(), key: "k".to_owned() };
        let claim = |n| NewClaim { key: key.clone(), args: args.hash(), n, ttl_secs: Some(60) };
        let (first, second) = (start(store, 1, Vec::new()), start(store, 2, Vec::new()));
        let claiming =
            |run| RunCommit { claims: vec![claim(1)], ..running(run, 1, vec![call(1, &args, true)]) };
        commit(store, claiming(first)).expect("the key is free");
        assert_eq!(store.claim(&key, 2).expect("a query"), ClaimState::Held { args: args.hash() });
        let held = commit(store, claiming(second)).expect_err("the key is held");
        assert!(matches!(&held, Refused::Held(name) if *name == key.wait_name()), "{held:?}");
        let output = Payload::new(json!("done"));
        let end = Event::StepCompleted { step: step(1), output: output.hash(), from: None };
        let end = Record { payload: Some(output.clone()), had_claim: Some("k".into()), ..Record::plain(end) };
        // The key is released and claimed again in one commit.
        let failed = Event::StepSkipped { step: step(1), reason: "no".into() };
        let released = Record { had_claim: Some("k".into()), ..Record::plain(failed) };
        let runs = vec![running(first, 2, vec![released]), claiming(second)];
        store.commit(&Commit { now: 2, runs, ..Commit::default() }).expect("the key is free again");
        commit(store, running(second, 2, vec![end])).expect("an end");
        let done = ClaimState::Done { args: args.hash(), output };
        assert_eq!(store.claim(&key, 3).expect("a query"), done);
        assert_eq!(store.claim(&key, 100_000).expect("a query"), ClaimState::Free, "the result has expired");
    });
}

#[test]
fn values_of_any_size_are_read_back() {
    on_every_store(|store| {
        let (small, large) = (Payload::new(json!("s")), Payload::new(json!("l".repeat(100_000))));
        let run = start(store, 1, Vec::new());
        for (n, value) in [(1, &small), (2, &large)] {
            let seq = u64::from(n) * 2 - 1;
            let end = Event::StepCompleted { step: step(n), output: value.hash(), from: None };
            let end = Record { payload: Some(value.clone()), ..Record::plain(end) };
            commit(store, running(run, seq, vec![call(n, value, false), end])).expect("a step");
            assert_eq!(store.value(run, Wanted::Input(n)).expect("arguments"), *value);
            assert_eq!(store.value(run, Wanted::Output(n)).expect("an output"), *value);
        }
        assert_eq!(store.value(run, Wanted::Inputs).expect("inputs"), Payload::new(json!({ "n": "1" })));
        let noted = Event::SignalReceived { event: "go".into(), payload: json!(7) };
        commit(store, running(run, 5, vec![Record::plain(noted)])).expect("a signal");
        assert_eq!(store.value(run, Wanted::EventValue(6)).expect("a value"), Payload::new(json!(7)));
        assert!(store.value(run, Wanted::EventValue(5)).is_err(), "event 5 contains no value");
    });
}

#[test]
fn timers_and_waits_follow_their_steps() {
    on_every_store(|store| {
        let run = start(store, 1, Vec::new());
        let wait = Started::Wait { event: "go".into(), correlate: None, signal: None };
        let records = vec![started(1, Started::Sleep { due: 50 }, None), started(2, wait, Some(40))];
        commit(store, running(run, 1, records)).expect("two steps");
        let due = |store: &mut dyn Store, now| -> BTreeMap<u32, TimerKind> {
            store.due(now, 10).expect("timers").timers.iter().map(|timer| (timer.n, timer.kind)).collect()
        };
        assert_eq!(due(store, 39), BTreeMap::new(), "a timer is never early");
        assert_eq!(due(store, 60), BTreeMap::from([(1, TimerKind::Sleep), (2, TimerKind::Timeout)]));
        assert_eq!(store.waiting("go").expect("steps"), [(run, 2)]);
        let fired = vec![Timer { run, n: 1, kind: TimerKind::Sleep, due: 50 }];
        store.commit(&Commit { now: 60, fired, ..Commit::default() }).expect("a timer");
        let skipped = Event::StepSkipped { step: step(2), reason: "no".into() };
        let skipped = Record { had_timer: true, had_wait: true, ..Record::plain(skipped) };
        commit(store, running(run, 3, vec![skipped])).expect("an end");
        assert_eq!(due(store, 60), BTreeMap::new());
        assert_eq!(store.waiting("go").expect("steps"), []);
    });
}

#[test]
fn interruption_holds_timers_until_the_run_is_resumed() {
    on_every_store(|store| {
        let run = start(store, 1, vec![started(1, Started::Sleep { due: 50 }, None)]);
        let due = |store: &mut dyn Store| store.due(60, 10).expect("timers").timers.len();
        let interrupted = Record::plain(Event::RunInterrupted { restored: None });
        decide(store, run, 2, [RunStatus::Running, RunStatus::Interrupted], interrupted);
        assert_eq!(due(store), 0, "the timer is held");
        assert_eq!(store.unfinished(Unfinished::All, None, 10).expect("runs"), []);
        assert_eq!(store.unfinished(Unfinished::WithInterrupted, None, 10).expect("runs"), [run]);
        let resumed = Record::plain(Event::RunResumed { by: None });
        decide(store, run, 3, [RunStatus::Interrupted, RunStatus::Running], resumed);
        assert_eq!(due(store), 1);
        // A timer that was set to another time after it fired is kept.
        let fired = vec![Timer { run, n: 1, kind: TimerKind::Sleep, due: 40 }];
        store.commit(&Commit { now: 60, fired, ..Commit::default() }).expect("a timer");
        assert_eq!(due(store), 1);
    });
}

#[test]
fn timers_of_the_same_time_are_due_in_the_order_of_their_runs() {
    on_every_store(|store| {
        // The ids of runs have another order than their creation.
        for number in [3, 1, 2] {
            let sleeps = [2, 1].map(|n| started(n, Started::Sleep { due: 50 }, None));
            start(store, number, sleeps.into());
        }
        let due = store.due(50, 5).expect("timers").timers;
        let due: Vec<(RunId, u32)> = due.iter().map(|timer| (timer.run, timer.n)).collect();
        assert_eq!(due, [(id(3), 1), (id(3), 2), (id(1), 1), (id(1), 2), (id(2), 1)]);
        let unfinished =
            |store: &mut dyn Store, after| store.unfinished(Unfinished::All, after, 2).expect("runs");
        assert_eq!(unfinished(store, None), [id(3), id(1)]);
        assert_eq!(unfinished(store, Some(id(1))), [id(2)]);
        assert_eq!(unfinished(store, Some(id(9))), [id(3), id(1)], "an unknown run is before all others");
    });
}

#[test]
fn result_under_a_key_expires_only_with_a_time_to_live() {
    on_every_store(|store| {
        let (args, output) = (Payload::new(json!({})), Payload::new(json!("done")));
        let run = start(store, 1, Vec::new());
        for (n, ttl_secs) in [(1, None), (2, Some(0)), (3, Some(1))] {
            let key = ClaimKey { scope: "user:ann".to_owned(), tool: "t".to_owned(), key: n.to_string() };
            let claims = vec![NewClaim { key: key.clone(), args: args.hash(), n, ttl_secs }];
            let seq = u64::from(n) * 2 - 1;
            let end = Event::StepCompleted { step: step(n), output: output.hash(), from: None };
            let end =
                Record { payload: Some(output.clone()), had_claim: Some("k".into()), ..Record::plain(end) };
            let records = vec![call(n, &args, true), end];
            commit(store, RunCommit { claims, ..running(run, seq, records) }).expect("a step");
            let expired = store.claim(&key, i64::MAX).expect("a query") == ClaimState::Free;
            assert_eq!(expired, ttl_secs == Some(1), "{ttl_secs:?}");
            // Only the key of an expired result can be claimed again.
            let other = start(store, 10 + u128::from(n), Vec::new());
            let claims = vec![NewClaim { key, args: args.hash(), n: 1, ttl_secs }];
            let runs = vec![RunCommit { claims, ..running(other, 1, vec![call(1, &args, true)]) }];
            let claimed = store.commit(&Commit { now: 10_000, runs, ..Commit::default() });
            assert_eq!(claimed.is_ok(), expired, "{claimed:?}");
        }
    });
}

#[test]
fn hidden_definition_is_found_by_its_id_alone() {
    on_every_store(|store| {
        put(store, definition()).expect("a definition");
        let hidden =
            NewDefinition { hidden: true, hash: Hash([2; 32]), expected: Expected::Absent, ..definition() };
        assert_eq!(put(store, hidden.clone()).expect("preconditions do not matter"), 2);
        assert_eq!(put(store, hidden).expect("the same again"), 2);
        let newest =
            store.definition(DefinitionQuery::Newest("one")).expect("a query").expect("a definition");
        assert_eq!(newest.version, 1);
        assert!(store.definition(DefinitionQuery::Version("one", 2)).expect("a query").is_none());
        let by_id = store.definition(DefinitionQuery::Id(newest.id + 1)).expect("a query").expect("it");
        assert_eq!((by_id.version, by_id.deleted), (2, true));
        // A hidden version counts.
        assert_eq!(put(store, NewDefinition { hash: Hash([3; 32]), ..definition() }).expect("a version"), 3);
    });
}

#[test]
fn rows_that_do_not_match_the_log_are_damage_of_their_run() {
    on_every_store(|store| {
        let run = start(store, 1, Vec::new());
        let skipped = Record::plain(Event::StepSkipped { step: step(7), reason: "no".into() });
        let damaged = commit(store, running(run, 1, vec![skipped])).expect_err("step 7 has not started");
        assert!(matches!(damaged, Refused::Damaged(of, _) if of == run), "{damaged:?}");
        assert_eq!(store.log(run).expect("a log").len(), 1, "nothing was written");
        assert_eq!(store.secret().expect("a secret"), store.secret().expect("the same"));
    });
}

#[test]
fn schedules_are_stored_due_and_deleted_once() {
    on_every_store(|store| {
        let schedule =
            Schedule { due: Some(9), ..Schedule::new("nightly", "one", "0 2 * * *", Principal::user("ann")) };
        let change = |change| Commit { schedules: vec![change], ..Commit::default() };
        store.commit(&change(ScheduleChange::Put(Box::new(schedule.clone()), None))).expect("a schedule");
        assert_eq!(store.due(9, 10).expect("schedules").schedules, [schedule]);
        assert_eq!(store.due(8, 10).expect("schedules").schedules, []);
        let delete = || change(ScheduleChange::Delete("nightly".to_owned(), None));
        store.commit(&delete()).expect("it is deleted");
        let missing = store.commit(&delete()).expect_err("it is gone");
        assert_eq!(conflict(missing), Conflict::NoSchedule("nightly".to_owned()));
    });
}

#[test]
fn late_result_can_follow_the_end_in_one_commit() {
    on_every_store(|store| {
        let args = Payload::new(json!({}));
        let run = start(store, 1, vec![call(1, &args, false)]);
        let output = Payload::new(json!("done"));
        let cancelled = Event::StepCancelled { step: step(1), in_flight: true };
        let end = Event::RunCompleted { output: output.hash() };
        let records = vec![
            Record::plain(cancelled),
            Record { payload: Some(output.clone()), ..Record::plain(end) },
            Record::plain(Event::LateResult { step: step(1) }),
        ];
        let after = RunState { status: RunStatus::Completed, active: false };
        commit(store, RunCommit { after, ..running(run, 2, records) }).expect("an end");
        assert_eq!(store.value(run, Wanted::Result).expect("a result"), output);
    });
}

#[test]
fn unfinished_runs_are_found_until_they_end_and_ended_ones_are_purged() {
    on_every_store(|store| {
        let runs: Vec<RunId> = (1..=3).map(|number| start(store, number, Vec::new())).collect();
        let unfinished =
            |store: &mut dyn Store, which, after| store.unfinished(which, after, 10).expect("runs");
        assert_eq!(unfinished(store, Unfinished::All, None), runs);
        assert_eq!(unfinished(store, Unfinished::All, Some(runs[0])), runs[1..]);
        assert_eq!(unfinished(store, Unfinished::Active, None), []);
        let output = Payload::new(json!(1));
        let end = Event::RunCompleted { output: output.hash() };
        let end = Record { payload: Some(output), ..Record::plain(end) };
        decide(store, runs[1], 1, [RunStatus::Running, RunStatus::Completed], end);
        assert_eq!(unfinished(store, Unfinished::All, None), [runs[0], runs[2]]);
        let purge = |before| Commit { purge: Some(Purge { before, limit: 10 }), ..Commit::default() };
        assert_eq!(store.commit(&purge(2)).expect("a purge").purged.runs, 0, "it ended at 2");
        assert_eq!(store.commit(&purge(3)).expect("a purge").purged.runs, 1);
        assert!(store.head(runs[1]).expect("a query").is_none());
        assert_eq!(store.log(runs[0]).expect("a log").len(), 1, "the chain is complete");
    });
}
