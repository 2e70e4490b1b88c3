//! Server-sent events, resumed after `Last-Event-ID` or `after`.

use std::convert::Infallible;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream::{Stream, StreamExt, unfold};
use schemars::JsonSchema;
use serde::Deserialize;
use steprail_engine::{After, Cursor};
use tokio::time::Instant;

use super::HEARTBEAT;
use super::batch::Batch;
use super::follower::Follower;
use crate::App;
use crate::authentication::Credential;
use crate::extract::{Caller, QueryParams, RunParam};
use crate::page;
use crate::problem::Problem;

/// Start of a stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamQuery {
    /// Cursor of the last event that the client has, or `start`; `Last-Event-ID` takes precedence. Without either, the stream
    /// of a run starts at its first event, and the stream of all runs starts now.
    after: Option<String>,
    /// A ticket of `POST /api/v1/tickets`, for pages: an `EventSource` cannot send the page secret.
    #[serde(rename = "ticket")]
    _ticket: Option<String>,
}

/// Streams the events of one run.
pub(crate) async fn run(
    State(app): State<App>,
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(query): QueryParams<StreamQuery>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = cursor(&headers, &query)?.unwrap_or(Cursor::START);
    let row = user.row(run).await?;
    if row.status.is_terminal() && user.events(run, After::Cursor(after), 1).await?.events.is_empty() {
        // Browsers do not reconnect after 204.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let follower = Follower::of_run(app.hub.clone(), user, run, after).await?;
    let end = if row.status.is_terminal() { End::At(row.seq) } else { End::OfRun };
    Ok(respond(events(app, follower, credential, end)))
}

/// Streams the events of every run that the user may view.
pub(crate) async fn all(
    State(app): State<App>,
    Caller(user): Caller,
    QueryParams(query): QueryParams<StreamQuery>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = cursor(&headers, &query)?.unwrap_or_else(|| app.engine.cursor());
    let follower = Follower::of_all(app.hub.clone(), user, after).await?;
    Ok(respond(initial(after).chain(events(app, follower, credential, End::Never))))
}

fn cursor(headers: &HeaderMap, query: &StreamQuery) -> Result<Option<Cursor>, Problem> {
    let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    page::cursor(last.or(query.after.as_deref()))
}

/// The initial cursor, so that a client can resume even if it received no event.
fn initial(cursor: Cursor) -> impl Stream<Item = Chunk> + Send {
    futures::stream::iter([Ok(heartbeat(cursor))])
}

fn respond(chunks: impl Stream<Item = Chunk> + Send + 'static) -> Response {
    let headers = [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        // Proxies must not buffer.
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

type Chunk = Result<Bytes, Infallible>;

/// A heartbeat with the cursor: events that were filtered out are not read again after a reconnect.
fn heartbeat(cursor: Cursor) -> Bytes {
    format!("id: {cursor}\n\n").into()
}

/// When a stream ends.
#[derive(Clone, Copy)]
enum End {
    Never,
    /// At the event that ends the run.
    OfRun,
    /// At the last event of an ended run, which can be later than the event that ended it.
    At(u64),
}

impl End {
    fn is_in(self, batch: &Batch) -> bool {
        match self {
            Self::Never => false,
            Self::OfRun => batch.has_end(),
            Self::At(seq) => batch.frames().iter().any(|frame| frame.seq >= seq),
        }
    }
}

/// The events as SSE, until the run ends, the credential becomes invalid or the server stops.
fn events(
    app: App,
    follower: Follower,
    credential: Credential,
    end: End,
) -> impl Stream<Item = Chunk> + Send {
    let state = (app.accounts.watch(), app, follower, credential, Instant::now());
    unfold(Some(state), move |state| async move {
        let (mut changes, app, mut follower, credential, mut checked) = state?;
        let next = tokio::time::timeout_at(checked + HEARTBEAT, follower.next());
        let (next, is_changed) = tokio::select! {
            biased;
            // The sender lives as long as the server.
            _ = changes.changed() => (None, true),
            next = next => (Some(next), false),
        };
        // Rights are re-checked also while events arrive continuously, and at once when accounts change.
        if is_changed || checked.elapsed() >= HEARTBEAT {
            let principal = credential.renewed(&app, follower.user().principal())?;
            if !follower.renew(app.engine.as_user(principal)).await {
                return None;
            }
            checked = Instant::now();
        }
        let (chunk, is_end) = match next {
            Some(Ok(Ok(Some(page)))) => (page.sse(), end.is_in(&page)),
            Some(Ok(Ok(None) | Err(_))) => return None,
            Some(Err(_)) | None => (heartbeat(follower.cursor()), false),
        };
        Some((Ok(chunk), (!is_end).then_some((changes, app, follower, credential, checked))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;
    use steprail_core::plan::Hash;
    use steprail_engine::{Cursor, RunId, StoredEvent};

    use super::super::batch::{Batch, Frame};
    use super::End;

    fn page(seqs: &[(u64, &str)]) -> Arc<Batch> {
        let frame = |(seq, kind): &(u64, &str)| {
            let event = format!("{{\"type\":\"{kind}\",\"output\":null}}");
            let event = RawValue::from_string(event).expect("JSON");
            let run = RunId(uuid::Uuid::nil());
            let stored =
                StoredEvent { cursor: Cursor::START, run, seq: *seq, at: 0, event, hash: Hash::of(b"") };
            Arc::new(Frame::new(stored, Arc::default()))
        };
        Batch::new(seqs.iter().map(frame).collect())
    }

    #[test]
    fn stream_ends_at_the_last_event_of_its_run() {
        let (end, late) =
            (page(&[(19, "step_completed"), (20, "run_completed")]), page(&[(21, "late_result")]));
        assert!(End::OfRun.is_in(&end));
        assert!(!End::OfRun.is_in(&late));
        assert!(!End::At(21).is_in(&end), "one more event follows");
        assert!(End::At(21).is_in(&late), "a resumed stream ends, too");
        assert!(!End::Never.is_in(&end));
    }

    #[test]
    fn events_are_formatted_as_sse() {
        let page = page(&[(20, "run_completed")]);
        let text = String::from_utf8(page.sse().to_vec()).expect("text");
        assert!(text.starts_with("id: start\nevent: run_completed\ndata: {\"id\":\"start\","), "{text}");
        assert!(text.ends_with("}\n\n"), "{text}");
    }
}
