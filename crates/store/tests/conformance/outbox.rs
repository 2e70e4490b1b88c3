//! Notifications and deliveries.

use serde_json::json;
use serde_json::value::to_raw_value;
use steprail_store::{
    AttemptOutcome, Commit, DeliveryStatus, NewDelivery, NewNotification, Notification, NotificationKind,
    NotificationQuery, OutboxChange, Purge, Reads, RunId, Store,
};

use super::{on_every_storage, start};

fn change(store: &mut dyn Store, now: i64, outbox: Vec<OutboxChange>) {
    store.commit(&Commit { now, outbox, ..Commit::default() }).expect("a commit");
}

fn requested(run: Option<RunId>) -> OutboxChange {
    OutboxChange::Add(Box::new(NewNotification {
        kind: NotificationKind::ApprovalRequested,
        run,
        path: Some("ask".to_owned()),
        to: vec!["user:lea".to_owned()],
        body: to_raw_value(&json!({ "prompt": "Go on?" })).expect("JSON"),
    }))
}

fn decided(run: RunId) -> OutboxChange {
    OutboxChange::Add(Box::new(NewNotification {
        kind: NotificationKind::ApprovalDecided,
        run: Some(run),
        path: Some("ask".to_owned()),
        to: Vec::new(),
        body: to_raw_value(&json!({ "by": "tom" })).expect("JSON"),
    }))
}

fn to(recipient: &str, due: i64) -> NewDelivery {
    let (channel, address) = ("ntfy".to_owned(), "topic".to_owned());
    NewDelivery { recipient: recipient.to_owned(), channel, address, due, in_digest: false }
}

fn attempt(delivery: i64, outcome: AttemptOutcome) -> OutboxChange {
    OutboxChange::Attempt { delivery, last: i64::MAX, outcome }
}

fn statuses(reads: &dyn Reads, run: RunId) -> Vec<(String, DeliveryStatus, u32)> {
    let found = reads.notifications(NotificationQuery::OfRun(run), 10).expect("notifications");
    let deliveries = found.into_iter().flat_map(|(_, deliveries)| deliveries);
    deliveries.map(|delivery| (delivery.recipient, delivery.status, delivery.attempts)).collect()
}

#[test]
fn a_notification_is_planned_once_and_delivered_until_it_is_sent_or_given_up() {
    on_every_storage(|store, reads| {
        let run = start(store, 1, Vec::new());
        change(store, 5, vec![requested(Some(run)), requested(None)]);
        let work = reads.outbox_work(5, 10, &[]).expect("work");
        let ids: Vec<i64> = work.unplanned.iter().map(|notification| notification.id).collect();
        assert_eq!((ids.len(), work.due.len(), work.next), (2, 0, None));
        assert_eq!(work.unplanned[0].run, Some(run));
        assert_eq!(work.unplanned[0].body.get(), r#"{"prompt":"Go on?"}"#);
        let plan = |deliveries| OutboxChange::Plan { notification: ids[0], deliveries };
        let none = OutboxChange::Plan { notification: ids[1], deliveries: Vec::new() };
        // The plan of a planned notification is not changed.
        change(store, 6, vec![plan(vec![to("lea", 10), to("tom", 20)]), plan(vec![to("eve", 1)]), none]);
        let work = reads.outbox_work(9, 10, &[]).expect("work");
        assert_eq!((work.unplanned.len(), work.due.len(), work.next), (0, 0, Some(10)));
        let work = reads.outbox_work(10, 10, &[]).expect("work");
        assert_eq!((work.due.len(), work.next), (1, Some(20)));
        let (lea, notifications) = (&work.due[0].delivery, &work.due[0].notifications);
        assert_eq!((&*lea.recipient, &notifications[0].to[..]), ("lea", &["user:lea".to_owned()][..]));
        let retry = AttemptOutcome::Retry { due: 30, error: "busy".to_owned() };
        change(store, 11, vec![attempt(lea.id, retry)]);
        let tom = reads.outbox_work(20, 10, &[]).expect("work").due.remove(0).delivery;
        change(store, 21, vec![attempt(tom.id, AttemptOutcome::Failed { error: "gone".to_owned() })]);
        let sent = AttemptOutcome::Sent { receipt: Some("{}".to_owned()) };
        change(store, 31, vec![attempt(lea.id, sent)]);
        // A late result of a delivery that has ended changes nothing.
        change(store, 32, vec![attempt(lea.id, AttemptOutcome::Failed { error: "late".to_owned() })]);
        let of = |recipient: &str, status, attempts| (recipient.to_owned(), status, attempts);
        assert_eq!(
            statuses(reads, run),
            [of("lea", DeliveryStatus::Sent, 2), of("tom", DeliveryStatus::Failed, 1)]
        );
        let dead = reads.notifications(NotificationQuery::DeadLetters, 10).expect("dead letters");
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].1[1].error.as_deref(), Some("gone"));
        change(store, 40, vec![OutboxChange::Resend { delivery: tom.id }]);
        change(store, 41, vec![OutboxChange::Read { delivery: lea.id }]);
        assert_eq!(
            statuses(reads, run),
            [of("lea", DeliveryStatus::Read, 2), of("tom", DeliveryStatus::Queued, 0)]
        );
        assert_eq!(reads.outbox_work(40, 10, &[]).expect("work").due.len(), 1);
    });
}

#[test]
fn a_decision_takes_back_the_requests_of_its_step() {
    on_every_storage(|store, reads| {
        let run = start(store, 1, Vec::new());
        change(
            store,
            1,
            vec![requested(Some(run)), requested(Some(run)), decided(run), requested(Some(run))],
        );
        let ids: Vec<i64> =
            reads.outbox_work(1, 10, &[]).expect("work").unplanned.iter().map(|n| n.id).collect();
        let digest = |recipient: &str| NewDelivery { in_digest: true, ..to(recipient, 3) };
        let plan = |at: usize, deliveries| OutboxChange::Plan { notification: ids[at], deliveries };
        let first = vec![to("sent", 2), to("sending", 2), to("queued", 9), digest("digest")];
        change(
            store,
            2,
            vec![
                plan(0, first),
                plan(1, vec![to("reminded", 9), digest("digest")]),
                plan(3, vec![to("next", 9)]),
            ],
        );
        let due = reads.outbox_work(3, 10, &[]).expect("work").due;
        let shown: Vec<_> = due.iter().map(|due| (&*due.delivery.recipient, due.count)).collect();
        assert_eq!(shown, [("sent", 1), ("sending", 1), ("digest", 2)]);
        let sent = || AttemptOutcome::Sent { receipt: Some("{}".to_owned()) };
        change(store, 4, vec![attempt(due[0].delivery.id, sent()), attempt(due[2].delivery.id, sent())]);
        change(store, 5, vec![OutboxChange::Withdraw { decided: ids[2] }]);
        // A message that was on its way is taken back when it has arrived.
        let taking_back = || -> Vec<_> {
            let due = reads.outbox_work(6, 10, &[]).expect("work").due;
            due.into_iter().map(|due| due.delivery.recipient).collect()
        };
        assert_eq!(taking_back(), ["sent"]);
        change(store, 6, vec![attempt(due[1].delivery.id, sent())]);
        assert_eq!(taking_back(), ["sent", "sending"]);
        let retry = AttemptOutcome::Retry { due: 8, error: "busy".to_owned() };
        change(store, 7, vec![attempt(due[0].delivery.id, retry)]);
        assert_eq!(taking_back(), ["sending"]);
        change(store, 8, vec![attempt(due[0].delivery.id, sent()), attempt(due[1].delivery.id, sent())]);
        assert!(taking_back().is_empty());
        let of = |recipient: &str, status, attempts| (recipient.to_owned(), status, attempts);
        assert_eq!(
            statuses(reads, run),
            [
                of("sent", DeliveryStatus::Withdrawn, 3),
                of("sending", DeliveryStatus::Withdrawn, 2),
                of("queued", DeliveryStatus::Withdrawn, 0),
                of("digest", DeliveryStatus::Withdrawn, 1),
                of("reminded", DeliveryStatus::Withdrawn, 0),
                of("digest", DeliveryStatus::Withdrawn, 1),
                of("next", DeliveryStatus::Queued, 0),
            ]
        );
        let decisions = reads.notifications(NotificationQuery::Decisions(run, "ask".to_owned()), 1);
        assert_eq!(decisions.expect("a decision")[0].0.id, ids[2]);
    });
}

#[test]
fn a_digest_has_all_due_notifications_of_its_time_and_is_recorded_as_one() {
    on_every_storage(|store, reads| {
        let count = 1_000;
        change(store, 1, (0..count).map(|_| requested(None)).collect());
        let unplanned = reads.outbox_work(1, count, &[]).expect("work").unplanned;
        let digest = |due| NewDelivery { in_digest: true, ..to("lea", due) };
        let plans = unplanned.iter().enumerate().map(|(index, notification)| OutboxChange::Plan {
            notification: notification.id,
            deliveries: vec![digest(if index == 0 { 5 } else { 10 })],
        });
        change(store, 2, plans.collect());
        let work = reads.outbox_work(10, 5, &[]).expect("work");
        let counts: Vec<_> = work.due.iter().map(|due| (due.count, due.notifications.len())).collect();
        assert_eq!(counts, [(1, 1), (999, 200)]);
        let retry = AttemptOutcome::Retry { due: 30, error: "busy".to_owned() };
        change(store, 11, vec![attempt(work.due[1].delivery.id, retry)]);
        let again = reads.outbox_work(30, 5, &["other".to_owned()]).expect("work").due;
        assert_eq!((again[1].count, again[1].delivery.digest_at), (999, Some(10)), "the same digest");
        change(
            store,
            31,
            again
                .iter()
                .map(|due| attempt(due.delivery.id, AttemptOutcome::Sent { receipt: None }))
                .collect(),
        );
        let work = reads.outbox_work(100, 5, &[]).expect("work");
        assert_eq!((work.due.len(), work.next), (0, None));
        let all = reads.notifications(NotificationQuery::Newest, count).expect("notifications");
        assert!(all.iter().all(|(_, deliveries)| deliveries[0].status == DeliveryStatus::Sent));
    });
}

#[test]
fn a_delivery_that_is_planned_while_its_digest_is_sent_is_not_lost() {
    on_every_storage(|store, reads| {
        let digest = || NewDelivery { in_digest: true, ..to("lea", 5) };
        let plan_all = |store: &mut dyn Store, reads: &dyn Reads| {
            let unplanned = reads.outbox_work(5, 10, &[]).expect("work").unplanned;
            let plan =
                |of: &Notification| OutboxChange::Plan { notification: of.id, deliveries: vec![digest()] };
            change(store, 5, unplanned.iter().map(plan).collect());
        };
        change(store, 1, vec![requested(None), requested(None)]);
        plan_all(store, reads);
        let sending = reads.outbox_work(5, 10, &[]).expect("work").due.remove(0);
        change(store, 5, vec![requested(None)]);
        plan_all(store, reads);
        let (delivery, last) = (sending.delivery.id, sending.last);
        let outcome = AttemptOutcome::Sent { receipt: None };
        change(store, 6, vec![OutboxChange::Attempt { delivery, last, outcome }]);
        let left = reads.outbox_work(6, 10, &[]).expect("work").due;
        assert_eq!(left.iter().map(|due| due.count).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn retention_deletes_old_notifications() {
    on_every_storage(|store, reads| {
        change(store, 5, vec![requested(None)]);
        change(store, 50, vec![requested(None)]);
        store
            .commit(&Commit { now: 60, purge: Some(Purge { before: 50, limit: 10 }), ..Commit::default() })
            .expect("a purge");
        let left = reads.notifications(NotificationQuery::Newest, 10).expect("notifications");
        assert_eq!(left.iter().map(|(left, _)| left.created_at).collect::<Vec<_>>(), [50]);
    });
}
