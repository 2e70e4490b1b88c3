//! The HTTP client of all channels: it connects to checked addresses only, and its requests are bounded in size and time.

mod address;
mod endpoint;
mod guard;
mod retry_after;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, LOCATION};
use reqwest::{Method, Response, StatusCode};
use steprail_core::display;
use steprail_core::run::Millis;
use url::Url;

pub use self::address::not_public;
pub use self::endpoint::Endpoint;
use self::guard::Guard;
pub use self::guard::{Allowed, Lookup, Refused, SystemLookup};
use crate::channel::{Retry, SendError};
use crate::config::ConfigError;
use crate::limits;
use crate::message::cut;
use crate::secret::Secret;

/// Settings of the client.
#[derive(Clone)]
pub struct OutboundOptions {
    /// Hosts and networks that may be contacted although they are not public.
    pub allowed: Allowed,
    /// Timeout of a request with its redirects.
    pub timeout: Duration,
    /// The proxy of all requests. It then resolves host names, so it has to refuse internal addresses itself.
    pub proxy: Option<Url>,
    /// Certificates, as PEM, that are trusted in addition to those of the system.
    pub certificates: Vec<String>,
    /// Resolves host names.
    pub lookup: Arc<dyn Lookup>,
}

impl Default for OutboundOptions {
    fn default() -> Self {
        Self {
            allowed: Allowed::default(),
            timeout: Duration::from_secs(limits::REQUEST_SECS),
            proxy: None,
            certificates: Vec::new(),
            lookup: Arc::new(SystemLookup),
        }
    }
}

/// The guarded HTTP client.
pub struct Outbound {
    client: reqwest::Client,
    guard: Guard,
    timeout: Duration,
}

/// One request.
pub(crate) struct Request<'r> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) bearer: Option<&'r Secret>,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
    /// Secrets of the body, which a receiver may repeat in its error.
    pub(crate) secrets: Vec<&'r Secret>,
    /// Whether a redirect may be followed. Not for bodies that contain a secret.
    pub(crate) follows: bool,
    pub(crate) now: Millis,
}

impl<'r> Request<'r> {
    /// A POST of JSON without a secret in its body.
    pub(crate) fn json(url: Url, body: &serde_json::Value, now: Millis) -> Self {
        Self {
            method: Method::POST,
            url,
            headers: Vec::new(),
            bearer: None,
            content_type: "application/json",
            body: body.to_string(),
            secrets: Vec::new(),
            follows: true,
            now,
        }
    }

    pub(crate) fn bearer(mut self, token: Option<&'r Secret>) -> Self {
        self.bearer = token;
        self
    }
}

impl Outbound {
    /// Creates the client. No proxy is taken from the environment.
    pub fn new(options: OutboundOptions) -> Result<Self, ConfigError> {
        let proxy_host = options.proxy.as_ref().and_then(Url::host_str).map(str::to_owned);
        let allowed = match &proxy_host {
            Some(host) => options.allowed.and_host(host),
            None => options.allowed,
        };
        let guard = Guard { allowed: Arc::new(allowed), lookup: options.lookup };
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .referer(false)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(limits::CONNECT_SECS).min(options.timeout))
            .user_agent(concat!("steprail/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(guard.clone()));
        if let Some(proxy) = options.proxy {
            let proxy = reqwest::Proxy::all(proxy).map_err(|_| ConfigError::new("the proxy is not valid"))?;
            builder = builder.proxy(proxy);
        }
        let mut certificates = Vec::new();
        for pem in &options.certificates {
            let parsed = reqwest::Certificate::from_pem_bundle(pem.as_bytes());
            certificates.extend(parsed.map_err(|_| ConfigError::new("a certificate is not valid PEM"))?);
        }
        if !certificates.is_empty() {
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(|error| ConfigError::new(format!("no HTTP client: {error}")))?;
        Ok(Self { client, guard, timeout: options.timeout })
    }

    /// Checks a URL of the configuration. The addresses of a host name are checked when it is used.
    pub fn check_url(&self, url: &Url) -> Result<(), Refused> {
        self.guard.check_url(url)
    }

    /// Sends a request and returns the body of a successful response.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<String, SendError> {
        let host = host(&request.url);
        let result = tokio::time::timeout(self.timeout, self.follow(request)).await;
        result.unwrap_or_else(|_| {
            let secs = self.timeout.as_secs_f64();
            Err(SendError::transient(format!("{host} did not respond within {secs} s")))
        })
    }

    /// Follows redirects that keep method and body (307, 308). Each URL passes the guard.
    async fn follow(&self, mut request: Request<'_>) -> Result<String, SendError> {
        for _ in 0..=limits::REDIRECTS {
            let response = self.attempt(&request).await?;
            let status = response.status();
            let keeps_method = matches!(status.as_u16(), 307 | 308);
            if !(status.is_redirection() && keeps_method && request.follows) {
                return answer(&request, response).await;
            }
            let next = redirect_target(&request.url, response.headers())?;
            if next.origin() != request.url.origin() {
                request.bearer = None;
            }
            request.url = next;
        }
        let reason = format!("{} redirects more than {} times", host(&request.url), limits::REDIRECTS);
        Err(SendError::permanent(reason))
    }

    async fn attempt(&self, request: &Request<'_>) -> Result<Response, SendError> {
        self.guard.check_url(&request.url).map_err(|refused| refusal(&refused))?;
        let mut builder = self.client.request(request.method.clone(), request.url.clone());
        if !request.body.is_empty() {
            builder = builder.header(CONTENT_TYPE, request.content_type).body(request.body.clone());
        }
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if let Some(token) = request.bearer {
            builder = builder.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        builder.send().await.map_err(|error| network_error(&host(&request.url), &error))
    }
}

fn refusal(refused: &Refused) -> SendError {
    let reason = refused.to_string();
    if refused.by_lookup { SendError::transient(reason) } else { SendError::permanent(reason) }
}

/// The error of a request that got no response. Errors of the client contain the URL, so only their causes are shown.
fn network_error(host: &str, error: &reqwest::Error) -> SendError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    let mut last = None;
    while let Some(inner) = cause {
        if let Some(refused) = inner.downcast_ref::<Refused>() {
            return refusal(refused);
        }
        last = Some(inner.to_string());
        cause = inner.source();
    }
    let what = if error.is_connect() { "cannot connect to" } else { "request failed to" };
    let last = last.map(|cause| format!(": {}", display::line(&cause))).unwrap_or_default();
    SendError::transient(format!("{what} {host}{last}"))
}

fn redirect_target(from: &Url, headers: &HeaderMap) -> Result<Url, SendError> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| from.join(location).ok());
    let next =
        next.ok_or_else(|| SendError::permanent(format!("{} redirects to no valid URL", host(from))))?;
    if from.scheme() == "https" && next.scheme() != "https" {
        let reason = format!("{} redirects from https to {}, which is refused", host(from), next.scheme());
        return Err(SendError::permanent(reason));
    }
    Ok(next)
}

/// Reads the response and decides what its status means.
async fn answer(request: &Request<'_>, mut response: Response) -> Result<String, SendError> {
    let status = response.status();
    let retry_after = retry_after::read(response.headers(), request.now);
    let body = read_body(&mut response).await;
    if status.is_success() {
        // The service has accepted the message, whatever it says about it.
        return Ok(body.unwrap_or_default());
    }
    let mut quoted = display::line(&body.unwrap_or_default());
    cut(&mut quoted, limits::QUOTED_CHARS);
    let quoted = if quoted.is_empty() { quoted } else { format!(": {quoted}") };
    let reason = format!("{} answered {}{quoted}", host(&request.url), status.as_u16());
    Err(SendError { retry: retry(status, retry_after), ..SendError::transient(redact(request, reason)) })
}

fn retry(status: StatusCode, after: Option<Duration>) -> Retry {
    match status.as_u16() {
        408 | 425 | 429 => Retry::After(after),
        _ if status.is_server_error() => Retry::After(after),
        _ => Retry::Never,
    }
}

/// Removes secrets: a receiver may repeat the request in its error.
fn redact(request: &Request<'_>, reason: String) -> String {
    let url = &request.url;
    let secrets = request.secrets.iter().copied().chain(request.bearer).map(Secret::reveal);
    let parts = [url.path(), url.query().unwrap_or_default(), url.password().unwrap_or_default()];
    let secrets = secrets.chain(parts).filter(|part| part.len() > 1);
    secrets.fold(reason, |reason, secret| reason.replace(secret, "‹secret›"))
}

async fn read_body(response: &mut Response) -> Option<String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > limits::RESPONSE_BYTES {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(String::from_utf8_lossy(&body).into_owned())
}

/// The host and port of a URL. Paths and queries of webhooks are secrets.
fn host(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or("the host").to_owned(),
    }
}
