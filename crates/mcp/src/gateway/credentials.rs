//! The entry of a server with its variables expanded, and which of its values are credentials.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::child::Program;
use super::link::Link;
use crate::config::{Text, Transport, Variables};
use crate::redact;

/// Parts of names of environment variables and headers whose values are credentials.
const CREDENTIALS: &[&str] =
    &["key", "token", "secret", "password", "passwd", "passphrase", "credential", "auth", "cookie", "_pat"];

/// The transport of a server with all variables expanded.
pub(super) enum Expanded {
    Stdio(Program),
    Http { url: String, headers: HeaderMap },
}

impl Link {
    /// Expands the entry on a thread that may block: a variable can come from a file or a command.
    pub(super) async fn expanded(&self) -> Result<Expanded, String> {
        let (variables, transport) = (self.variables.clone(), self.entry.transport.clone());
        let server = self.server.clone();
        let expanding = move || Expansion { variables: &*variables, server: &server }.transport(&transport);
        let expanded = tokio::task::spawn_blocking(expanding).await;
        expanded.map_err(|_| "its variables could not be read".to_owned())?
    }
}

struct Expansion<'e> {
    variables: &'e (dyn Variables + Send + Sync),
    server: &'e str,
}

impl Expansion<'_> {
    fn transport(&self, transport: &Transport) -> Result<Expanded, String> {
        match transport {
            Transport::Stdio { command, args, env, cwd } => Ok(Expanded::Stdio(Program {
                command: self.text(command)?,
                args: args.iter().map(|arg| self.text(arg)).collect::<Result<_, _>>()?,
                env: env
                    .iter()
                    .map(|(key, text)| Ok((key.clone(), self.named(key, text)?)))
                    .collect::<Result<_, String>>()?,
                cwd: cwd.as_ref().map(|cwd| self.text(cwd)).transpose()?,
            })),
            Transport::Http { url, headers } => {
                Ok(Expanded::Http { url: self.text(url)?, headers: self.headers(headers)? })
            }
        }
    }

    fn headers(&self, headers: &BTreeMap<String, Text>) -> Result<HeaderMap, String> {
        let mut custom = HeaderMap::new();
        for (name, text) in headers {
            let bad = |_| format!("the value of the header `{name}` is invalid");
            let mut value = HeaderValue::from_str(&self.named(name, text)?).map_err(bad)?;
            value.set_sensitive(true);
            let key = name.parse::<HeaderName>().map_err(|_| format!("invalid header name `{name}`"))?;
            custom.insert(key, value);
        }
        Ok(custom)
    }

    /// The value of an environment variable or header. It is redacted from now on if its name says that it is a credential.
    fn named(&self, name: &str, text: &Text) -> Result<String, String> {
        let value = self.text(text)?;
        if is_credential(name) {
            // Servers repeat the token without its scheme.
            let token =
                value.split_once(' ').filter(|(scheme, _)| scheme.len() <= 10).map(|(_, token)| token);
            redact::learn(&format!("{} of {}", name, self.server), token.unwrap_or(&value).trim());
        }
        Ok(value)
    }

    fn text(&self, text: &Text) -> Result<String, String> {
        text.expand(self.variables).map_err(|missing| not_set(&missing))
    }
}

fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    CREDENTIALS.iter().any(|part| name.contains(part))
}

fn not_set(missing: &BTreeSet<String>) -> String {
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [one] => format!("the variable {one} is not set"),
        _ => format!("the variables {} are not set", names.join(", ")),
    }
}
