//! Types of settings with their own syntax.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;

use axum::http::Uri;
use axum::http::uri::Authority;
use steprail_core::diagnostic::{quoted, suggest};
use steprail_core::spec::value::ToolName as CoreToolName;
use steprail_engine::{Durability, Presence};
use steprail_mcp::{Expose, ToolNames};
use toml::Spanned;
use toml::de::DeValue;

use super::setting::{ReadContext, Setting, SettingError, string};

/// Implements `Setting` for an enum whose values are keywords.
macro_rules! keywords {
    ($type:ident { $($variant:ident = $keyword:literal),+ }) => {
        impl Setting for $type {
            fn expected() -> String {
                quoted(&[$($keyword),+])
            }

            fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
                match text.trim() {
                    $($keyword => Ok(Self::$variant),)+
                    other => Err(invalid_keyword(other, &[$($keyword),+])),
                }
            }

            fn to_toml(&self) -> Option<toml::Value> {
                Some(string(match self { $(Self::$variant => $keyword),+ }))
            }
        }
    };
}

fn invalid_keyword(text: &str, keywords: &[&str]) -> SettingError {
    let error = SettingError::new(format!("invalid value `{text}`"));
    match suggest(text, keywords) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Declares string types: the name in messages, the description of valid values, and the check.
macro_rules! strings {
    ($($(#[doc = $docs:literal])+ $type:ident, $what:literal, $expected:literal, $check:expr;)+) => {$(
        $(#[doc = $docs])+
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $type(String);

        impl Setting for $type {
            fn expected() -> String {
                $expected.to_owned()
            }

            fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
                let (text, check): (&str, fn(&str) -> bool) = (text.trim(), $check);
                if check(text) { Ok(Self(text.to_owned())) } else { Err(SettingError::invalid_text::<Self>(text, $what)) }
            }

            fn to_toml(&self) -> Option<toml::Value> {
                Some(string(&self.0))
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

strings! {
    /// A host name of the daemon, optionally with a port.
    HostName, "a host name", "a host name, optionally with a port, such as `flows.example.org`", is_host;
    /// An HTTP origin, as in the `Origin` header.
    WebOrigin, "an origin", "an origin such as `https://app.example.org`", is_origin;
    /// A qualified tool name.
    ToolName, "a tool name", "a qualified tool name such as `tools__create`", CoreToolName::is_valid;
    /// An HTTP URL without credentials.
    Url, "a URL", "a URL without a password, such as `https://traces.example.org/v1/traces`", is_url;
    /// A log filter: a level, or levels per target.
    LogFilter, "a log filter", "a level (`off`, `error`, `warn`, `info`, `debug`, `trace`), or levels per target \
                                such as `warn,steprail=debug`", is_filter;
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
    // Browsers send origins in lower case and without a path.
    let is_normal = !text.ends_with('/') && !text.contains(|letter: char| letter.is_ascii_uppercase());
    is_normal
        && is_url(text)
        && text.parse::<Uri>().is_ok_and(|uri| uri.path() == "/" && uri.query().is_none())
}

fn is_url(text: &str) -> bool {
    let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    text.parse::<Uri>()
        .is_ok_and(|uri| is_http(&uri) && uri.authority().is_some_and(|host| is_host(host.as_str())))
}

/// A part without `=` must be a level: the library would accept any other text as a target.
fn is_filter(text: &str) -> bool {
    let is_level = |level: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
    text.split(',').map(str::trim).all(|part| match part.split_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => is_level(part),
    })
}

/// How requests authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMode {
    /// Local programs of the owner need no token.
    Single,
    /// Every request needs a token or a session.
    Users,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

keywords!(AuthMode { Single = "single", Users = "users" });
keywords!(Presence { None = "none", Pin = "pin", Totp = "totp", Passkey = "passkey" });
keywords!(LogFormat { Text = "text", Json = "json" });
keywords!(Durability { Full = "full", Process = "process" });
keywords!(ToolNames { Underscore = "underscore", Dotted = "dotted", Both = "both" });

/// Address of the HTTP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// HTTP is not served.
    Off,
    At(SocketAddr),
}

impl Default for Listen {
    fn default() -> Self {
        Self::At((Ipv4Addr::LOCALHOST, 8462).into())
    }
}

impl Setting for Listen {
    fn expected() -> String {
        "an address such as `127.0.0.1:8462` (port 0 selects a free port), or `off`".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        match text.trim() {
            "off" => Ok(Self::Off),
            text => text
                .parse()
                .map(Self::At)
                .map_err(|_| SettingError::invalid_text::<Self>(text, "an address with a port")),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Off => string("off"),
            Self::At(address) => string(address),
        })
    }
}

/// A file or a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    File(PathBuf),
    Url(Url),
}

/// The path of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePath(pub PathBuf);

impl Setting for FilePath {
    fn expected() -> String {
        "the path of a file".to_owned()
    }

    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        match text.trim() {
            "" => Err(SettingError::new("the path is empty")),
            path => Ok(Self(context.folder.join(path))),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(string(self.0.display()))
    }
}

impl Setting for Location {
    fn expected() -> String {
        "the path of a file, or a URL".to_owned()
    }

    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        match text.trim() {
            "" => Err(SettingError::new("the path is empty")),
            url if url.contains("://") => Url::from_text(url, context).map(Self::Url),
            path => Ok(Self::File(context.folder.join(path))),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        match self {
            Self::File(path) => Some(string(path.display())),
            Self::Url(url) => url.to_toml(),
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub u64);

/// Units of size, the largest first. They are case-insensitive.
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
    fn expected() -> String {
        "a size such as `512KB`, `10MB`, `1GiB`".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        let text = text.trim();
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
        let bytes = unit.and_then(|(_, bytes)| digits.parse::<u64>().ok()?.checked_mul(*bytes));
        match bytes {
            Some(bytes @ 1..) => Ok(Self(bytes)),
            _ => Err(SettingError::invalid_text::<Self>(text, "a size")),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(string(self))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)).unwrap_or(&("B", 1));
        write!(out, "{}{}", self.0 / unit.1, unit.0)
    }
}

/// A maximum number; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount(pub u32);

impl Amount {
    pub(crate) fn limit(self) -> Option<u32> {
        Some(self.0).filter(|limit| *limit > 0)
    }
}

impl Setting for Amount {
    fn expected() -> String {
        format!("an integer from 0 (no limit) to {}", u32::MAX)
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        let text = text.trim();
        text.parse().map(Self).map_err(|_| SettingError::new(format!("`{text}` is not {}", Self::expected())))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &ReadContext) -> Result<Self, SettingError> {
        match value.get_ref() {
            DeValue::Integer(number) => {
                u32::from_str_radix(number.as_str(), number.radix()).map(Self).map_err(|_| {
                    SettingError::new(format!("`{number}` is not {}", Self::expected())).at(value.span())
                })
            }
            _ => Err(SettingError::wrong_type::<Self>(value)),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.0.into())
    }
}

/// A maximum number of bytes; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeLimit(pub u64);

impl SizeLimit {
    pub(crate) fn limit(self) -> Option<u64> {
        Some(self.0).filter(|limit| *limit > 0)
    }
}

impl Setting for SizeLimit {
    fn expected() -> String {
        format!("{}, or `0` for no limit", Size::expected())
    }

    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        match text.trim() {
            "0" => Ok(Self(0)),
            text => Size::from_text(text, context)
                .map(|Size(bytes)| Self(bytes))
                .map_err(|_| SettingError::invalid_text::<Self>(text, "a size")),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        if self.0 == 0 { Some(string("0")) } else { Size(self.0).to_toml() }
    }
}

/// A rule that exposes tools, as text and parsed.
#[derive(Debug, Clone)]
pub(crate) struct Exposed {
    text: String,
    pub expose: Expose,
}

impl Setting for Exposed {
    fn expected() -> String {
        "a name or pattern such as `git__*`, or with new names `read_*=files__read_*`".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        let invalid =
            |reason: String| SettingError::new(format!("`{text}` is not a tool pattern")).hint(reason);
        match text {
            "" => Err(SettingError::invalid_text::<Self>(text, "a name")),
            _ => Ok(Self { text: text.to_owned(), expose: text.parse().map_err(invalid)? }),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(string(&self.text))
    }
}
