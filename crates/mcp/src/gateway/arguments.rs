//! Secrets in arguments: resolves the references of a call right before it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use steprail_core::expr::{self, SecretText};
use steprail_core::run::Payload;
use steprail_engine::{Failure, FailureKind, ToolCall};

use crate::limits::SECRET_MIN_BYTES;
use crate::names::alias;
use crate::redact;
use crate::secrets::{SecretScope, SecretStore};

/// Replaces the references to secrets in the arguments of a call. The values are not stored anywhere else.
pub(super) async fn resolve(
    store: Option<Arc<dyn SecretStore>>,
    server: &str,
    call: &mut ToolCall,
) -> Result<(), Failure> {
    if call.secrets.is_empty() {
        return Ok(());
    }
    let mut args = call.args.value().clone();
    let texts = referring(&mut args, &call.secrets)?;
    if texts.is_empty() {
        return Ok(());
    }
    let Some(store) = store else { return Err(failure("there is no secret store".to_owned())) };
    let names: BTreeSet<Box<str>> = texts.iter().flat_map(|text| text.names.iter().cloned()).collect();
    let (server, reading) = (server.to_owned(), move |server: &str| read(&*store, server, names));
    // A source of a secret can be a file or a command.
    let values = tokio::task::spawn_blocking(move || reading(&server)).await;
    let values = values.map_err(|_| failure("the secrets could not be read".to_owned()))??;
    for text in &texts {
        if let Some(Value::String(at)) = args.pointer_mut(&text.pointer) {
            *at = replaced(at, &values);
        }
    }
    call.args = Payload::new(args);
    Ok(())
}

/// The texts that still refer to secrets as the definition does. A human may have edited the arguments. Fails if a value of
/// the run put another reference into one of them: the references could not be told apart.
fn referring<'s>(args: &mut Value, secrets: &'s [SecretText]) -> Result<Vec<&'s SecretText>, Failure> {
    let mut referring = Vec::new();
    for text in secrets {
        let Some(Value::String(found)) = args.pointer(&text.pointer) else { continue };
        let names: Vec<&str> = expr::secret_references(found).map(|(_, name)| name).collect();
        if names.is_empty() {
            continue;
        }
        if !names.iter().copied().eq(text.names.iter().map(|name| &**name)) {
            let message = format!(
                "the argument at `{}` contains `${{secret:…}}` that the definition does not; remove it from the value that is inserted there",
                text.pointer
            );
            return Err(failure(message));
        }
        referring.push(text);
    }
    Ok(referring)
}

fn read(
    store: &dyn SecretStore,
    server: &str,
    names: BTreeSet<Box<str>>,
) -> Result<BTreeMap<Box<str>, String>, Failure> {
    let mut values = BTreeMap::new();
    for name in names {
        if let Some(problem) = binding_problem(store, &name, server) {
            return Err(Failure::new(FailureKind::Permission, problem).code("secret"));
        }
        let value = store.get(&SecretScope::Shared, &name).map_err(|error| failure(error.to_string()))?;
        let value = value.ok_or_else(|| failure(unknown(&name)))?;
        if value.expose().len() < SECRET_MIN_BYTES {
            let message =
                format!("the secret `{name}` has fewer than {SECRET_MIN_BYTES} bytes and cannot be redacted");
            return Err(failure(message));
        }
        redact::learn(&name, value.expose());
        values.insert(name, value.expose().to_owned());
    }
    Ok(values)
}

/// Why a secret may not be sent to a server in arguments.
pub(crate) fn binding_problem(store: &dyn SecretStore, name: &str, server: &str) -> Option<String> {
    let receivers = store.receivers(name);
    let is_allowed = receivers.iter().any(|receiver| receiver == server || alias(receiver) == alias(server));
    (!is_allowed).then(|| {
        format!(
            "the secret `{name}` may not be sent to `{server}` in arguments; an operator can add the server to `servers` of [store.secrets.{name}]"
        )
    })
}

/// The message for a secret that does not exist.
pub(crate) fn unknown(name: &str) -> String {
    format!(
        "there is no secret `{name}`; set it with `steprail secret set --shared {name}`, or configure [store.secrets.{name}]"
    )
}

fn replaced(text: &str, values: &BTreeMap<Box<str>, String>) -> String {
    let (mut out, mut from) = (String::new(), 0);
    for (at, name) in expr::secret_references(text) {
        out.push_str(&text[from..at.start]);
        out.push_str(values.get(name).map(String::as_str).unwrap_or_default());
        from = at.end;
    }
    out.push_str(&text[from..]);
    out
}

fn failure(message: String) -> Failure {
    Failure::new(FailureKind::Validation, message).code("secret")
}
