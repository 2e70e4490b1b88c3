//! The binding of a passkey to one request: a hash of its method, path and body. A person confirms exactly what is done.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use steprail_core::plan::Hash;

use crate::App;
use crate::extract::PRESENCE_HEADER;
use crate::problem::Problem;

/// What a passkey confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestBinding(Hash);

impl RequestBinding {
    /// The binding of a request. The path includes the query. The order of the keys of the body does not matter.
    pub(crate) fn new(method: &str, path: &str, body: &Value) -> Self {
        // Neither a method nor a path contains a line break.
        let mut text = format!("{method}\n{path}\n");
        write_canonical(body, &mut text);
        Self(Hash::of(text.as_bytes()))
    }
}

/// Writes JSON with sorted keys. Parsed values have a bounded depth.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in fields {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Adds the binding to requests that carry an assertion of a passkey. Their body is read before the handler reads it.
pub(crate) async fn bind(State(app): State<App>, request: Request, next: Next) -> Response {
    let proof = request.headers().get(PRESENCE_HEADER).and_then(|proof| proof.to_str().ok());
    if !proof.is_some_and(|proof| proof.trim_start().starts_with("passkey ")) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, app.max_body_bytes).await else {
        return Problem::bad("the body is too large, or the connection was lost").into_response();
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.extensions.insert(RequestBinding::new(parts.method.as_str(), path, &value_of(&bytes)));
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}

/// A body as JSON: as it is, as a text if it is none, null if it is empty.
fn value_of(bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{RequestBinding, value_of};

    #[test]
    fn binding_covers_method_path_and_every_value() {
        let of = |method: &str, path: &str, body: &str| {
            RequestBinding::new(method, path, &value_of(body.as_bytes()))
        };
        let bound = of("POST", "/a", r#"{"x":1,"y":[1,{"z":"2"}]}"#);
        assert_eq!(
            bound,
            of("POST", "/a", r#"{ "y": [1, {"z": "2"}], "x": 1 }"#),
            "spelling does not matter"
        );
        for other in [
            of("PUT", "/a", r#"{"x":1,"y":[1,{"z":"2"}]}"#),
            of("POST", "/a?b", r#"{"x":1,"y":[1,{"z":"2"}]}"#),
            of("POST", "/a", r#"{"x":2,"y":[1,{"z":"2"}]}"#),
            of("POST", "/a", r#"{"x":1,"y":[1,{"z":2}]}"#),
            of("POST", "/a", r#"{"x":1,"y":[[1],{"z":"2"}]}"#),
            of("POST", "/a", "x: 1"),
            of("POST", "/a", ""),
        ] {
            assert_ne!(bound, other);
        }
        assert_eq!(of("POST", "/a", "x: 1"), RequestBinding::new("POST", "/a", &json!("x: 1")), "a text");
    }
}
