//! A crash after every commit: each recipient still gets each notification over each channel, and a repeated message has the
//! same id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use steprail_core::run::{Millis, Payload};
use steprail_engine::{
    AttemptOutcome, BoxFuture, Courier, Delivery, DueMessage, Engine, ManualClock, NewDelivery, Notification,
    Principal, Start,
};
use steprail_store::memory::MemoryStore;
use steprail_store::{
    Approval, ClaimKey, ClaimState, Commit, Committed, Definition, DefinitionQuery, Due, Head, Refused,
    RunId, Storage, Store, StoreError, StoredEvent, Unfinished, Wanted,
};
use tokio::sync::Notify;

const GATE: &str = "
name: gate
steps:
  - { id: ask, kind: approve, prompt: 'Go on?', notify_user: [lea] }
";
const CHANNELS: [&str; 2] = ["mail", "phone"];
const RUNS: usize = 3;

/// What the recipients got: the ids of the messages by run, kind, channel and recipient.
type Received = Arc<Mutex<BTreeMap<(RunId, String, String, String), Vec<i64>>>>;

#[derive(Clone, Default)]
struct Recorder {
    received: Received,
    /// Whether messages wait for a digest.
    in_digest: bool,
}

impl Recorder {
    fn record(&self, kind: &str, delivery: &Delivery, notification: &Notification) {
        let Some(run) = notification.run else { return };
        let key = (run, kind.to_owned(), delivery.channel.clone(), delivery.recipient.clone());
        self.received.lock().expect("the messages").entry(key).or_default().push(notification.id);
    }
}

impl Courier for Recorder {
    fn plan<'a>(&'a self, notification: &'a Notification, now: Millis) -> BoxFuture<'a, Vec<NewDelivery>> {
        let over = |recipient: &String, channel: &str| NewDelivery {
            recipient: recipient.clone(),
            channel: channel.to_owned(),
            address: String::new(),
            due: now,
            in_digest: self.in_digest,
        };
        let plan = notification.to.iter().flat_map(|to| CHANNELS.map(|channel| over(to, channel)));
        Box::pin(std::future::ready(plan.collect()))
    }

    fn send<'a>(&'a self, message: &'a DueMessage, _: Millis) -> BoxFuture<'a, AttemptOutcome> {
        assert_eq!(message.count, message.notifications.len() as u64);
        for notification in &message.notifications {
            self.record(notification.kind.name(), &message.delivery, notification);
        }
        Box::pin(std::future::ready(AttemptOutcome::Sent { receipt: None }))
    }

    fn withdraw<'a>(
        &'a self,
        delivery: &'a Delivery,
        notification: &'a Notification,
        _: Millis,
    ) -> BoxFuture<'a, AttemptOutcome> {
        self.record("withdrawn", delivery, notification);
        Box::pin(std::future::ready(AttemptOutcome::Sent { receipt: None }))
    }
}

/// A store that accepts some commits and then none, as if the process had ended.
struct Cut {
    store: MemoryStore,
    left: AtomicU32,
    crashed: Arc<Notify>,
}

macro_rules! pass_on {
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $name(&mut self $(, $arg: $type)*) -> $result { self.store.$name($($arg),*) })+
    };
}

impl Store for Cut {
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            self.crashed.notify_one();
            return Err(Refused::Unavailable(StoreError::Full("crashed".to_owned())));
        }
        self.left.store(left - 1, Ordering::SeqCst);
        self.store.commit(commit)
    }

    pass_on! {
        fn secret(&mut self) -> Result<[u8; 32], StoreError>;
        fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError>;
        fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError>;
        fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError>;
        fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError>;
        fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
        fn unfinished(&mut self, which: Unfinished, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError>;
        fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError>;
        fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError>;
        fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError>;
        fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError>;
        fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError>;
    }
}

/// Runs the scenario on a store until it ends or crashes. Returns the runs, if it ended.
fn live(
    store: &MemoryStore,
    clock: &Arc<ManualClock>,
    commits: u32,
    courier: &Recorder,
) -> Option<Vec<RunId>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let crashed = Arc::new(Notify::new());
    let cut = Cut { store: store.clone(), left: commits.into(), crashed: crashed.clone() };
    let storage = Storage { writer: Box::new(cut), ..store.clone().into_storage() };
    // Dropping the runtime ends all tasks at once, like a crash.
    runtime.block_on(async move {
        tokio::select! {
            biased;
            () = crashed.notified() => None,
            runs = scenario(storage, clock.clone(), courier.clone()) => runs,
        }
    })
}

/// Each part can be repeated.
async fn scenario(storage: Storage, clock: Arc<ManualClock>, courier: Recorder) -> Option<Vec<RunId>> {
    let engine = Engine::builder().storage(storage).clock(clock.clone()).courier(courier).spawn().ok()?;
    let (ann, tom) = (Principal::user("ann"), Principal::user("tom"));
    engine.define(GATE, &ann).await.ok()?;
    let mut runs = Vec::new();
    for number in 0..RUNS {
        let start = Start::named("gate", ann.clone()).request_key(number.to_string());
        runs.push(engine.start(start).await.ok()?.id());
    }
    engine.deliver_notifications().await.ok()?;
    clock.advance(10);
    engine.deliver_notifications().await.ok()?;
    // They may have been decided before the crash.
    let _ = engine.approve(runs[0], "ask", &tom, None, None).await;
    let _ = engine.deny(runs[1], "ask", &tom, Some("no".to_owned()), None).await;
    engine.deliver_notifications().await.ok()?;
    clock.advance(10);
    engine.deliver_notifications().await.ok()?;
    engine.shutdown().await.ok()?;
    Some(runs)
}

fn assert_told(courier: &Recorder, runs: &[RunId], crash: u32) -> usize {
    let received = courier.received.lock().expect("the messages");
    let mut expected: Vec<(RunId, &str, &str)> =
        runs.iter().map(|run| (*run, "approval_requested", "lea")).collect();
    expected.push((runs[1], "approval_denied", "user:ann"));
    if !courier.in_digest {
        expected.extend([(runs[0], "withdrawn", "lea"), (runs[1], "withdrawn", "lea")]);
    }
    for (run, kind, recipient) in expected {
        for channel in CHANNELS {
            let key = (run, kind.to_owned(), channel.to_owned(), recipient.to_owned());
            let ids = received.get(&key).unwrap_or_else(|| panic!("crash after {crash} commits: no {key:?}"));
            let ids: BTreeSet<_> = ids.iter().collect();
            assert_eq!(ids.len(), 1, "crash after {crash} commits: {key:?} has the ids {ids:?}");
        }
    }
    received.values().map(|ids| ids.len() - 1).sum()
}

fn crash_after_every_commit(in_digest: bool) {
    let mut repeated = 0;
    for commits in 0.. {
        let (store, courier) = (MemoryStore::new(), Recorder { in_digest, ..Recorder::default() });
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let uncut = live(&store, &clock, commits, &courier);
        let runs =
            uncut.clone().unwrap_or_else(|| live(&store, &clock, u32::MAX, &courier).expect("no crash"));
        let more = assert_told(&courier, &runs, commits);
        if uncut.is_some() {
            assert_eq!(more, 0, "without a crash nothing is sent twice");
            println!("{commits} crashes, {repeated} messages were repeated");
            assert!(commits > 5, "{commits}");
            return;
        }
        repeated += more;
    }
}

#[test]
fn messages_survive_a_crash_after_every_commit() {
    crash_after_every_commit(false);
}

#[test]
fn digests_survive_a_crash_after_every_commit() {
    crash_after_every_commit(true);
}
