//! The source of an issuer's keys, a file or a URL, and its refresh.

use std::error::Error;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use reqwest::header::ACCEPT;
use reqwest::{Client, Url, redirect};
use tokio::sync::Mutex;

use super::keys::Keys;

/// The maximum size of a key set.
const SET_BYTES: usize = 1024 * 1024;

/// Timeout of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Seconds between two checks of a file.
const FILE_INTERVAL: i64 = 1;

/// Minimum number of seconds between two fetches, also if tokens name unknown keys or fetches fail.
const MIN_FETCH_INTERVAL: i64 = 60;

/// Seconds after which keys are fetched again in any case: the issuer may have revoked one.
const MAX_FETCH_INTERVAL: i64 = 60 * 60;

/// The keys of an issuer as last read.
pub(super) struct KeySource {
    location: Location,
    now: Box<dyn Fn() -> i64 + Send + Sync>,
    cached: RwLock<Cached>,
    /// Held during a refresh, so that concurrent requests share it.
    refreshing: Arc<Mutex<()>>,
}

enum Location {
    File(PathBuf),
    Url(Client, Url),
}

#[derive(Clone)]
struct Cached {
    keys: Arc<Keys>,
    /// The version of the file; `None` for a URL, or after a failure.
    fingerprint: Option<Fingerprint>,
    /// When the last read started, in seconds since 1970.
    read_at: i64,
    /// Why the last read failed.
    error: Option<String>,
}

/// Identifies a version of a file: modification time and size.
type Fingerprint = (SystemTime, u64);

/// Keys with the fingerprint of their file; `None` if the file has not changed.
type NewKeys = Option<(Keys, Option<Fingerprint>)>;

impl KeySource {
    /// Reads the keys. Fails if there are none, because no token could be validated.
    pub(super) async fn open(
        jwks: &str,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let failed = |reason: String| {
            format!(
                "cannot read the issuer's keys from {jwks}: {reason}; name a file, or the issuer's `jwks_uri` with `https`"
            )
        };
        let location = Location::parse(jwks).map_err(failed)?;
        let read_at = now();
        let (keys, fingerprint) = match location.read(None).await.map_err(failed)? {
            Some((keys, fingerprint)) if !keys.is_empty() => (Arc::new(keys), fingerprint),
            _ => return Err(failed("no key can verify tokens".to_owned())),
        };
        let cached = RwLock::new(Cached { keys, fingerprint, read_at, error: None });
        Ok(Self { location, now: Box::new(now), cached, refreshing: Arc::default() })
    }

    pub(super) fn now(&self) -> i64 {
        (self.now)()
    }

    /// The keys, refreshed if they are too old.
    pub(super) async fn keys(self: &Arc<Self>) -> Arc<Keys> {
        let max_age = |cached: &Cached| match self.location {
            Location::File(_) => FILE_INTERVAL,
            Location::Url(..) if cached.error.is_some() => MIN_FETCH_INTERVAL,
            Location::Url(..) => MAX_FETCH_INTERVAL,
        };
        self.refreshed(max_age).await
    }

    /// The keys for a token whose key is not in `keys`, refreshed as early as the rate limit of fetches allows.
    pub(super) async fn newer_keys(self: &Arc<Self>) -> Arc<Keys> {
        let max_age = |_: &Cached| match self.location {
            Location::File(_) => FILE_INTERVAL,
            Location::Url(..) => MIN_FETCH_INTERVAL,
        };
        self.refreshed(max_age).await
    }

    /// The keys, refreshed if they are older than `max_age` seconds. Concurrent callers share one refresh.
    async fn refreshed(self: &Arc<Self>, max_age: impl Fn(&Cached) -> i64) -> Arc<Keys> {
        // A negative age means that the clock was set back: refresh at once.
        let is_due =
            |cached: &Cached| !(0..max_age(cached)).contains(&self.now().saturating_sub(cached.read_at));
        if !is_due(&self.cached()) {
            return self.cached().keys;
        }
        let guard = self.refreshing.clone().lock_owned().await;
        if is_due(&self.cached()) {
            let source = self.clone();
            // In its own task, because the caller can be cancelled while others wait for the refresh.
            let refresh = tokio::spawn(async move {
                source.refresh().await;
                drop(guard);
            });
            let _ = refresh.await;
        }
        self.cached().keys
    }

    /// Reads the keys again. If that fails, the cached keys stay in use.
    async fn refresh(&self) {
        let before = self.cached();
        let read_at = self.now();
        let after = match self.location.read(before.fingerprint).await {
            Ok(Some((keys, fingerprint))) => {
                Cached { keys: Arc::new(keys), fingerprint, read_at, error: None }
            }
            Ok(None) => Cached { read_at, error: None, ..before },
            Err(error) => {
                if before.error.as_ref() != Some(&error) {
                    tracing::warn!(%error, "cannot refresh the issuer's keys; using the cached ones");
                }
                Cached { read_at, fingerprint: None, error: Some(error), ..before }
            }
        };
        *self.cached.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn cached(&self) -> Cached {
        self.cached.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Location {
    fn parse(jwks: &str) -> Result<Self, String> {
        if !jwks.starts_with("http://") && !jwks.starts_with("https://") {
            return Ok(Self::File(PathBuf::from(jwks)));
        }
        let url = Url::parse(jwks).map_err(|error| error.to_string())?;
        let mut client = Client::builder().timeout(FETCH_TIMEOUT).redirect(redirect::Policy::none());
        if url.scheme() == "http" {
            if !is_loopback(&url) {
                return Err("plain `http` is allowed on loopback only".to_owned());
            }
            client = client.no_proxy();
        }
        Ok(Self::Url(client.build().map_err(|error| with_causes(&error))?, url))
    }

    async fn read(&self, known: Option<Fingerprint>) -> Result<NewKeys, String> {
        match self {
            Self::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read_file(&path, known));
                reading.await.map_err(|error| error.to_string())?
            }
            Self::Url(client, url) => Ok(Some((Keys::parse(&fetch(client, url).await?)?, None))),
        }
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read_file(path: &Path, known: Option<Fingerprint>) -> Result<NewKeys, String> {
    let failed = |error: std::io::Error| error.to_string();
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // Read before the contents, so that a concurrent change is noticed next time.
    let fingerprint = (metadata.modified().map_err(failed)?, metadata.len());
    if known == Some(fingerprint) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(SET_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > SET_BYTES {
        return Err(too_large());
    }
    Ok(Some((Keys::parse(&bytes)?, Some(fingerprint))))
}

async fn fetch(client: &Client, url: &Url) -> Result<Vec<u8>, String> {
    let request = client.get(url.clone()).header(ACCEPT, "application/jwk-set+json, application/json");
    let mut response = request.send().await.map_err(|error| with_causes(&error))?;
    if !response.status().is_success() {
        return Err(format!("the response has status {}", response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| with_causes(&error))? {
        if bytes.len() + chunk.len() > SET_BYTES {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn too_large() -> String {
    format!("the key set has more than {SET_BYTES} bytes")
}

/// An error with its causes.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
