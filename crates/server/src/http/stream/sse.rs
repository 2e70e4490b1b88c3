//! Events over SSE. `Last-Event-ID`, or `after`, says where to go on.

use std::convert::Infallible;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream::{Stream, StreamExt, unfold};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::ALIVE;
use super::follower::Follower;
use super::page::Page;
use crate::http::App;
use crate::http::door::Credential;
use crate::http::extract::{Args, Asker, OfRun};
use crate::http::problem::Problem;

/// Where a stream begins.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct From {
    /// The number of the last event that is known; `Last-Event-ID` goes before it. Without either, a run is told from
    /// its beginning, and everything from now on.
    after: Option<u64>,
}

/// One run.
pub(crate) async fn run(
    State(app): State<App>,
    Asker(user): Asker,
    OfRun(run): OfRun,
    Args(from): Args<From>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = u64::try_from(place(&headers, &from)?.unwrap_or_default()).unwrap_or_default();
    let row = user.row(run).await?;
    if row.status.is_terminal() && after >= row.seq {
        // A browser that is told this does not come back.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let follower = Follower::of_run(app.hub.clone(), user, &row, after)?;
    let end = if row.status.is_terminal() { End::At(row.seq) } else { End::OfRun };
    Ok(respond(events(app, follower, credential, end)))
}

/// Everything that the user may see.
pub(crate) async fn everything(
    State(app): State<App>,
    Asker(user): Asker,
    Args(from): Args<From>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = place(&headers, &from)?.unwrap_or_else(|| app.engine.cursor());
    let follower = Follower::of_all(app.hub.clone(), user, after)?;
    Ok(respond(beginning(after).chain(events(app, follower, credential, End::Never))))
}

fn place(headers: &HeaderMap, from: &From) -> Result<Option<i64>, Problem> {
    match headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default()) {
        Some(id) => id.parse().map(Some).map_err(|_| Problem::bad("`Last-Event-ID` is not a number of ours")),
        None => Ok(from.after.map(|after| i64::try_from(after).unwrap_or(i64::MAX))),
    }
}

/// The place where a stream begins, for whoever comes back before anything has happened.
fn beginning(cursor: i64) -> impl Stream<Item = Chunk> + Send {
    futures::stream::iter([Ok(here(cursor))])
}

fn respond(chunks: impl Stream<Item = Chunk> + Send + 'static) -> Response {
    let headers = [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        // A proxy in between must not wait for more.
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

/// Text of a stream.
type Chunk = Result<Bytes, Infallible>;

/// Shows that the stream is there, and the place that it has reached: what was not for the reader need not be read again.
fn here(cursor: i64) -> Bytes {
    format!("id: {cursor}\n\n").into()
}

/// Where a stream ends by itself.
#[derive(Clone, Copy)]
enum End {
    Never,
    /// With the event that ends the run.
    OfRun,
    /// With the last event of a run that has ended: some come after its end.
    At(u64),
}

impl End {
    fn is_on(self, page: &Page) -> bool {
        match self {
            Self::Never => false,
            Self::OfRun => page.has_end(),
            Self::At(seq) => page.frames().iter().any(|frame| frame.seq >= seq),
        }
    }
}

/// Events as text of SSE, until the end of the run, of the credential or of the server.
fn events(
    app: App,
    follower: Follower,
    credential: Credential,
    end: End,
) -> impl Stream<Item = Chunk> + Send {
    let begun = (app, follower, credential, Instant::now());
    unfold(Some(begun), move |state| async move {
        let (app, mut follower, credential, mut checked) = state?;
        let next = tokio::time::timeout_at(checked + ALIVE, follower.next()).await;
        // Whether they may still see it is asked again from time to time, however much there is to tell.
        if checked.elapsed() >= ALIVE {
            let principal = credential.renewed(&app, follower.user().principal())?;
            if !follower.renew(app.engine.as_user(principal)).await {
                return None;
            }
            checked = Instant::now();
        }
        let (chunk, is_over) = match next {
            Ok(Ok(Some(page))) => (page.sse(), end.is_on(&page)),
            Ok(Ok(None) | Err(_)) => return None,
            Err(_) => (here(follower.cursor()), false),
        };
        Some((Ok(chunk), (!is_over).then_some((app, follower, credential, checked))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;
    use steprail_core::plan::Hash;
    use steprail_engine::{RunId, StoredEvent};

    use super::super::page::{Frame, Page};
    use super::End;

    fn page(seqs: &[(u64, &str)]) -> Arc<Page> {
        let frame = |(seq, kind): &(u64, &str)| {
            let event = format!("{{\"type\":\"{kind}\",\"output\":null}}");
            let event = RawValue::from_string(event).expect("JSON");
            let run = RunId(uuid::Uuid::nil());
            let stored = StoredEvent { id: 1, run, seq: *seq, at: 0, event, hash: Hash::of(b"") };
            Arc::new(Frame::new(stored, String::new()))
        };
        Page::new(Frame::in_run, seqs.iter().map(frame).collect())
    }

    #[test]
    fn a_stream_ends_with_its_run_and_not_before_the_last_event_that_there_is() {
        let (end, late) =
            (page(&[(19, "step_completed"), (20, "run_completed")]), page(&[(21, "late_result")]));
        assert!(End::OfRun.is_on(&end));
        assert!(!End::OfRun.is_on(&late));
        assert!(!End::At(21).is_on(&end), "there is one more");
        assert!(End::At(21).is_on(&late), "whoever came back for it is not kept");
        assert!(!End::Never.is_on(&end));
    }

    #[test]
    fn events_are_written_for_those_who_read_them() {
        let page = page(&[(20, "run_completed")]);
        let text = String::from_utf8(page.sse().to_vec()).expect("text");
        assert!(text.starts_with("id: 20\nevent: run_completed\ndata: {\"id\":1,"), "{text}");
        assert!(text.ends_with("}\n\n"), "{text}");
    }
}
