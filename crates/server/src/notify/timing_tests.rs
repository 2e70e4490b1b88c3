//! Approvals over days of virtual time, with the routing of the daemon: what each person received, and when.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use steprail_core::run::Millis;
use steprail_engine::{
    Access, Engine, Grants, ManualClock, Options, PolicyHandle, Principal, Right, RunHandle, SqliteStore,
    Start, Tools,
};
use steprail_mcp::MemorySecrets;
use steprail_notify::{
    BoxFuture, Channel, Delivery, NotifyConfig, Receipt, SendError, Withdrawal, Withdrawn,
};

use crate::config::Notify;

/// Times between two looks at the outbox.
const STEP: Millis = 30 * 60_000;

/// Ann starts the runs. Lea is asked first, bob and kim are level 1, and the chief in New York is level 2.
const PEOPLE: &str = "
    channels.mail = { type = 'desktop' }
    channels.phone = { type = 'desktop' }

    [users.ann]
    time_zone = 'Europe/Berlin'
    addresses = { mail = 'ann' }
    quiet_hours = [{ from = '21:00', to = '08:00' }]

    [users.lea]
    time_zone = 'Europe/Berlin'
    addresses = { mail = 'lea', phone = 'lea' }
    channels = { low = ['mail'] }
    quiet_hours = [{ from = '22:00', to = '07:00' }]

    [users.bob]
    time_zone = 'Europe/Berlin'
    addresses = { mail = 'bob', phone = 'bob' }
    channels = { low = ['mail'] }
    quiet_hours = [{ from = '22:00', to = '07:00' }]

    [users.kim]
    time_zone = 'Asia/Tokyo'
    addresses = { mail = 'kim' }

    [users.chief]
    time_zone = 'America/New_York'
    addresses = { mail = 'chief', phone = 'chief' }
    channels = { low = ['mail'] }
    quiet_hours = [{ from = '20:00', to = '09:00' }]
    break_quiet_hours = 'emergency'

    [groups.ops]
    members = ['bob', 'kim']
";

const TIMED: &str = "
name: pay
steps:
  - id: ask
    kind: approve
    prompt: 'Pay 40?'
    approvers: ['user:lea']
    remind: every 4h
    timeout: 2d
    escalate:
      - { after: 12h, approvers: ['group:ops'], channels: [phone] }
      - { after: 1d, notify: ['user:chief'], approvers: ['user:chief'] }
  - { id: done, kind: pass }
";

const FAILS: &str = "
name: pay
steps:
  - id: ask
    kind: approve
    prompt: 'Pay 40?'
    approvers: ['user:lea']
    remind: 90m
    timeout: 4h
    on_timeout: fail
    escalate: [{ after: 2h, notify: ['user:bob'], channels: [pager] }]
";

const ESCALATES: &str = "
name: pay
steps:
  - id: ask
    kind: approve
    prompt: 'Pay 40?'
    notify_user: ['user:lea']
    remind: every 5h
    timeout: 6h
    on_timeout: escalate
    escalate: [{ after: 1h, approvers: ['user:bob'] }, { after: 2h, notify: ['user:chief'] }]
";

/// Messages as `when, what`, by person.
type Received = Arc<Mutex<BTreeMap<String, Vec<(Millis, String)>>>>;

/// Adds each message to the list of its person.
struct Recorder {
    channel: &'static str,
    received: Received,
}

impl Recorder {
    fn add(&self, person: &str, now: Millis, text: String) {
        let mut received = self.received.lock().unwrap();
        received.entry(person.to_owned()).or_default().push((now, text));
    }
}

impl Channel for Recorder {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        let message = delivery.message;
        let mut text = format!("{:<5} {}", self.channel, message.title());
        for (name, part) in [("by", &message.decider), ("comment", &message.comment), ("", &message.detail)] {
            if let Some(part) = part {
                let _ = write!(text, "; {name} {part}");
            }
        }
        message.entries.iter().for_each(|entry| text += &format!("\n{:26}- {entry}", ""));
        self.add(delivery.address, delivery.now, text);
        Box::pin(std::future::ready(Ok(Receipt::new(&message.id))))
    }

    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        let Withdrawal { message, outcome, .. } = withdrawal;
        let text = format!("{:<5} withdrawn: {} ({outcome})", self.channel, message.title());
        self.add(withdrawal.address, withdrawal.now, text);
        Box::pin(std::future::ready(Ok(Withdrawn::Done)))
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    received: Received,
}

impl Fixture {
    /// An installation that starts at a local time in Berlin.
    fn new(start: &str) -> Self {
        let start: DateTime = start.parse().unwrap();
        let start = start.to_zoned(TimeZone::get("Europe/Berlin").unwrap()).unwrap();
        let clock = Arc::new(ManualClock::at(start.timestamp().as_millisecond()));
        Self { folder: tempfile::tempdir().unwrap(), clock, received: Received::default() }
    }

    fn engine(&self) -> Engine {
        let config: NotifyConfig = toml::from_str(PEOPLE).unwrap();
        let mut settings = Notify::default();
        settings.channels.0 = config.channels;
        settings.users.0 = config.users;
        settings.groups.0 = config.groups;
        let approver = |groups: &[&str]| Grants {
            may: [Right::Approve].into(),
            groups: groups.iter().map(ToString::to_string).collect(),
            ..Grants::default()
        };
        let starter = Grants { may: [Right::Workflow].into(), ..Grants::default() };
        let accounts = [("ann", starter), ("lea", approver(&[])), ("chief", approver(&[]))];
        let ops = ["bob", "kim"].map(|name| (name, approver(&["ops"])));
        let accounts = accounts.into_iter().chain(ops).map(|(name, grants)| (name.to_owned(), grants));
        let access = Access::new(accounts.collect());
        let secrets = Arc::new(MemorySecrets::default());
        let (owner, policy, tools) = (Principal::user("ann"), PolicyHandle::default(), Tools::new());
        let opened = super::open(&settings, secrets, access.clone(), owner, &policy, &tools, None);
        let (courier, attach) = opened.unwrap().unwrap();
        for channel in ["mail", "phone"] {
            let recorder = Recorder { channel, received: self.received.clone() };
            courier.channels.replace(channel, Arc::new(recorder));
        }
        let store = SqliteStore::open(self.folder.path().join("db"), &Options::default()).unwrap();
        let builder = Engine::builder().store(store).clock(self.clock.clone()).courier(courier);
        let engine = builder.authorizer(access).spawn().unwrap();
        attach.send(Some(engine.downgrade())).unwrap();
        engine
    }

    /// Lets time pass, and delivers what is due on the way.
    async fn pass(&self, engine: &Engine, hours: i64) {
        for _ in 0..hours * 3_600_000 / STEP {
            self.clock.advance(STEP);
            settle(engine).await;
        }
    }

    /// Every message of every person, with their local time.
    fn received(&self) -> String {
        let config: NotifyConfig = toml::from_str(PEOPLE).unwrap();
        let mut text = String::new();
        for (person, messages) in &mut *self.received.lock().unwrap() {
            let zone = config.users[person].time_zone.as_deref().unwrap();
            let _ = writeln!(text, "{person} ({zone})");
            // Messages of one moment have no order.
            messages.sort();
            for same in messages.chunk_by(|a, b| a == b) {
                let (when, message) = &same[0];
                let when = Timestamp::from_millisecond(*when).unwrap().in_tz(zone).unwrap();
                let times = if same.len() > 1 { format!(" ({} times)", same.len()) } else { String::new() };
                let _ = writeln!(text, "  {} {message}{times}", when.strftime("%a %d %b %H:%M %Z"));
            }
        }
        text
    }
}

/// Waits until the engine has fired the timers that are due, and sends what is due.
async fn settle(engine: &Engine) {
    // The timers fire after the requests that came before them.
    for _ in 0..2 {
        engine.ready().await.unwrap();
    }
    engine.deliver_notifications().await.unwrap();
    // The delivery in the background notices that nothing is left before the time changes.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

async fn start(engine: &Engine, definition: &str) -> RunHandle {
    engine.define(definition, &Principal::user("ann")).await.unwrap();
    let run = engine.start(Start::named("pay", Principal::user("ann"))).await.unwrap();
    settle(engine).await;
    run
}

fn user(name: &str) -> Principal {
    let groups = if matches!(name, "bob" | "kim") { vec!["ops".to_owned()] } else { Vec::new() };
    Principal { groups, ..Principal::user(name) }
}

/// The night of 29 March 2026 has no hour from 02:00 to 03:00 in Berlin.
#[tokio::test]
async fn an_approval_is_escalated_across_a_change_of_the_clock() {
    let fixture = Fixture::new("2026-03-28T18:30");
    let engine = fixture.engine();
    let run = start(&engine, TIMED).await;
    fixture.pass(&engine, 6).await;
    let early = engine.deny(run.id(), "ask", &user("bob"), None, None).await.unwrap_err();
    assert!(early.to_string().contains("until the request is escalated further"), "{early}");
    fixture.pass(&engine, 9).await;
    let early = engine.deny(run.id(), "ask", &user("chief"), None, None).await.unwrap_err();
    assert!(early.to_string().contains("until the request is escalated further"), "{early}");
    let comment = Some("the invoice is from last year".to_owned());
    engine.deny(run.id(), "ask", &user("bob"), comment, None).await.unwrap();
    settle(&engine).await;
    fixture.pass(&engine, 36).await;
    insta::assert_snapshot!(fixture.received());
}

/// The night of 25 October 2026 has two hours from 02:00 to 03:00 in Berlin.
#[tokio::test]
async fn every_level_is_reached_before_the_request_expires() {
    let fixture = Fixture::new("2026-10-24T20:00");
    let engine = fixture.engine();
    start(&engine, TIMED).await;
    fixture.pass(&engine, 60).await;
    insta::assert_snapshot!(fixture.received());
}

#[tokio::test]
async fn an_expired_approval_fails_its_step() {
    let fixture = Fixture::new("2026-05-04T10:00");
    let engine = fixture.engine();
    start(&engine, FAILS).await;
    fixture.pass(&engine, 24).await;
    insta::assert_snapshot!(fixture.received());
}

#[tokio::test]
async fn an_approval_stays_open_after_its_timeout() {
    let fixture = Fixture::new("2026-05-04T10:00");
    let engine = fixture.engine();
    let run = start(&engine, ESCALATES).await;
    fixture.pass(&engine, 12).await;
    engine.approve(run.id(), "ask", &user("kim"), None, None).await.unwrap();
    settle(&engine).await;
    fixture.pass(&engine, 24).await;
    insta::assert_snapshot!(fixture.received());
}

/// Reminders that were due while the daemon was stopped are one message, and the next one follows after a whole interval.
#[tokio::test]
async fn a_stopped_daemon_makes_up_for_one_reminder() {
    let fixture = Fixture::new("2026-05-04T08:00");
    let engine = fixture.engine();
    drop(start(&engine, TIMED).await);
    engine.shutdown().await.unwrap();
    drop(engine);
    fixture.clock.advance(11 * 3_600_000);
    let engine = fixture.engine();
    settle(&engine).await;
    fixture.pass(&engine, 5).await;
    insta::assert_snapshot!(fixture.received());
}
