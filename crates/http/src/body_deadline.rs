//! Deadline of request bodies: a body that arrives too slowly is cut with 408.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::problem::Problem;

/// The deadline of a body without the time for received bytes.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// The number of received bytes that extends the deadline by one second.
const BYTES_PER_SECOND: u64 = 16 * 1024;

/// Answers 408 and closes the connection if the body is not received in time.
pub(crate) async fn enforce(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_late = Arc::new(AtomicBool::new(false));
    let request = request.map(|body| Body::new(TimedBody::new(body, is_late.clone())));
    let response = next.run(request).await;
    if !is_late.load(Ordering::Relaxed) {
        return response;
    }
    let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
    let problem = Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail)
        .hint(format!("send at least {} KiB per second", BYTES_PER_SECOND / 1024));
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A body that fails when its deadline has passed.
struct TimedBody {
    body: Body,
    started: Instant,
    received: u64,
    /// Created when the body has to be waited for.
    deadline: Option<Pin<Box<Sleep>>>,
    is_late: Arc<AtomicBool>,
}

impl TimedBody {
    fn new(body: Body, is_late: Arc<AtomicBool>) -> Self {
        Self { body, started: Instant::now(), received: 0, deadline: None, is_late }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            let received = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
            this.received += received.unwrap_or_default() as u64;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let until = this.started + BODY_TIMEOUT + Duration::from_secs(this.received / BYTES_PER_SECOND);
        let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if deadline.deadline() != until {
            deadline.as_mut().reset(until);
        }
        ready!(deadline.as_mut().poll(context));
        this.is_late.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
