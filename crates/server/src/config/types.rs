//! The types of settings that mean more than text.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;

use axum::http::Uri;
use axum::http::uri::Authority;
use steprail_core::diagnostic::{quoted, suggest};
use steprail_core::spec::value::ToolName as CoreToolName;
use steprail_engine::Durability;
use steprail_mcp::{Expose, ToolNames};

use super::setting::{Around, Setting, Wrong, printed};

/// Words of which a setting is one.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),+ }) => {
        impl Setting for $type {
            fn kind() -> String {
                quoted(&[$($word),+])
            }

            fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
                match text.trim() {
                    $($word => Ok(Self::$variant),)+
                    other => Err(not_one_of(other, &[$($word),+])),
                }
            }

            fn shown(&self) -> Option<toml::Value> {
                Some(printed(match self { $(Self::$variant => $word),+ }))
            }
        }
    };
}

fn not_one_of(text: &str, words: &[&str]) -> Wrong {
    let wrong = Wrong::new(format!("`{text}` is not possible here"));
    match suggest(text, words) {
        Some(hint) => wrong.hint(hint),
        None => wrong,
    }
}

/// Text of a certain form: what it is called, an example, and a check.
macro_rules! texts {
    ($($(#[doc = $docs:literal])+ $type:ident, $what:literal, $kind:literal, $check:expr;)+) => {$(
        $(#[doc = $docs])+
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $type(String);

        impl Setting for $type {
            fn kind() -> String {
                $kind.to_owned()
            }

            fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
                let (text, check): (&str, fn(&str) -> bool) = (text.trim(), $check);
                if check(text) { Ok(Self(text.to_owned())) } else { Err(Wrong::text::<Self>(text, $what)) }
            }

            fn shown(&self) -> Option<toml::Value> {
                Some(printed(&self.0))
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }
    )+};
}

texts! {
    /// A name under which the daemon is reached, perhaps with a port.
    HostName, "a host name", "a host name, perhaps with a port, such as `flows.example.org`", is_host;
    /// An origin as browsers send it.
    WebOrigin, "an origin", "an origin as browsers send it, such as `https://app.example.org`", is_origin;
    /// A tool's full name.
    ToolName, "a tool name", "a tool's full name, such as `tools__create`", CoreToolName::is_valid;
    /// Where something is reached over HTTP.
    Url, "a URL", "a URL without a password, such as `https://traces.example.org/v1/traces`", is_url;
    /// Which lines are worth writing: a level, or levels of targets.
    LogFilter, "a filter", "a level (`off`, `error`, `warn`, `info`, `debug`, `trace`), or levels of targets such as \
                            `warn,steprail=debug`", is_filter;
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("warn".to_owned())
    }
}

fn is_host(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@') && !host.host().is_empty())
}

fn is_origin(text: &str) -> bool {
    // Browsers write no path and no capital letters.
    let spelling = !text.ends_with('/') && !text.contains(|letter: char| letter.is_ascii_uppercase());
    spelling
        && is_url(text)
        && text.parse::<Uri>().is_ok_and(|uri| uri.path() == "/" && uri.query().is_none())
}

fn is_url(text: &str) -> bool {
    let of_web = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    text.parse::<Uri>()
        .is_ok_and(|uri| of_web(&uri) && uri.authority().is_some_and(|host| is_host(host.as_str())))
}

/// A word alone is a level; the library would take any other for a target.
fn is_filter(text: &str) -> bool {
    let level = |word: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&word);
    text.split(',').map(str::trim).all(|part| match part.split_once('=') {
        Some((target, word)) => !target.is_empty() && level(word),
        None => level(part),
    })
}

/// Who may use a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMode {
    /// Whoever reaches it on this machine is the owner.
    Single,
    /// Everybody signs in with a token.
    Users,
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

words!(AuthMode { Single = "single", Users = "users" });
words!(LogFormat { Text = "text", Json = "json" });
words!(Durability { Full = "full", Process = "process" });
words!(ToolNames { Underscore = "underscore", Dotted = "dotted", Both = "both" });

/// Where HTTP is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// At an address.
    At(SocketAddr),
}

impl Default for Listen {
    fn default() -> Self {
        Self::At((Ipv4Addr::LOCALHOST, 8462).into())
    }
}

impl Setting for Listen {
    fn kind() -> String {
        "an address such as `127.0.0.1:8462` (port 0 takes any that is free), or `off`".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        match text.trim() {
            "off" => Ok(Self::Off),
            text => {
                text.parse().map(Self::At).map_err(|_| Wrong::text::<Self>(text, "an address with a port"))
            }
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Off => printed("off"),
            Self::At(address) => printed(address),
        })
    }
}

/// A file or a place on the web.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A file.
    File(PathBuf),
    /// A place on the web.
    Web(Url),
}

/// A file of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePath(pub PathBuf);

impl Setting for FilePath {
    fn kind() -> String {
        "the path of a file".to_owned()
    }

    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong> {
        match text.trim() {
            "" => Err(Wrong::new("the path is empty")),
            path => Ok(Self(around.folder.join(path))),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(printed(self.0.display()))
    }
}

impl Setting for Location {
    fn kind() -> String {
        "the path of a file, or a URL".to_owned()
    }

    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong> {
        match text.trim() {
            "" => Err(Wrong::new("the path is empty")),
            url if url.contains("://") => Url::from_text(url, around).map(Self::Web),
            path => Ok(Self::File(around.folder.join(path))),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        match self {
            Self::File(path) => Some(printed(path.display())),
            Self::Web(url) => url.shown(),
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub u64);

/// Units of size, the largest first; all are understood in capital and small letters.
const UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

impl Setting for Size {
    fn kind() -> String {
        "a size such as `512KB`, `10MB`, `1GiB`".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        let text = text.trim();
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
        let bytes = unit.and_then(|(_, bytes)| digits.parse::<u64>().ok()?.checked_mul(*bytes));
        match bytes {
            Some(bytes @ 1..) => Ok(Self(bytes)),
            _ => Err(Wrong::text::<Self>(text, "a size")),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(printed(self))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)).unwrap_or(&("B", 1));
        write!(out, "{}{}", self.0 / unit.1, unit.0)
    }
}

/// Tools that are passed on, as it is written and as it is meant.
#[derive(Debug, Clone)]
pub(crate) struct Exposed {
    written: String,
    /// Which, and under what names.
    pub expose: Expose,
}

impl Setting for Exposed {
    fn kind() -> String {
        "a name or pattern such as `git__*`, or `read_*=files__read_*` for other names".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        let refused = |reason: String| Wrong::new(format!("`{text}` names no tools")).hint(reason);
        match text {
            "" => Err(Wrong::text::<Self>(text, "a name")),
            _ => Ok(Self { written: text.to_owned(), expose: text.parse().map_err(refused)? }),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(printed(&self.written))
    }
}
