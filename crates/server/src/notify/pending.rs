//! Reminders that would pile up: a person who has not got the last message of an approval yet needs no further one.

use std::collections::BTreeSet;

use steprail_engine::{
    Delivery, DeliveryStatus, Engine, NewDelivery, Notification, NotificationKind, NotificationQuery,
};

/// Notifications of a run that are searched for messages that wait.
const SEARCHED: usize = 1_000;

/// The deliveries of a notification, without reminders to recipients for whom a message about the same approval still waits
/// for the end of quiet hours or for its channel.
pub(super) async fn without_repetitions(
    engine: Option<&Engine>,
    notification: &Notification,
    planned: Vec<NewDelivery>,
) -> Vec<NewDelivery> {
    let (Some(engine), Some(run), NotificationKind::Reminder) = (engine, notification.run, notification.kind)
    else {
        return planned;
    };
    let of_run = engine.notifications(NotificationQuery::OfRun(run), SEARCHED).await.unwrap_or_default();
    let asks = |earlier: &Notification| {
        use NotificationKind::{ApprovalEscalated, ApprovalRequested, Reminder};
        let is_request = matches!(earlier.kind, ApprovalRequested | Reminder | ApprovalEscalated);
        is_request && earlier.path == notification.path
    };
    let waits = |delivery: &Delivery| delivery.status == DeliveryStatus::Queued;
    let waiting: BTreeSet<_> = of_run
        .into_iter()
        .filter(|(earlier, _)| asks(earlier))
        .flat_map(|(_, deliveries)| deliveries)
        .filter(waits)
        .map(|delivery| (delivery.recipient, delivery.channel, delivery.address))
        .collect();
    let key = |new: &NewDelivery| (new.recipient.clone(), new.channel.clone(), new.address.clone());
    planned.into_iter().filter(|new| !waiting.contains(&key(new))).collect()
}
