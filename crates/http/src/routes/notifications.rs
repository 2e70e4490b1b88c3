//! Notifications with their deliveries: those of a run, all of them for operators, dead letters and tests.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Delivery, DeliveryStatus, NotificationKind, NotificationQuery, Right, RunId};

use crate::api::{Api, get, post};
use crate::extract::{Body, Caller, NameParam, QueryParams, RunParam};
use crate::page::{self, Page};
use crate::problem::Problem;
use crate::{App, timestamp};

const TAG: &str = "notifications";

pub(super) fn routes(api: Api) -> Api {
    api.route(
        TAG,
        get("/api/v1/runs/{run_id}/notifications", "List the notifications of a run")
            .query::<RunNotificationsQuery>()
            .returns::<Page<NotificationInfo>>(200, "Oldest first."),
        of_run,
    )
    .route(
        TAG,
        get("/api/v1/notifications", "List notifications")
            .details("Needs the right `administer`.")
            .query::<NotificationsQuery>()
            .returns::<Page<NotificationInfo>>(200, "Newest first."),
        list,
    )
    .route(
        TAG,
        post("/api/v1/notifications/{delivery}/resend", "Send a failed delivery again")
            .details("Needs the right `administer`.")
            .returns_empty(204, "It is queued."),
        resend,
    )
    .route(
        TAG,
        post("/api/v1/notifications/test", "Send a test message")
            .details("Over every channel of the recipient. Waits until each was tried once. A test of oneself needs `workflow` or `approve`, and one of others, or by an agent, `administer`.")
            .body::<TestRequest>()
            .returns::<NotificationInfo>(200, "The result of each channel."),
        test,
    )
}

/// A notification with its deliveries.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NotificationInfo {
    /// Number of the notification.
    pub id: i64,
    /// What it is about.
    #[schemars(with = "String")]
    pub kind: NotificationKind,
    /// The run that caused it.
    #[schemars(with = "Option<String>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Path of the step that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// When it was caused.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// One entry per recipient and channel. Empty until they are planned, and if nobody is told.
    pub deliveries: Vec<DeliveryInfo>,
}

/// The delivery to one recipient over one channel. It does not contain the address.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryInfo {
    /// Number of the delivery.
    pub id: i64,
    /// The user, group or address.
    pub recipient: String,
    /// Name of the channel; empty if the recipient has none.
    pub channel: String,
    /// `queued`, `sent`, `failed`, `read`, `withdrawing` or `withdrawn`.
    #[schemars(with = "String")]
    pub status: DeliveryStatus,
    /// Attempts so far.
    pub attempts: u32,
    /// When the next attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// When it was sent, read, withdrawn or given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<(steprail_engine::Notification, Vec<Delivery>)> for NotificationInfo {
    fn from((notification, deliveries): (steprail_engine::Notification, Vec<Delivery>)) -> Self {
        Self {
            id: notification.id,
            kind: notification.kind,
            run_id: notification.run,
            step: notification.path,
            created_at: timestamp::format(notification.created_at),
            deliveries: deliveries.into_iter().map(DeliveryInfo::from).collect(),
        }
    }
}

impl From<Delivery> for DeliveryInfo {
    fn from(delivery: Delivery) -> Self {
        Self {
            id: delivery.id,
            recipient: delivery.recipient,
            channel: delivery.channel,
            status: delivery.status,
            attempts: delivery.attempts,
            due_at: delivery.due.map(timestamp::format),
            ended_at: delivery.ended_at.map(timestamp::format),
            error: delivery.error,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunNotificationsQuery {
    /// Maximum number of notifications; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NotificationsQuery {
    /// Only notifications with a delivery that was given up.
    dead: Option<bool>,
    /// Maximum number of notifications; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TestRequest {
    /// The recipient: a user, or `group:NAME`; the caller by default.
    #[schemars(length(max = 256))]
    to: Option<String>,
}

async fn of_run(
    State(app): State<App>,
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(query): QueryParams<RunNotificationsQuery>,
) -> Result<Json<Page<NotificationInfo>>, Problem> {
    user.row(run).await?;
    found(&app, NotificationQuery::OfRun(run), query.limit).await
}

async fn list(
    State(app): State<App>,
    Caller(user): Caller,
    QueryParams(query): QueryParams<NotificationsQuery>,
) -> Result<Json<Page<NotificationInfo>>, Problem> {
    user.require(Right::Administer)?;
    let select = match query.dead {
        Some(true) => NotificationQuery::DeadLetters,
        _ => NotificationQuery::Newest,
    };
    found(&app, select, query.limit).await
}

async fn found(
    app: &App,
    select: NotificationQuery,
    limit: Option<usize>,
) -> Result<Json<Page<NotificationInfo>>, Problem> {
    let found = app.engine.notifications(select, page::limit(limit, 100)?).await?;
    Ok(Json(Page::single(found.into_iter().map(NotificationInfo::from).collect())))
}

async fn resend(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(delivery): NameParam,
) -> Result<StatusCode, Problem> {
    user.require(Right::Administer)?;
    let number = delivery.parse();
    let number = number.map_err(|_| Problem::not_found(format!("there is no delivery `{delivery}`")))?;
    app.engine.resend_notification(number).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn test(
    State(app): State<App>,
    Caller(user): Caller,
    Body(request): Body<TestRequest>,
) -> Result<Json<NotificationInfo>, Problem> {
    let caller = user.principal().id.clone();
    let to = request.to.unwrap_or_else(|| caller.clone());
    let is_own = to == caller && !user.principal().agent;
    if !is_own || !(user.may(Right::Workflow) || user.may(Right::Approve)) {
        user.require(Right::Administer)?;
    }
    Ok(Json(app.engine.test_notification(&to).await?.into()))
}
