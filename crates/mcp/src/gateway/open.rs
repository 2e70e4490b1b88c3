//! How a connection is opened: the transport, the era of the protocol, the first list of tools.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use super::era::{self, Era};
use super::link::Link;
use super::listener::Listener;
use super::login::{LoginError, Logins};
use super::transport::http::{Credentials, HttpClient, HttpFailure, bounded_body, root_cause};
use super::transport::sse::HttpSse;
use super::transport::stdio::Stdio;
use crate::config::{Road, Text};
use crate::limits::{ANSWER_BYTES, PROBE_SECS};

const ENDED: &str = "it ended before it answered";

type Service = RunningService<RoleClient, Listener>;

/// A handshake that succeeded.
struct Greeted {
    service: Service,
    era: Era,
    sse: bool,
    process: Option<Process>,
}

impl Link {
    /// Opens a connection. A handshake that fails with what was learnt before is tried once without it.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let listener = Listener::new(&self.server, &self.entry, self.changes.clone());
        let learnt = if self.entry.legacy { (Some(Era::Legacy), self.learnt().1) } else { self.learnt() };
        let greeted = match self.greet(&listener, learnt).await {
            Err(Refused::Handshake(_)) if learnt.0.is_some() => {
                self.learn(None, false);
                self.greet(&listener, (None, false)).await
            }
            // A modern server answered the probe only after it was taken for a legacy one.
            Err(Refused::Era(era)) => self.greet(&listener, (Some(era), false)).await,
            greeted => greeted,
        };
        self.list_tools(listener, greeted.map_err(Refused::reason)?).await
    }

    async fn greet(&self, listener: &Listener, learnt: (Option<Era>, bool)) -> Result<Greeted, Refused> {
        match &self.entry.road {
            Road::Child { .. } => self.greet_process(listener, learnt.0).await,
            Road::Http { url, headers } => {
                let (url, headers) = (self.expand(url)?, self.headers(headers)?);
                self.greet_http(listener, &url, headers, learnt).await
            }
        }
    }

    async fn greet_process(&self, listener: &Listener, known: Option<Era>) -> Result<Greeted, Refused> {
        let program = self.program()?;
        let started = Process::start(&program, &self.shared.supervisor, self.stderr.clone());
        let (process, stdout, stdin) =
            started.map_err(|error| format!("`{}` cannot be started: {error}", program.command))?;
        let mut pipes = Stdio::new(stdout, stdin, listener.clone());
        // A descendant may hold the output: then its end is never read.
        let greeted = tokio::select! {
            greeted = async {
                let era = match known {
                    Some(era) => era,
                    None => probe_pipes(&mut pipes, listener).await?,
                };
                let probed = pipes.probed.clone();
                serve(listener, pipes, era).await.map(|service| (service, era)).map_err(|refused| match probed.get() {
                    Some(Era::Modern) if known.is_none() && era == Era::Legacy => Refused::Era(Era::Modern),
                    _ => refused,
                })
            } => greeted,
            () = process.ended.cancelled() => Err(Refused::Failed(ENDED.to_owned())),
        };
        match greeted {
            Ok((service, era)) => Ok(Greeted { service, era, sse: false, process: Some(process) }),
            Err(Refused::Failed(reason)) if reason == ENDED => {
                let patience = Duration::from_millis(crate::limits::LAST_WORDS_MS);
                let _ = tokio::time::timeout(patience, process.ended.cancelled()).await;
                let reason = if process.ended.is_cancelled() { process.exit_reason() } else { reason };
                Err(Refused::Failed(reason))
            }
            Err(refused) => Err(refused),
        }
    }

    async fn greet_http(
        &self,
        listener: &Listener,
        url: &str,
        headers: HeaderMap,
        (known, sse): (Option<Era>, bool),
    ) -> Result<Greeted, Refused> {
        let client = HttpClient::new(self.credentials(url), listener.clone())?;
        let (era, sse) = match known {
            Some(era) => (era, sse),
            None => probe_http(&client, url, &headers, listener).await?,
        };
        let service = if sse {
            let transport = HttpSse::open(client, url, headers).await.map_err(|failure| plainly(&failure))?;
            serve(listener, transport, era).await?
        } else {
            serve(listener, self.streamable(client, url, headers), era).await?
        };
        Ok(Greeted { service, era, sse, process: None })
    }

    /// As many requests at the same time as the engine admits calls, and some for everything else.
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
            .max_sse_event_size(ANSWER_BYTES);
        config.channel_buffer_capacity = requests;
        StreamableHttpClientTransport::with_client(client, config)
    }

    fn credentials(&self, url: &str) -> Option<Arc<dyn Credentials>> {
        let logins = self.shared.logins.clone()?;
        let user = self.login_user().map(str::to_owned);
        Some(Arc::new(Login { logins, server: self.server.clone(), url: url.to_owned(), user }))
    }

    /// Lists the tools over a connection whose handshake succeeded.
    async fn list_tools(&self, listener: Listener, greeted: Greeted) -> Result<Connection, String> {
        let Greeted { service, era, sse, process } = greeted;
        // Lists are asked for when they may have changed: none is to come out of a cache.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let listed = tools(service.peer()).await;
        let listed = listed.map_err(|error| {
            format!("it does not list its tools: {}", super::failure::of(&self.server, error).message)
        })?;
        let honours_key = service.peer().peer_info().is_some_and(|info| {
            let capabilities = serde_json::to_value(&info.capabilities).unwrap_or_default();
            ["experimental", "extensions"].iter().any(|group| capabilities[*group].get(HONOURS_KEY).is_some())
        });
        let listing = self.listing(honours_key);
        let catalogue = Arc::new(RwLock::new(Arc::new(listing.catalogue(listed))));
        // To give a connection up is not to say that its process has ended.
        let lost =
            process.as_ref().map_or_else(CancellationToken::new, |process| process.ended.child_token());
        listener.follow_lists(service.peer());
        let one_by_one = self.entry.asks() && era == Era::Legacy;
        Ok(Connection {
            peer: service.peer().clone(),
            listener,
            era,
            sse,
            honours_key,
            catalogue,
            listing,
            turns: one_by_one.then(|| Arc::new(Semaphore::new(1))),
            lost,
            opened: Instant::now(),
            process,
            service: Mutex::new(Some(service)),
        })
    }

    fn program(&self) -> Result<Program, String> {
        let Road::Child { command, args, env, cwd } = &self.entry.road else {
            return Err("it is no program".to_owned());
        };
        Ok(Program {
            command: self.expand(command)?,
            args: args.iter().map(|arg| self.expand(arg)).collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(key, text)| Ok((key.clone(), self.expand(text)?)))
                .collect::<Result<_, String>>()?,
            cwd: cwd.as_ref().map(|cwd| self.expand(cwd)).transpose()?,
        })
    }

    fn headers(&self, headers: &BTreeMap<String, Text>) -> Result<HeaderMap, String> {
        let mut custom = HeaderMap::new();
        for (name, text) in headers {
            let bad = |_| format!("the header `{name}` cannot be sent");
            let mut value = HeaderValue::from_str(&self.expand(text)?).map_err(bad)?;
            value.set_sensitive(true);
            let key = name.parse::<HeaderName>().map_err(|_| format!("`{name}` is no name of a header"))?;
            custom.insert(key, value);
        }
        Ok(custom)
    }

    fn expand(&self, text: &Text) -> Result<String, String> {
        text.expand(&*self.variables).map_err(|missing| not_set(&missing))
    }
}

/// The OAuth login of one user, or of all, at one server.
struct Login {
    logins: Logins,
    server: String,
    url: String,
    user: Option<String>,
}

impl Credentials for Login {
    fn token(&self) -> BoxFuture<'_, Result<Option<String>, HttpFailure>> {
        Box::pin(async {
            let token = self.logins.token(&self.server, &self.url, self.user.as_deref()).await;
            token.map_err(|error| without_login(&error))
        })
    }

    fn challenged<'c>(
        &'c self,
        sent: Option<&'c str>,
        challenge: &'c str,
    ) -> BoxFuture<'c, Result<String, HttpFailure>> {
        Box::pin(async move {
            let user = self.user.as_deref();
            let token = self.logins.challenged(&self.server, &self.url, user, sent, challenge).await;
            token.map_err(|error| without_login(&error))
        })
    }
}

fn without_login(error: &LoginError) -> HttpFailure {
    match error {
        LoginError::Needed(needed) => HttpFailure::LoginNeeded(needed.to_string()),
        LoginError::Refused(reason) => HttpFailure::Rejected { status: 403, message: reason.clone() },
        LoginError::Unavailable(reason) => HttpFailure::NotSent(reason.clone()),
    }
}

/// Begins a connection as its era has it.
async fn serve<T, E, A>(listener: &Listener, transport: T, era: Era) -> Result<Service, Refused>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let served = listener.clone().serve_with_lifecycle(transport, era.lifecycle()).await;
    served.map_err(|error| Refused::of(&error))
}

/// Asks a process for its era. One that is silent for a while is taken for a legacy server.
async fn probe_pipes<R, W>(pipes: &mut Stdio<R, W>, listener: &Listener) -> Result<Era, Refused>
where
    R: tokio::io::AsyncRead + Unpin + Send,
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let discover = era::discover(&listener.get_info());
    let patience = Duration::from_secs(PROBE_SECS);
    match tokio::time::timeout(patience, pipes.probe(&discover)).await {
        Ok(Ok(era)) => Ok(era),
        Ok(Err(_)) => Err(Refused::Failed(ENDED.to_owned())),
        Err(_) => Ok(Era::Legacy),
    }
}

/// Asks an HTTP server for its era, and whether it speaks only HTTP+SSE.
async fn probe_http(
    client: &HttpClient,
    url: &str,
    headers: &HeaderMap,
    listener: &Listener,
) -> Result<(Era, bool), Refused> {
    let mut headers = headers.clone();
    let modern = HeaderValue::from_static("2026-07-28");
    headers.insert(HeaderName::from_static("mcp-protocol-version"), modern);
    headers.insert(HeaderName::from_static("mcp-method"), HeaderValue::from_static("server/discover"));
    let response = client.post(url, headers.clone(), &era::discover(&listener.get_info())).await;
    let response = response.map_err(|failure| plainly(&failure))?;
    let status = response.status();
    let refused = status.is_client_error() && status != http::StatusCode::UNAUTHORIZED;
    if !status.is_success() && !refused {
        return Err(plainly(&super::transport::http::failure(response).await).into());
    }
    // Servers of 2024-11-05 refuse the post and offer a stream instead.
    if matches!(status.as_u16(), 404 | 405) {
        headers.remove("mcp-method");
        let is_sse = HttpSse::open(client.clone(), url, headers).await.is_ok();
        return Ok((Era::Legacy, is_sse));
    }
    Ok((Era::of_answer(&first_answer(client, response).await), false))
}

/// The answer in the body of a response: JSON, or the first event of a stream.
async fn first_answer(client: &HttpClient, response: reqwest::Response) -> Value {
    use futures::StreamExt;
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let mut events = client.events(response, None);
        while let Some(Ok(event)) = events.next().await {
            if let Some(Ok(answer)) = event.data.as_deref().map(serde_json::from_str) {
                return answer;
            }
        }
        return Value::Null;
    }
    let body = bounded_body(response).await.ok().flatten().unwrap_or_default();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// Why a connection was not opened.
enum Refused {
    /// The server speaks another era than it was addressed in.
    Era(Era),
    /// The server answered the handshake with something else.
    Handshake(String),
    /// It could not be reached, or is not set up.
    Failed(String),
}

impl Refused {
    fn reason(self) -> String {
        match self {
            Self::Era(_) => "it speaks no revision of the protocol that we do".to_owned(),
            Self::Handshake(reason) | Self::Failed(reason) => reason,
        }
    }

    /// The failure of a handshake, without the names of types.
    fn of(error: &ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::NoCompatibleProtocolVersion { .. } => Self::Era(Era::Legacy),
            ClientInitializeError::TransportError { error, .. } => Self::of_transport(&*error.error),
            ClientInitializeError::ConnectionClosed(_) => Self::Failed(ENDED.to_owned()),
            ClientInitializeError::JsonRpcError(error) => {
                Self::Handshake(format!("it refused the handshake: {}", error.message))
            }
            _ => Self::Handshake("its answer to the handshake is not MCP".to_owned()),
        }
    }

    fn of_transport(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        let http = error.downcast_ref::<HttpFailure>();
        let http = http.or_else(|| match error.downcast_ref::<StreamableHttpError<HttpFailure>>() {
            Some(StreamableHttpError::Client(failure)) => Some(failure),
            _ => None,
        });
        match http {
            Some(failure @ HttpFailure::Rejected { .. }) => Self::Handshake(plainly(failure)),
            Some(failure) => Self::Failed(plainly(failure)),
            None if error.is::<std::io::Error>() => Self::Failed(ENDED.to_owned()),
            None => Self::Handshake(root_cause(error)),
        }
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

fn plainly(failure: &HttpFailure) -> String {
    match failure {
        HttpFailure::Busy { status, .. } => format!("it asks to be called later (HTTP {status})"),
        other => other.to_string(),
    }
}

fn not_set(missing: &BTreeSet<String>) -> String {
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [one] => format!("the variable {one} is not set"),
        _ => format!("the variables {} are not set", names.join(", ")),
    }
}
