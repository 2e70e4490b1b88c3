//! Opens connections: transport, protocol era, handshake, first list of tools.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use rmcp::service::{ClientInitializeError, ClientServiceExt, RunningService};
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport};
use rmcp::{ClientCacheConfig, ClientHandler, RoleClient};
use serde_json::Value;
use steprail_engine::BoxFuture;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::HONOURS_KEY;
use super::child::{Process, Program};
use super::connection::{Connection, tools};
use super::credentials::Expanded;
use super::era::{self, Era};
use super::link::Link;
use super::listener::Listener;
use super::login::{LoginError, Logins};
use super::transport::http::{Credentials, HttpClient, HttpFailure, bounded_body, root_cause};
use super::transport::sse::HttpSse;
use super::transport::stdio::Stdio;
use crate::limits::{EXIT_DRAIN_MS, PROBE_SECS, RESPONSE_BYTES};

const CLOSED_EARLY: &str = "it closed the connection before it answered";

type Service = RunningService<RoleClient, Listener>;

/// A completed handshake.
struct Handshake {
    service: Service,
    era: Era,
    sse: bool,
    process: Option<Process>,
}

impl Link {
    /// Opens a connection. If the handshake fails with the known era, tries once with a probe.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let listener = Listener::new(&self.server, &self.entry, self.changes.clone());
        let (era, sse) = self.known_protocol();
        let era = if self.entry.legacy { Some(Era::Legacy) } else { era };
        let handshake = match self.handshake(&listener, (era, sse)).await {
            Err(HandshakeError::Rejected(_)) if era.is_some() => {
                self.forget_protocol();
                self.handshake(&listener, (None, false)).await
            }
            // A modern server answered the probe after its timeout.
            Err(HandshakeError::WrongEra(era)) => self.handshake(&listener, (Some(era), false)).await,
            result => result,
        };
        self.list_tools(listener, handshake.map_err(HandshakeError::reason)?).await
    }

    async fn handshake(
        &self,
        listener: &Listener,
        (era, sse): (Option<Era>, bool),
    ) -> Result<Handshake, HandshakeError> {
        match self.expanded().await? {
            Expanded::Stdio(program) => self.handshake_stdio(listener, &program, era).await,
            Expanded::Http { url, headers } => self.handshake_http(listener, &url, headers, (era, sse)).await,
        }
    }

    async fn handshake_stdio(
        &self,
        listener: &Listener,
        program: &Program,
        known: Option<Era>,
    ) -> Result<Handshake, HandshakeError> {
        let started = Process::start(program, &self.shared.supervisor, self.stderr.clone());
        let (process, stdout, stdin) =
            started.map_err(|error| format!("`{}` cannot be started: {error}", program.command))?;
        let mut pipes = Stdio::new(stdout, stdin, listener.clone());
        // A descendant may keep the output pipe open, so the end of the pipe does not show the exit.
        let result = tokio::select! {
            result = async {
                let era = match known {
                    Some(era) => era,
                    None => probe_stdio(&mut pipes, listener).await?,
                };
                let probed = pipes.probed.clone();
                serve(listener, pipes, era).await.map(|service| (service, era)).map_err(|error| match probed.get() {
                    Some(Era::Modern) if known.is_none() && era == Era::Legacy => {
                        HandshakeError::WrongEra(Era::Modern)
                    }
                    _ => error,
                })
            } => result,
            () = process.ended.cancelled() => Err(HandshakeError::Failed(CLOSED_EARLY.to_owned())),
        };
        match result {
            Ok((service, era)) => Ok(Handshake { service, era, sse: false, process: Some(process) }),
            Err(HandshakeError::Failed(reason)) if reason == CLOSED_EARLY => {
                let timeout = Duration::from_millis(EXIT_DRAIN_MS);
                let _ = tokio::time::timeout(timeout, process.ended.cancelled()).await;
                let reason = if process.ended.is_cancelled() { process.exit_reason() } else { reason };
                Err(HandshakeError::Failed(reason))
            }
            Err(error) => Err(error),
        }
    }

    async fn handshake_http(
        &self,
        listener: &Listener,
        url: &str,
        headers: HeaderMap,
        (known, sse): (Option<Era>, bool),
    ) -> Result<Handshake, HandshakeError> {
        let client = HttpClient::new(self.credentials(url), listener.clone())?;
        let (era, sse) = match known {
            Some(era) => (era, sse),
            None => probe_http(&client, url, &headers, listener).await?,
        };
        let service = if sse {
            let transport =
                HttpSse::open(client, url, headers).await.map_err(|failure| describe(&failure))?;
            serve(listener, transport, era).await?
        } else {
            serve(listener, self.streamable(client, url, headers), era).await?
        };
        Ok(Handshake { service, era, sse, process: None })
    }

    /// A transport with room for all calls that the engine admits, and some other requests.
    fn streamable(
        &self,
        client: HttpClient,
        url: &str,
        headers: HeaderMap,
    ) -> StreamableHttpClientTransport<HttpClient> {
        let custom: HashMap<HeaderName, HeaderValue> =
            headers.into_iter().filter_map(|(name, value)| Some((name?, value))).collect();
        let requests = usize::try_from(self.entry.max_calls).unwrap_or(usize::MAX).saturating_add(16);
        let mut config = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(custom)
            .max_concurrent_requests(requests)
            .max_sse_event_size(RESPONSE_BYTES);
        config.channel_buffer_capacity = requests;
        StreamableHttpClientTransport::with_client(client, config)
    }

    fn credentials(&self, url: &str) -> Option<Arc<dyn Credentials>> {
        let logins = self.shared.logins.clone()?;
        let user = self.login_user().map(str::to_owned);
        Some(Arc::new(LoginCredentials { logins, server: self.server.clone(), url: url.to_owned(), user }))
    }

    /// Lists the tools and completes the connection.
    async fn list_tools(&self, listener: Listener, handshake: Handshake) -> Result<Connection, String> {
        let Handshake { service, era, sse, process } = handshake;
        // Lists are requested only when they may have changed, so a cached response would be stale.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let listed = tools(service.peer()).await;
        let listed = listed.map_err(|error| {
            format!("cannot list its tools: {}", super::failure::of(&self.server, error).message)
        })?;
        let honours_key = service.peer().peer_info().is_some_and(|info| {
            let capabilities = serde_json::to_value(&info.capabilities).unwrap_or_default();
            ["experimental", "extensions"].iter().any(|group| capabilities[*group].get(HONOURS_KEY).is_some())
        });
        let listing = self.listing(honours_key);
        let catalogue = Arc::new(RwLock::new(Arc::new(listing.catalogue(listed))));
        // A child token: closing the connection does not mark the process as ended.
        let lost =
            process.as_ref().map_or_else(CancellationToken::new, |process| process.ended.child_token());
        listener.follow_lists(service.peer());
        // Legacy input requests do not name their call, so only one call may be in flight.
        let is_serial = self.entry.sends_input_requests() && era == Era::Legacy;
        Ok(Connection {
            peer: service.peer().clone(),
            listener,
            era,
            sse,
            honours_key,
            catalogue,
            listing,
            permits: is_serial.then(|| Arc::new(Semaphore::new(1))),
            lost,
            opened: Instant::now(),
            process,
            service: Mutex::new(Some(service)),
        })
    }
}

/// Bearer tokens of one login at a server.
struct LoginCredentials {
    logins: Logins,
    server: String,
    url: String,
    user: Option<String>,
}

impl Credentials for LoginCredentials {
    fn token(&self) -> BoxFuture<'_, Result<Option<String>, HttpFailure>> {
        Box::pin(async {
            let token = self.logins.token(&self.server, &self.url, self.user.as_deref()).await;
            token.map_err(|error| http_failure(&error))
        })
    }

    fn token_after_challenge<'c>(
        &'c self,
        sent: Option<&'c str>,
        challenge: &'c str,
    ) -> BoxFuture<'c, Result<String, HttpFailure>> {
        Box::pin(async move {
            let user = self.user.as_deref();
            let token =
                self.logins.token_after_challenge(&self.server, &self.url, user, sent, challenge).await;
            token.map_err(|error| http_failure(&error))
        })
    }
}

fn http_failure(error: &LoginError) -> HttpFailure {
    match error {
        LoginError::Needed(needed) => HttpFailure::LoginNeeded(needed.to_string()),
        LoginError::Refused(reason) => HttpFailure::Rejected { status: 403, message: reason.clone() },
        LoginError::Unavailable(reason) => HttpFailure::NotSent(reason.clone()),
    }
}

/// Runs the handshake of an era.
async fn serve<T, E, A>(listener: &Listener, transport: T, era: Era) -> Result<Service, HandshakeError>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let served = listener.clone().serve_with_lifecycle(transport, era.lifecycle()).await;
    served.map_err(|error| HandshakeError::of(&error))
}

/// Probes a process for its era. It counts as legacy if it does not answer within [`PROBE_SECS`].
async fn probe_stdio<R, W>(pipes: &mut Stdio<R, W>, listener: &Listener) -> Result<Era, HandshakeError>
where
    R: tokio::io::AsyncRead + Unpin + Send,
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let discover = era::discover(&listener.get_info());
    match tokio::time::timeout(Duration::from_secs(PROBE_SECS), pipes.probe(&discover)).await {
        Ok(Ok(era)) => Ok(era),
        Ok(Err(_)) => Err(HandshakeError::Failed(CLOSED_EARLY.to_owned())),
        Err(_) => Ok(Era::Legacy),
    }
}

/// Probes an HTTP server for its era, and for whether it supports only HTTP+SSE.
async fn probe_http(
    client: &HttpClient,
    url: &str,
    headers: &HeaderMap,
    listener: &Listener,
) -> Result<(Era, bool), HandshakeError> {
    let mut headers = headers.clone();
    let modern = HeaderValue::from_static("2026-07-28");
    headers.insert(HeaderName::from_static("mcp-protocol-version"), modern);
    headers.insert(HeaderName::from_static("mcp-method"), HeaderValue::from_static("server/discover"));
    let response = client.post(url, headers.clone(), &era::discover(&listener.get_info())).await;
    let response = response.map_err(|failure| describe(&failure))?;
    let status = response.status();
    let is_rejection = status.is_client_error() && status != http::StatusCode::UNAUTHORIZED;
    if !status.is_success() && !is_rejection {
        return Err(describe(&super::transport::http::failure(response).await).into());
    }
    // Servers of 2024-11-05 reject the POST and offer an event stream instead.
    if matches!(status.as_u16(), 404 | 405) {
        headers.remove("mcp-method");
        let is_sse = HttpSse::open(client.clone(), url, headers).await.is_ok();
        return Ok((Era::Legacy, is_sse));
    }
    Ok((Era::of_response(&first_message(client, response).await), false))
}

/// The message in the body of a response: JSON, or the first event of a stream.
async fn first_message(client: &HttpClient, response: reqwest::Response) -> Value {
    use futures::StreamExt;
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let mut events = client.events(response, None);
        while let Some(Ok(event)) = events.next().await {
            if let Some(Ok(message)) = event.data.as_deref().map(serde_json::from_str) {
                return message;
            }
        }
        return Value::Null;
    }
    let body = bounded_body(response).await.ok().flatten().unwrap_or_default();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// Why a handshake failed.
enum HandshakeError {
    /// The server speaks this era and not the one that was tried.
    WrongEra(Era),
    /// The server answered with an error or not with MCP.
    Rejected(String),
    /// The server could not be reached, or its entry is invalid.
    Failed(String),
}

impl HandshakeError {
    fn reason(self) -> String {
        match self {
            Self::WrongEra(_) => "it supports no protocol revision that Steprail supports".to_owned(),
            Self::Rejected(reason) | Self::Failed(reason) => reason,
        }
    }

    /// The error without names of Rust types.
    fn of(error: &ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::NoCompatibleProtocolVersion { .. } => Self::WrongEra(Era::Legacy),
            ClientInitializeError::TransportError { error, .. } => Self::of_transport(&*error.error),
            ClientInitializeError::ConnectionClosed(_) => Self::Failed(CLOSED_EARLY.to_owned()),
            ClientInitializeError::JsonRpcError(error) => {
                Self::Rejected(format!("it rejected the handshake: {}", error.message))
            }
            _ => Self::Rejected("its response to the handshake is not valid MCP".to_owned()),
        }
    }

    fn of_transport(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        let http = error.downcast_ref::<HttpFailure>();
        let http = http.or_else(|| match error.downcast_ref::<StreamableHttpError<HttpFailure>>() {
            Some(StreamableHttpError::Client(failure)) => Some(failure),
            _ => None,
        });
        match http {
            Some(failure @ HttpFailure::Rejected { .. }) => Self::Rejected(describe(failure)),
            Some(failure) => Self::Failed(describe(failure)),
            None if error.is::<std::io::Error>() => Self::Failed(CLOSED_EARLY.to_owned()),
            None => Self::Rejected(root_cause(error)),
        }
    }
}

impl From<String> for HandshakeError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

fn describe(failure: &HttpFailure) -> String {
    match failure {
        HttpFailure::Busy { status, .. } => format!("it is busy (HTTP {status})"),
        other => other.to_string(),
    }
}
