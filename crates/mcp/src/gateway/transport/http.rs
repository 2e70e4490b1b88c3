//! Streamable HTTP: failures state whether the request was sent, and responses are bounded.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use steprail_engine::BoxFuture;

use super::oversized;
use crate::gateway::listener::Listener;
use crate::limits::{DIAL_SECS, ERROR_BODY_BYTES, RESPONSE_BYTES};
use crate::redact;

const ACCEPTED: &str = "text/event-stream, application/json";
const SESSION: &str = "mcp-session-id";

/// Why an HTTP request has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HttpFailure {
    /// The connection could not be established: DNS, TCP or TLS.
    #[error("{0}")]
    NotSent(String),
    /// The server asks to be retried later: 429, or 503 with `Retry-After`.
    #[error("HTTP {status}")]
    Busy { status: u16, retry_after: Option<Duration> },
    /// The server requires a login.
    #[error("{0}")]
    LoginNeeded(String),
    /// The server rejected the request with another 4xx status.
    #[error("HTTP {status}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Rejected { status: u16, message: String },
    /// The request was sent and its outcome is unknown.
    #[error("{0}")]
    Unknown(String),
}

type TransportError = StreamableHttpError<HttpFailure>;

/// Provides the bearer tokens of one server and user.
pub(crate) trait Credentials: Send + Sync {
    /// The token to send; `None` without a login.
    fn token(&self) -> BoxFuture<'_, Result<Option<String>, HttpFailure>>;
    /// The token to send after a challenge (`WWW-Authenticate`) to the token `sent`.
    fn token_after_challenge<'c>(
        &'c self,
        sent: Option<&'c str>,
        challenge: &'c str,
    ) -> BoxFuture<'c, Result<String, HttpFailure>>;
}

/// An HTTP client of one server.
#[derive(Clone)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    credentials: Option<Arc<dyn Credentials>>,
    listener: Listener,
}

impl HttpClient {
    pub(crate) fn new(credentials: Option<Arc<dyn Credentials>>, listener: Listener) -> Result<Self, String> {
        // A redirect would send the credentials to another origin.
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(DIAL_SECS))
            .build();
        let client =
            client.map_err(|error| format!("cannot create an HTTP client: {}", root_cause(&error)))?;
        Ok(Self { client, credentials, listener })
    }

    /// Posts a JSON body. Repeats the request once after a challenge.
    pub(crate) async fn post(
        &self,
        uri: &str,
        headers: HeaderMap,
        body: &impl serde::Serialize,
    ) -> Result<reqwest::Response, HttpFailure> {
        let body = serde_json::to_vec(body).map_err(|error| HttpFailure::NotSent(error.to_string()))?;
        let request = || {
            let request = self.client.post(uri).headers(headers.clone()).header(ACCEPT, ACCEPTED);
            request.header(CONTENT_TYPE, "application/json").body(body.clone())
        };
        self.authorized(request).await
    }

    /// Opens an event stream.
    pub(crate) async fn get(&self, uri: &str, headers: HeaderMap) -> Result<reqwest::Response, HttpFailure> {
        let request = || self.client.get(uri).headers(headers.clone()).header(ACCEPT, "text/event-stream");
        self.authorized(request).await
    }

    async fn authorized(
        &self,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, HttpFailure> {
        let Some(credentials) = &self.credentials else { return send(request()).await };
        let with = |token: Option<&str>| match token {
            Some(token) => request().bearer_auth(token),
            None => request(),
        };
        let token = credentials.token().await?;
        let response = send(with(token.as_deref())).await?;
        let Some(challenge) = challenge(&response) else { return Ok(response) };
        let token = credentials.token_after_challenge(token.as_deref(), &challenge).await?;
        send(with(Some(&token))).await
    }
}

async fn send(request: reqwest::RequestBuilder) -> Result<reqwest::Response, HttpFailure> {
    request.send().await.map_err(|error| of_reqwest(&error))
}

/// The challenge of a 401, or of a 403 for missing scopes.
fn challenge(response: &reqwest::Response) -> Option<String> {
    let header = response.headers().get(WWW_AUTHENTICATE)?.to_str().ok()?;
    let is_challenge = match response.status() {
        StatusCode::UNAUTHORIZED => true,
        StatusCode::FORBIDDEN => header.contains("insufficient_scope"),
        _ => false,
    };
    is_challenge.then(|| header.to_owned())
}

fn of_reqwest(error: &reqwest::Error) -> HttpFailure {
    let cause = root_cause(error);
    if error.is_connect() || error.is_builder() {
        HttpFailure::NotSent(cause)
    } else {
        HttpFailure::Unknown(cause)
    }
}

/// The innermost cause of an error, without the addresses and type names of outer errors.
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The failure for a response without a success status.
pub(crate) async fn failure(response: reqwest::Response) -> HttpFailure {
    let (status, retry_after) = (response.status(), retry_after(response.headers()));
    let number = status.as_u16();
    match status {
        StatusCode::TOO_MANY_REQUESTS => HttpFailure::Busy { status: number, retry_after },
        StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => {
            HttpFailure::Busy { status: number, retry_after }
        }
        StatusCode::UNAUTHORIZED => HttpFailure::LoginNeeded("it requires a login (HTTP 401)".to_owned()),
        _ if status.is_client_error() => {
            let body = error_body(response).await;
            HttpFailure::Rejected { status: number, message: message_in(&body) }
        }
        _ => HttpFailure::Unknown(format!("it answered with HTTP {number}")),
    }
}

/// The delay of a `Retry-After` header, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let left = date.as_millisecond() - jiff::Timestamp::now().as_millisecond();
    Some(Duration::from_millis(u64::try_from(left).unwrap_or_default()))
}

/// The first [`ERROR_BODY_BYTES`] bytes of a body.
async fn error_body(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk[..chunk.len().min(ERROR_BODY_BYTES - body.len())]);
        if body.len() >= ERROR_BODY_BYTES {
            // The end may be a part of a secret.
            body.truncate(ERROR_BODY_BYTES.saturating_sub(redact::longest()));
            break;
        }
    }
    body
}

/// The message of an error body: a field of a JSON object, or the first line of a text. Empty for HTML pages.
fn message_in(body: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let fields = ["/error/message", "/message", "/error_description", "/error", "/detail"];
    if let Some(message) = fields.iter().find_map(|at| value.pointer(at)?.as_str()) {
        return redact::text(message).into_owned();
    }
    let text = String::from_utf8_lossy(body);
    let text = redact::text(&text);
    let is_page = text.trim_start().starts_with('<');
    text.lines().map(str::trim).find(|line| !line.is_empty() && !is_page).unwrap_or_default().to_owned()
}

/// The body of a response; `None` if it exceeds [`RESPONSE_BYTES`].
pub(crate) async fn bounded_body(mut response: reqwest::Response) -> Result<Option<Vec<u8>>, HttpFailure> {
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| HttpFailure::Unknown(root_cause(&error)))?
    {
        if body.len() + chunk.len() > RESPONSE_BYTES {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

impl HttpClient {
    /// The events of a response, without progress notifications, which go to the listener. An event above the limit becomes
    /// the error response to `request`.
    pub(crate) fn events(
        &self,
        response: reqwest::Response,
        request: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let listener = self.listener.clone();
        let is_progress = move |event: &Result<Sse, SseError>| {
            let data = event.as_ref().ok().and_then(|event| event.data.as_deref());
            let data = data.filter(|data| data.contains("notifications/progress"));
            let message = data.and_then(|data| serde_json::from_str(data).ok());
            message.is_some_and(|message: Value| listener.take_progress(&message))
        };
        let events = bounded_events(response, request);
        events.filter(move |event| std::future::ready(!is_progress(event))).boxed()
    }
}

fn bounded_events(
    response: reqwest::Response,
    request: Option<RequestId>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut size = EventSize::default();
    let bytes = response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(|error| std::io::Error::other(root_cause(&error)))?;
        if size.is_exceeded_by(&chunk) { Err(std::io::Error::other(TooLarge)) } else { Ok(chunk) }
    });
    let events = SseStream::from_bytes_stream(bytes).map(move |event| match (event, &request) {
        (Err(error), Some(id)) if is_too_large(&error) => {
            Ok(Sse { data: Some(oversized(id, RESPONSE_BYTES).to_string()), ..Sse::default() })
        }
        (event, _) => event,
    });
    events.boxed()
}

#[derive(Debug, thiserror::Error)]
#[error("an event exceeds {RESPONSE_BYTES} bytes")]
struct TooLarge;

fn is_too_large(error: &SseError) -> bool {
    let mut error: Option<&dyn Error> = Some(error);
    while let Some(this) = error {
        let inner = this.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<TooLarge>());
        if this.is::<TooLarge>() || inner.is_some() {
            return true;
        }
        error = this.source();
    }
    false
}

/// Counts the bytes of the current event. An empty line ends an event.
#[derive(Default)]
struct EventSize {
    event: usize,
    /// Bytes of the current line.
    line: usize,
}

impl EventSize {
    fn is_exceeded_by(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            match byte {
                b'\n' if self.line == 0 => self.event = 0,
                b'\n' => self.line = 0,
                b'\r' => {}
                _ => self.line += 1,
            }
            self.event += 1;
            if self.event > RESPONSE_BYTES {
                return true;
            }
        }
        false
    }
}

fn has_type(response: &reqwest::Response, expected: &str) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|content_type| content_type.starts_with(expected))
}

fn id_of(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

/// Converts an HTTP response to the result of a POST.
async fn read(
    client: &HttpClient,
    response: reqwest::Response,
    message: &ClientJsonRpcMessage,
    has_session: bool,
) -> Result<StreamableHttpPostResponse, TransportError> {
    let (status, id) = (response.status(), id_of(message));
    let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if status == StatusCode::NOT_FOUND && has_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    let Some(id) = id else {
        return if status.is_success() {
            Ok(StreamableHttpPostResponse::Accepted)
        } else {
            Err(StreamableHttpError::Client(failure(response).await))
        };
    };
    if !status.is_success() {
        return rejection(response, &id).await.map(|error| StreamableHttpPostResponse::Json(error, None));
    }
    if has_type(&response, "text/event-stream") {
        return Ok(StreamableHttpPostResponse::Sse(client.events(response, Some(id)), session));
    }
    let not_mcp =
        |_| TransportError::Client(HttpFailure::Unknown("its response is not valid MCP".to_owned()));
    let message = match bounded_body(response).await.map_err(StreamableHttpError::Client)? {
        Some(body) => serde_json::from_slice(&body).map_err(not_mcp)?,
        None => serde_json::from_value(oversized(&id, RESPONSE_BYTES)).map_err(not_mcp)?,
    };
    Ok(StreamableHttpPostResponse::Json(message, session))
}

/// The JSON-RPC error in the body of a 4xx response, with the id of the request, which servers may omit.
async fn rejection(
    response: reqwest::Response,
    id: &RequestId,
) -> Result<ServerJsonRpcMessage, TransportError> {
    let status = response.status();
    let may_have_error = status.is_client_error()
        && !matches!(
            status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
        );
    if !may_have_error || !has_type(&response, "application/json") {
        return Err(StreamableHttpError::Client(failure(response).await));
    }
    let body = error_body(response).await;
    if let Ok(JsonRpcMessage::Error(error)) = serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
        return Ok(ServerJsonRpcMessage::error(error.error, Some(id.clone())));
    }
    let (status, message) = (status.as_u16(), message_in(&body));
    Err(StreamableHttpError::Client(HttpFailure::Rejected { status, message }))
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpFailure;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        let mut headers: HeaderMap = custom.into_iter().collect();
        if let Some(value) = session.as_deref().and_then(|session| HeaderValue::from_str(session).ok()) {
            headers.insert(HeaderName::from_static(SESSION), value);
        }
        let response = self.post(&uri, headers, &message).await.map_err(StreamableHttpError::Client)?;
        read(self, response, &message, session.is_some()).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), TransportError> {
        // Errors are ignored: the session expires anyway.
        let token = match &self.credentials {
            Some(credentials) => credentials.token().await.ok().flatten(),
            None => None,
        };
        let _ = self.client.delete_session(uri, session, token, custom).await;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, TransportError> {
        let mut headers: HeaderMap = custom.into_iter().collect();
        let optional = [(SESSION, session.as_deref()), ("last-event-id", last_event.as_deref())];
        for (name, text) in optional {
            if let Some(value) = text.and_then(|text| HeaderValue::from_str(text).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let response = self.get(&uri, headers).await.map_err(StreamableHttpError::Client)?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            StatusCode::NOT_FOUND if session.is_some() => Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => Err(StreamableHttpError::Client(failure(response).await)),
            _ if !has_type(&response, "text/event-stream") => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Ok(self.events(response, None)),
        }
    }
}
