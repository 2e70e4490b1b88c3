//! Notifications: written with the event that causes them, delivered at least once, and taken back after a decision.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use serde_json::json;
use steprail_core::run::Millis;
use steprail_engine::{
    AttemptOutcome, BoxFuture, Clock as _, Courier, DefineOptions, Delivery, DueMessage, Engine, ManualClock,
    NewDelivery, Notification, NotificationKind, NotificationQuery, Options, Outage, Outcome, Overlap,
    Principal, RunHandle, Schedule, SqliteStore, Start, ToolCall, ToolCaller, Tools,
};

const GATE: &str = "
name: pay
steps:
  - { id: ask, kind: approve, prompt: 'Pay 40?', notify_user: [lea], timeout: 2h, escalate: [{ after: 1h, notify: 'user:kim' }] }
  - { id: pay, tool: demo__pay }
";

/// Delivers to a list, and fails as often as the test says.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Records>>);

#[derive(Default)]
struct Records {
    received: Vec<String>,
    outcomes: VecDeque<AttemptOutcome>,
    in_digest: bool,
}

impl Recorder {
    fn fail_with(&self, outcome: AttemptOutcome) {
        self.0.lock().expect("the records").outcomes.push_back(outcome);
    }

    fn received(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("the records").received)
    }
}

impl Courier for Recorder {
    fn plan<'a>(&'a self, notification: &'a Notification, now: Millis) -> BoxFuture<'a, Vec<NewDelivery>> {
        let in_digest = self.0.lock().expect("the records").in_digest;
        let to = |recipient: &String| NewDelivery {
            recipient: recipient.clone(),
            channel: "list".to_owned(),
            address: "here".to_owned(),
            due: if in_digest { now + 60_000 } else { now },
            in_digest,
        };
        Box::pin(std::future::ready(notification.to.iter().map(to).collect()))
    }

    fn send<'a>(&'a self, message: &'a DueMessage, _: Millis) -> BoxFuture<'a, AttemptOutcome> {
        let mut records = self.0.lock().expect("the records");
        let outcome = records.outcomes.pop_front().unwrap_or(AttemptOutcome::Sent { receipt: None });
        let kind = message.notifications[0].kind;
        let mut text = format!("{} to {}", kind.name(), message.delivery.recipient);
        if message.count > 1 {
            let _ = write!(text, " and {} more", message.count - 1);
        }
        if !matches!(outcome, AttemptOutcome::Sent { .. }) {
            text += " failed";
        }
        records.received.push(text);
        Box::pin(std::future::ready(outcome))
    }

    fn withdraw<'a>(
        &'a self,
        delivery: &'a Delivery,
        _: &'a Notification,
        _: Millis,
    ) -> BoxFuture<'a, AttemptOutcome> {
        let text = format!("taken back from {}", delivery.recipient);
        self.0.lock().expect("the records").received.push(text);
        Box::pin(std::future::ready(AttemptOutcome::Sent { receipt: None }))
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    recorder: Recorder,
}

impl Fixture {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        Self { folder: tempfile::tempdir().expect("a folder"), clock, recorder: Recorder::default() }
    }

    fn engine(&self) -> Engine {
        let store =
            SqliteStore::open(self.folder.path().join("db"), &Options::default()).expect("a database");
        let tools = Tools::new().tool("demo__pay", |_| async { Ok(json!(1)) });
        let builder = Engine::builder().store(store).tools(tools).clock(self.clock.clone());
        builder.courier(self.recorder.clone()).spawn().expect("an engine")
    }
}

async fn waiting(engine: &Engine) -> RunHandle {
    engine.define(GATE, &Principal::user("ann")).await.expect("a definition");
    engine.start(Start::named("pay", Principal::user("ann"))).await.expect("a run")
}

async fn states(engine: &Engine, run: &RunHandle) -> String {
    let found = engine.notifications(NotificationQuery::OfRun(run.id()), 100).await.expect("notifications");
    let mut text = String::new();
    for (notification, deliveries) in found {
        let _ = write!(text, "{}:", notification.kind.name());
        for delivery in deliveries {
            let error = delivery.error.map(|error| format!(" ({error})")).unwrap_or_default();
            let _ = write!(
                text,
                " {} {} after {}{error}",
                delivery.recipient,
                delivery.status.name(),
                delivery.attempts
            );
        }
        text.push('\n');
    }
    text
}

#[tokio::test]
async fn an_approval_is_told_and_taken_back() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let run = waiting(&engine).await;
    engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(fixture.recorder.received(), ["approval_requested to lea"]);
    engine.approve(run.id(), "ask", &Principal::user("tom"), None, None).await.expect("an approval");
    run.wait().await.expect("an end");
    engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(fixture.recorder.received(), ["taken back from lea"]);
    insta::assert_snapshot!(states(&engine, &run).await);
}

#[tokio::test]
async fn a_request_is_taken_back_when_its_run_is_cancelled() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let run = waiting(&engine).await;
    engine.deliver_notifications().await.expect("delivered");
    engine.cancel(run.id(), &Principal::user("ann"), "not needed").await.expect("cancelled");
    run.wait().await.expect("an end");
    engine.deliver_notifications().await.expect("delivered");
    assert_eq!(fixture.recorder.received(), ["approval_requested to lea", "taken back from lea"]);
}

#[tokio::test]
async fn an_unavailable_channel_is_tried_again_and_a_dead_letter_can_be_sent_again() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let busy = || AttemptOutcome::Retry { due: fixture.clock.now() + 60_000, error: "busy".to_owned() };
    fixture.recorder.fail_with(busy());
    fixture.recorder.fail_with(AttemptOutcome::Failed { error: "no such topic".to_owned() });
    let run = waiting(&engine).await;
    let next = engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(next, Some(fixture.clock.now() + 60_000));
    fixture.clock.advance(60_000);
    engine.deliver_notifications().await.expect("a delivery");
    let dead = engine.notifications(NotificationQuery::DeadLetters, 10).await.expect("dead letters");
    let delivery = dead[0].1[0].id;
    let before = states(&engine, &run).await;
    engine.resend_notification(delivery).await.expect("a dead letter");
    engine.deliver_notifications().await.expect("a delivery");
    let tried =
        ["approval_requested to lea failed", "approval_requested to lea failed", "approval_requested to lea"];
    assert_eq!(fixture.recorder.received(), tried);
    insta::assert_snapshot!(format!("{before}\n{}", states(&engine, &run).await));
}

#[tokio::test]
async fn a_notification_survives_a_restart_before_it_is_sent() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let busy = AttemptOutcome::Retry { due: fixture.clock.now() + 1, error: "busy".to_owned() };
    fixture.recorder.fail_with(busy);
    let run = waiting(&engine).await;
    engine.deliver_notifications().await.expect("a delivery");
    drop(run);
    engine.shutdown().await.expect("a stop");
    drop(engine);
    fixture.recorder.received();
    fixture.clock.advance(1);
    let engine = fixture.engine();
    engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(fixture.recorder.received(), ["approval_requested to lea"]);
}

#[tokio::test]
async fn many_notifications_become_a_digest() {
    let fixture = Fixture::new();
    fixture.recorder.0.lock().expect("the records").in_digest = true;
    let engine = fixture.engine();
    waiting(&engine).await;
    for _ in 0..99 {
        engine.start(Start::named("pay", Principal::user("ann"))).await.expect("a run");
    }
    engine.deliver_notifications().await.expect("a plan");
    assert!(fixture.recorder.received().is_empty());
    fixture.clock.advance(60_000);
    engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(fixture.recorder.received(), ["approval_requested to lea and 99 more"]);
    let all = engine.notifications(NotificationQuery::Newest, 1_000).await.expect("notifications");
    assert_eq!(all.len(), 100);
    assert!(all.iter().all(|(notification, _)| notification.kind == NotificationKind::ApprovalRequested));
}

/// Two channels, of which one never answers.
#[derive(Clone, Default)]
struct HalfMute(Recorder);

impl Courier for HalfMute {
    fn plan<'a>(&'a self, notification: &'a Notification, now: Millis) -> BoxFuture<'a, Vec<NewDelivery>> {
        Box::pin(async move {
            let mut plan = self.0.plan(notification, now).await;
            let mute = plan.iter().cloned().map(|new| NewDelivery { channel: "mute".to_owned(), ..new });
            let mute: Vec<_> = mute.collect();
            plan.splice(0..0, mute);
            plan
        })
    }
    fn send<'a>(&'a self, message: &'a DueMessage, now: Millis) -> BoxFuture<'a, AttemptOutcome> {
        if message.delivery.channel == "mute" {
            return Box::pin(std::future::pending());
        }
        self.0.send(message, now)
    }
    fn withdraw<'a>(
        &'a self,
        delivery: &'a Delivery,
        notification: &'a Notification,
        now: Millis,
    ) -> BoxFuture<'a, AttemptOutcome> {
        self.0.withdraw(delivery, notification, now)
    }
}

#[tokio::test]
async fn a_channel_that_does_not_answer_holds_up_no_other() {
    let fixture = Fixture::new();
    let store = SqliteStore::open(fixture.folder.path().join("db"), &Options::default()).expect("a database");
    let builder = Engine::builder().store(store).clock(fixture.clock.clone());
    let engine = builder.courier(HalfMute(fixture.recorder.clone())).spawn().expect("an engine");
    waiting(&engine).await;
    for _ in 0..40 {
        engine.start(Start::named("pay", Principal::user("ann"))).await.expect("a run");
    }
    while fixture.recorder.0.lock().expect("the records").received.len() < 41 {
        tokio::task::yield_now().await;
    }
}

/// Tools whose server can be declared unavailable.
#[derive(Clone, Default)]
struct Outages(Arc<Mutex<Option<OnOutage>>>);

type OnOutage = Box<dyn Fn(Outage) + Send + Sync>;

impl ToolCaller for Outages {
    fn call(&self, _: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async { Ok(json!(1)) })
    }
    fn on_outage(&self, outage: OnOutage) {
        *self.0.lock().expect("the function") = Some(outage);
    }
}

#[tokio::test]
async fn operators_owners_and_users_are_told_of_what_no_run_causes() {
    let fixture = Fixture::new();
    let outages = Outages::default();
    let store = SqliteStore::open(fixture.folder.path().join("db"), &Options::default()).expect("a database");
    let builder = Engine::builder().store(store).tools(outages.clone()).clock(fixture.clock.clone());
    let engine = builder.courier(fixture.recorder.clone()).spawn().expect("an engine");
    let ann = Principal::user("ann");
    let told = async |count: usize| {
        while fixture.recorder.0.lock().expect("the records").received.len() < count {
            engine.deliver_notifications().await.expect("a delivery");
            tokio::task::yield_now().await;
        }
        fixture.recorder.received()
    };
    let report = |needs_login: bool, user: Option<&str>| {
        let report = outages.0.lock().expect("the function");
        let user = user.map(str::to_owned);
        report.as_ref().expect("a function")(Outage {
            server: "demo".into(),
            reason: "no".into(),
            needs_login,
            user,
        });
    };
    report(false, None);
    assert_eq!(told(1).await, ["server_unavailable to right:administer"]);
    report(true, Some("lea"));
    assert_eq!(told(1).await, ["login_expired to user:lea"]);
    report(true, None);
    assert_eq!(told(1).await, ["login_expired to right:administer"]);

    let propose = DefineOptions { propose: true, ..DefineOptions::default() };
    engine.define_with(GATE, &Principal::user("lea").through_agent(), &propose).await.expect("a proposal");
    assert_eq!(told(2).await, ["proposal_waiting to user:lea", "proposal_waiting to right:administer"]);

    engine.define(GATE, &ann).await.expect("a definition");
    let every_minute = Schedule {
        name: "often".to_owned(),
        definition: "pay".to_owned(),
        version: None,
        cron: "* * * * *".to_owned(),
        zone: "UTC".to_owned(),
        inputs: json!({}),
        overlap: Overlap::Allow,
        principal: ann.clone(),
        due: Some(0),
        last: None,
    };
    engine.schedule(every_minute).await.expect("a schedule");
    engine.delete_definition("pay").await.expect("deleted");
    for _ in 0..3 {
        let due = engine.schedules().await.expect("schedules")[0].due;
        fixture.clock.advance(60_000);
        while engine.schedules().await.expect("schedules")[0].due == due {
            tokio::task::yield_now().await;
        }
    }
    engine.deliver_notifications().await.expect("a delivery");
    assert_eq!(told(1).await, ["schedule_missed to user:ann"], "once, until a run was started");
}
