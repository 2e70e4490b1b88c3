//! The rows of notifications and deliveries.

use rusqlite::{Connection, OptionalExtension, Row, params};
use steprail_core::run::Millis;

use super::commit::Transaction;
use super::rows;
use crate::outbox::DIGEST_PARTS;
use crate::{
    AttemptOutcome, Delivery, DeliveryStatus, DueMessage, NewDelivery, NewNotification, Notification,
    NotificationKind, NotificationQuery, OutboxChange, OutboxWork, StoreError,
};

const INSERT: &str = "INSERT INTO notifications (run_id, path, kind, to_json, body_json, created_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const PLAN: &str = "UPDATE notifications SET planned_at = ?2 WHERE id = ?1 AND planned_at IS NULL";
const INSERT_DELIVERY: &str =
    "INSERT INTO deliveries (notification_id, recipient, channel, address, status, due_at, digest_at)
    VALUES (?1, ?2, ?3, ?4, 'queued', ?5, ?6)";
const ATTEMPT: &str = "UPDATE deliveries SET status = ?2, attempts = attempts + 1, due_at = ?3, error = ?4,
    receipt_json = coalesce(?5, receipt_json), ended_at = ?6 WHERE id = ?1";
const ATTEMPT_DIGEST: &str = "UPDATE deliveries SET status = ?1, attempts = attempts + 1, due_at = ?2, error = ?3,
    receipt_json = coalesce(?4, receipt_json), ended_at = ?5 WHERE recipient = ?6 AND channel = ?7 AND address = ?8
    AND digest_at = ?9 AND due_at <= ?10 AND id <= ?11";
const SEND_ALONE: &str = "UPDATE deliveries SET digest_at = NULL WHERE id = ?1";
const READ: &str = "UPDATE deliveries SET status = 'read', ended_at = ?2 WHERE id = ?1 AND status = 'sent'";
const RESEND: &str =
    "UPDATE deliveries SET status = 'queued', attempts = 0, due_at = ?2, digest_at = NULL, ended_at = NULL
    WHERE id = ?1 AND status = 'failed'";
const REQUESTS: &str =
    "SELECT o.id FROM notifications d JOIN notifications o ON o.run_id = d.run_id AND o.path = d.path
    AND o.id < d.id WHERE d.id = ?1 AND o.kind IN ('approval_requested', 'reminder', 'approval_escalated')";
/// Messages that were sent alone are taken back.
const WITHDRAW_SENT: &str = "UPDATE deliveries SET status = 'withdrawing', due_at = ?2, ended_at = NULL
    WHERE notification_id = ?1 AND status = 'sent' AND digest_at IS NULL";
const WITHDRAW_QUEUED: &str = "UPDATE deliveries SET status = 'withdrawn', due_at = NULL, ended_at = ?2
    WHERE notification_id = ?1 AND (status = 'queued' OR status = 'sent')";

const NOTIFICATION: &str = "o.id, o.kind, (SELECT r.run_id FROM runs r WHERE r.id = o.run_id), o.path, o.to_json, o.body_json, o.created_at";
const DELIVERY: &str =
    "d.id, d.notification_id, d.recipient, d.channel, d.address, d.status, d.attempts, d.due_at,
    d.digest_at, d.error, d.receipt_json, d.ended_at";
const DELIVERY_COLUMNS: usize = 12;

impl Transaction<'_> {
    pub(super) fn change_outbox(&mut self, change: &OutboxChange, now: Millis) -> Result<(), StoreError> {
        let connection = self.connection();
        let run =
            |sql: &str, params: &[&dyn rusqlite::ToSql]| connection.prepare_cached(sql)?.execute(params);
        match change {
            OutboxChange::Add(new) => self.add_notification(new, now)?,
            OutboxChange::Plan { notification, deliveries } => {
                if run(PLAN, params![notification, now])? == 1 {
                    plan(connection, *notification, deliveries)?;
                }
            }
            OutboxChange::Withdraw { decided } => withdraw(connection, *decided, now)?,
            OutboxChange::Attempt { delivery, last, outcome } => {
                record(connection, (*delivery, *last), outcome, now)?;
            }
            OutboxChange::Read { delivery } => {
                run(READ, params![delivery, now])?;
            }
            OutboxChange::Resend { delivery } => {
                run(RESEND, params![delivery, now])?;
            }
        }
        Ok(())
    }

    fn add_notification(&mut self, new: &NewNotification, now: Millis) -> Result<(), StoreError> {
        let run = match new.run {
            Some(run) => Some(self.run_key(run)?),
            None => None,
        };
        let to = serde_json::to_string(&new.to)?;
        let params = params![run, new.path, new.kind.name(), to, new.body.get(), now];
        self.connection().prepare_cached(INSERT)?.execute(params)?;
        Ok(())
    }
}

fn plan(connection: &Connection, notification: i64, deliveries: &[NewDelivery]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(INSERT_DELIVERY)?;
    for new in deliveries {
        let NewDelivery { recipient, channel, address, due, in_digest } = new;
        let digest_at = in_digest.then_some(due);
        statement.execute(params![notification, recipient, channel, address, due, digest_at])?;
    }
    Ok(())
}

/// Takes back the requests of an approval.
fn withdraw(connection: &Connection, decided: i64, now: Millis) -> Result<(), StoreError> {
    for request in rows::all(connection, REQUESTS, [decided], |row| Ok(row.get::<_, i64>(0)?))? {
        connection.prepare_cached(WITHDRAW_SENT)?.execute(params![request, now])?;
        connection.prepare_cached(WITHDRAW_QUEUED)?.execute(params![request, now])?;
    }
    Ok(())
}

/// Records an attempt of a delivery, or of all deliveries of its digest.
fn record(
    connection: &Connection,
    (id, last): (i64, i64),
    outcome: &AttemptOutcome,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = format!("SELECT {DELIVERY} FROM deliveries d WHERE d.id = ?1");
    let Some(of) = rows::all(connection, &sql, [id], delivery)?.pop() else { return Ok(()) };
    // Further deliveries of a digest can be queued after the first one was dropped.
    let status = if of.digest_at.is_some() { DeliveryStatus::Queued } else { of.status };
    let Some((status, due)) = outcome.next(status, now) else { return Ok(()) };
    let ended = due.is_none().then_some(now);
    let (status, error, receipt) = (status.name(), outcome.error(), outcome.receipt());
    let Some(digest_at) = of.digest_at else {
        connection.prepare_cached(ATTEMPT)?.execute(params![id, status, due, error, receipt, ended])?;
        return Ok(());
    };
    let Delivery { recipient, channel, address, .. } = of;
    let recorded = connection.prepare_cached(ATTEMPT_DIGEST)?.execute(params![
        status, due, error, receipt, ended, recipient, channel, address, digest_at, now, last
    ])?;
    if recorded == 1 {
        connection.prepare_cached(SEND_ALONE)?.execute([id])?;
    }
    Ok(())
}

/// Deletes the notifications of a run.
pub(super) fn forget_run(connection: &Connection, key: i64) -> Result<(), StoreError> {
    let deliveries =
        "DELETE FROM deliveries WHERE notification_id IN (SELECT id FROM notifications WHERE run_id = ?1)";
    connection.prepare_cached(deliveries)?.execute([key])?;
    connection.prepare_cached("DELETE FROM notifications WHERE run_id = ?1")?.execute([key])?;
    Ok(())
}

/// Deletes notifications that no run caused and that are older than `before`. Returns their number.
pub(super) fn purge(connection: &Connection, before: Millis, limit: usize) -> Result<usize, StoreError> {
    let sql = "SELECT id FROM notifications WHERE run_id IS NULL AND created_at < ?1 LIMIT ?2";
    let old = rows::all(connection, sql, params![before, limit], |row| Ok(row.get::<_, i64>(0)?))?;
    for id in &old {
        connection.prepare_cached("DELETE FROM deliveries WHERE notification_id = ?1")?.execute([id])?;
        connection.prepare_cached("DELETE FROM notifications WHERE id = ?1")?.execute([id])?;
    }
    Ok(old.len())
}

/// What is to be planned and sent now.
pub(super) fn work(
    connection: &Connection,
    now: Millis,
    limit: usize,
    busy: &[String],
) -> Result<OutboxWork, StoreError> {
    let unplanned = format!(
        "SELECT {NOTIFICATION} FROM notifications o WHERE o.planned_at IS NULL ORDER BY o.id LIMIT ?1"
    );
    let mut due = due_alone(connection, now, limit, busy)?;
    due.extend(due_digests(connection, now, limit, busy)?);
    due.sort_by_key(|message| (message.delivery.due, message.delivery.id));
    due.truncate(limit);
    Ok(OutboxWork {
        unplanned: rows::all(connection, &unplanned, [limit], |row| notification(row, 0))?,
        due,
        next: next(connection, now)?,
    })
}

/// Deliveries that are sent or taken back alone.
fn due_alone(
    connection: &Connection,
    now: Millis,
    limit: usize,
    busy: &[String],
) -> Result<Vec<DueMessage>, StoreError> {
    let sql = format!(
        "SELECT {DELIVERY}, {NOTIFICATION} FROM deliveries d JOIN notifications o ON o.id = d.notification_id
         WHERE d.due_at <= ?1 AND d.digest_at IS NULL AND d.channel NOT IN (SELECT value FROM json_each(?3))
         ORDER BY d.due_at, d.id LIMIT ?2"
    );
    rows::all(connection, &sql, params![now, limit, serde_json::to_string(busy)?], |row| {
        let notifications = vec![notification(row, DELIVERY_COLUMNS)?];
        let delivery = delivery(row)?;
        Ok(DueMessage { last: delivery.id, delivery, notifications, count: 1 })
    })
}

/// Digests, each with its first notifications.
fn due_digests(
    connection: &Connection,
    now: Millis,
    limit: usize,
    busy: &[String],
) -> Result<Vec<DueMessage>, StoreError> {
    let digests =
        "SELECT min(d.id), max(d.id), count(*) FROM deliveries d WHERE d.due_at <= ?1 AND d.digest_at IS NOT NULL
         AND d.channel NOT IN (SELECT value FROM json_each(?3))
         GROUP BY d.due_at, d.recipient, d.channel, d.address, d.digest_at LIMIT ?2";
    let found = rows::all(connection, digests, params![now, limit, serde_json::to_string(busy)?], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, u64>(2)?))
    })?;
    let first = format!("SELECT {DELIVERY} FROM deliveries d WHERE d.id = ?1");
    let parts = format!(
        "SELECT {NOTIFICATION} FROM deliveries d JOIN notifications o ON o.id = d.notification_id
         WHERE d.recipient = ?1 AND d.channel = ?2 AND d.address = ?3 AND d.digest_at = ?4 AND d.due_at <= ?5
         ORDER BY d.id LIMIT ?6"
    );
    let mut due = Vec::with_capacity(found.len());
    for (id, last, count) in found {
        let Some(delivery) = rows::all(connection, &first, [id], delivery)?.pop() else { continue };
        let Delivery { recipient, channel, address, digest_at, .. } = &delivery;
        let params = params![recipient, channel, address, digest_at, now, DIGEST_PARTS];
        let notifications = rows::all(connection, &parts, params, |row| notification(row, 0))?;
        due.push(DueMessage { delivery, notifications, count, last });
    }
    Ok(due)
}

/// When the next delivery after `now` is due.
fn next(connection: &Connection, now: Millis) -> Result<Option<Millis>, StoreError> {
    let alone =
        "SELECT due_at FROM deliveries WHERE due_at > ?1 AND digest_at IS NULL ORDER BY due_at LIMIT 1";
    let digest =
        "SELECT due_at FROM deliveries WHERE due_at > ?1 AND digest_at IS NOT NULL ORDER BY due_at LIMIT 1";
    let mut times = Vec::new();
    for sql in [alone, digest] {
        times.extend(
            connection.prepare_cached(sql)?.query_row([now], |row| row.get::<_, Millis>(0)).optional()?,
        );
    }
    Ok(times.into_iter().min())
}

pub(super) fn notifications(
    connection: &Connection,
    query: NotificationQuery,
    limit: usize,
) -> Result<Vec<(Notification, Vec<Delivery>)>, StoreError> {
    let select = |rest: &str| format!("SELECT {NOTIFICATION} FROM notifications o {rest} LIMIT ?1");
    let found = match query {
        NotificationQuery::OfRun(run) => {
            let sql = select("WHERE o.run_id = (SELECT id FROM runs WHERE run_id = ?2) ORDER BY o.id");
            rows::all(connection, &sql, params![limit, run.to_string()], |row| notification(row, 0))?
        }
        NotificationQuery::Decisions(run, path) => {
            let sql = select(
                "WHERE o.run_id = (SELECT id FROM runs WHERE run_id = ?2) AND o.path = ?3
                 AND o.kind = 'approval_decided' ORDER BY o.id DESC",
            );
            rows::all(connection, &sql, params![limit, run.to_string(), path], |row| notification(row, 0))?
        }
        NotificationQuery::OfDelivery(delivery) => {
            let sql = select("WHERE o.id = (SELECT notification_id FROM deliveries WHERE id = ?2)");
            rows::all(connection, &sql, params![limit, delivery], |row| notification(row, 0))?
        }
        NotificationQuery::DeadLetters => {
            let sql = select(
                "WHERE o.id IN (SELECT notification_id FROM deliveries WHERE status = 'failed'
                 ORDER BY id DESC LIMIT ?1) ORDER BY o.id DESC",
            );
            rows::all(connection, &sql, [limit], |row| notification(row, 0))?
        }
        NotificationQuery::Newest => {
            rows::all(connection, &select("ORDER BY o.id DESC"), [limit], |row| notification(row, 0))?
        }
    };
    let of = format!("SELECT {DELIVERY} FROM deliveries d WHERE d.notification_id = ?1 ORDER BY d.id");
    let mut all = Vec::with_capacity(found.len());
    for notification in found {
        let deliveries = rows::all(connection, &of, [notification.id], delivery)?;
        all.push((notification, deliveries));
    }
    Ok(all)
}

fn notification(row: &Row<'_>, at: usize) -> Result<Notification, StoreError> {
    let kind = row.get_ref(at + 1)?.as_str().map_err(rows::damaged)?;
    let kind = NotificationKind::from_name(kind)
        .ok_or_else(|| StoreError::Corrupt(format!("a notification of the unknown kind `{kind}`")))?;
    let run: Option<String> = row.get(at + 2)?;
    let run = run.map(|run| run.parse().map_err(|_| StoreError::Corrupt(format!("the run id `{run}`"))));
    Ok(Notification {
        id: row.get(at)?,
        kind,
        run: run.transpose()?,
        path: row.get(at + 3)?,
        to: serde_json::from_str(row.get_ref(at + 4)?.as_str().map_err(rows::damaged)?)?,
        body: serde_json::from_str(row.get_ref(at + 5)?.as_str().map_err(rows::damaged)?)?,
        created_at: row.get(at + 6)?,
    })
}

fn delivery(row: &Row<'_>) -> Result<Delivery, StoreError> {
    let status = row.get_ref(5)?.as_str().map_err(rows::damaged)?;
    let status = DeliveryStatus::from_name(status)
        .ok_or_else(|| StoreError::Corrupt(format!("a delivery with the unknown status `{status}`")))?;
    Ok(Delivery {
        id: row.get(0)?,
        notification: row.get(1)?,
        recipient: row.get(2)?,
        channel: row.get(3)?,
        address: row.get(4)?,
        status,
        attempts: row.get(6)?,
        due: row.get(7)?,
        digest_at: row.get(8)?,
        error: row.get(9)?,
        receipt: row.get(10)?,
        ended_at: row.get(11)?,
    })
}
