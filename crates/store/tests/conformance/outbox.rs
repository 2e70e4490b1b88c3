//! Notifications and deliveries.

use serde_json::json;
use serde_json::value::to_raw_value;
use steprail_store::{
    AttemptOutcome, Commit, DeliveryStatus, NewDelivery, NewNotification, NotificationKind,
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

fn to(recipient: &str, due: i64) -> NewDelivery {
    let (channel, address) = ("ntfy".to_owned(), "topic".to_owned());
    NewDelivery { recipient: recipient.to_owned(), channel, address, due, in_digest: false }
}

fn attempt(delivery: i64, outcome: AttemptOutcome) -> OutboxChange {
    OutboxChange::Attempt { delivery, outcome }
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
        let (lea, notification) = &work.due[0];
        assert_eq!((&*lea.recipient, &notification.to[..]), ("lea", &["user:lea".to_owned()][..]));
        let retry = AttemptOutcome::Retry { due: 30, error: "busy".to_owned() };
        change(store, 11, vec![attempt(lea.id, retry)]);
        let tom = reads.outbox_work(20, 10, &[]).expect("work").due.remove(0).0;
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
        change(store, 41, vec![OutboxChange::Close { delivery: lea.id, status: DeliveryStatus::Withdrawn }]);
        assert_eq!(
            statuses(reads, run),
            [of("lea", DeliveryStatus::Withdrawn, 2), of("tom", DeliveryStatus::Queued, 0)]
        );
        assert_eq!(reads.outbox_work(40, 10, &[]).expect("work").due.len(), 1);
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
