//! Where an issuer's keys come from, a file or a URL, and when they are read again.

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

/// Bytes of a set of keys.
const SET_BYTES: usize = 1024 * 1024;

/// How long an issuer may take to answer.
const FETCH: Duration = Duration::from_secs(10);

/// Seconds between two looks at a file.
const FILE_LOOKS: i64 = 1;

/// Seconds between two fetches, however many unknown keys are named or fetches fail.
const FETCHES: i64 = 60;

/// Seconds after which keys are fetched again though nothing calls for it: an issuer may have withdrawn one.
const FETCHED_KEYS: i64 = 60 * 60;

/// The keys of an issuer, as they were last read.
pub(super) struct Source {
    place: Place,
    now: Box<dyn Fn() -> i64 + Send + Sync>,
    held: RwLock<Held>,
    /// Held by the one that reads them again.
    turn: Arc<Mutex<()>>,
}

enum Place {
    File(PathBuf),
    Url(Client, Url),
}

#[derive(Clone)]
struct Held {
    keys: Arc<Keys>,
    /// The file that they are from.
    stamp: Option<Stamp>,
    /// When they were last asked for.
    asked_at: i64,
    /// Why they could not be read then.
    trouble: Option<String>,
}

/// Tells a file from what it was before.
type Stamp = (SystemTime, u64);

/// What a place has: keys, unless they are those of the stamp.
type Found = Option<(Keys, Option<Stamp>)>;

impl Source {
    /// Reads the keys for the first time: without any, nobody could ever come in.
    pub(super) async fn open(
        jwks: &str,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let failed = |why: String| {
            format!(
                "cannot read the issuer's keys from {jwks}: {why}; name a file, or the issuer's `jwks_uri` with `https`"
            )
        };
        let place = Place::named(jwks).map_err(failed)?;
        let asked_at = now();
        let (keys, stamp) = match place.read(None).await.map_err(failed)? {
            Some((keys, stamp)) if !keys.is_empty() => (Arc::new(keys), stamp),
            _ => return Err(failed("none of them can verify tokens".to_owned())),
        };
        let held = RwLock::new(Held { keys, stamp, asked_at, trouble: None });
        Ok(Self { place, now: Box::new(now), held, turn: Arc::default() })
    }

    pub(super) fn now(&self) -> i64 {
        (self.now)()
    }

    /// The keys.
    pub(super) async fn keys(self: &Arc<Self>) -> Arc<Keys> {
        let patience = |held: &Held| match self.place {
            Place::File(_) => FILE_LOOKS,
            Place::Url(..) if held.trouble.is_some() => FETCHES,
            Place::Url(..) => FETCHED_KEYS,
        };
        self.read_after(patience).await
    }

    /// The keys for somebody who missed one in `keys`.
    pub(super) async fn newer_keys(self: &Arc<Self>) -> Arc<Keys> {
        let patience = |_: &Held| match self.place {
            Place::File(_) => FILE_LOOKS,
            Place::Url(..) => FETCHES,
        };
        self.read_after(patience).await
    }

    /// The keys, read again after so many seconds. Who comes while they are read waits for the same answer.
    async fn read_after(self: &Arc<Self>, patience: impl Fn(&Held) -> i64) -> Arc<Keys> {
        // A clock that was set back is no reason to wait until it is as late again.
        let is_due = |held: &Held| !(0..patience(held)).contains(&self.now().saturating_sub(held.asked_at));
        if !is_due(&self.held()) {
            return self.held().keys;
        }
        let turn = self.turn.clone().lock_owned().await;
        if is_due(&self.held()) {
            let source = self.clone();
            // In a task of its own: a client that goes away takes nothing from the others that wait.
            let reading = tokio::spawn(async move {
                source.read_again().await;
                drop(turn);
            });
            let _ = reading.await;
        }
        self.held().keys
    }

    /// Reads the keys again. If that fails, those that we have stay.
    async fn read_again(&self) {
        let before = self.held();
        let asked_at = self.now();
        let after = match self.place.read(before.stamp).await {
            Ok(Some((keys, stamp))) => Held { keys: Arc::new(keys), stamp, asked_at, trouble: None },
            Ok(None) => Held { asked_at, trouble: None, ..before },
            Err(trouble) => {
                if before.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!("the issuer's keys cannot be read again, the old ones stay: {trouble}");
                }
                Held { asked_at, stamp: None, trouble: Some(trouble), ..before }
            }
        };
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn held(&self) -> Held {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Place {
    fn named(jwks: &str) -> Result<Self, String> {
        if !jwks.starts_with("http://") && !jwks.starts_with("https://") {
            return Ok(Self::File(PathBuf::from(jwks)));
        }
        let url = Url::parse(jwks).map_err(|error| error.to_string())?;
        let mut client = Client::builder().timeout(FETCH).redirect(redirect::Policy::none());
        if url.scheme() == "http" {
            if !is_this_machine(&url) {
                return Err("over `http` anybody on the way could change them".to_owned());
            }
            client = client.no_proxy();
        }
        Ok(Self::Url(client.build().map_err(|error| told(&error))?, url))
    }

    async fn read(&self, stamp: Option<Stamp>) -> Result<Found, String> {
        match self {
            Self::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read_file(&path, stamp));
                reading.await.map_err(|error| error.to_string())?
            }
            Self::Url(client, url) => Ok(Some((Keys::read(&fetch(client, url).await?)?, None))),
        }
    }
}

fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read_file(path: &Path, seen: Option<Stamp>) -> Result<Found, String> {
    let told = |error: std::io::Error| error.to_string();
    let file = std::fs::File::open(path).map_err(told)?;
    let about = file.metadata().map_err(told)?;
    // Taken before the content: what is written in between is noticed next time.
    let stamp = (about.modified().map_err(told)?, about.len());
    if seen == Some(stamp) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(SET_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() > SET_BYTES {
        return Err(too_large());
    }
    Ok(Some((Keys::read(&bytes)?, Some(stamp))))
}

async fn fetch(client: &Client, url: &Url) -> Result<Vec<u8>, String> {
    let request = client.get(url.clone()).header(ACCEPT, "application/jwk-set+json, application/json");
    let mut answer = request.send().await.map_err(|error| told(&error))?;
    if !answer.status().is_success() {
        return Err(format!("the answer is {}", answer.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| told(&error))? {
        if bytes.len() + chunk.len() > SET_BYTES {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn too_large() -> String {
    format!("there are more than {SET_BYTES} bytes")
}

/// An error and what caused it.
fn told(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
