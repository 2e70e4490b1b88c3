//! Extractors of handlers, whose rejections are problem details.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use steprail_engine::{Principal, RunId, User};

use super::App;
use super::accounts::PresenceError;
use super::problem::Problem;
use super::request_binding::RequestBinding;

/// The header that proves that the user is present: `pin …`, `totp …` or `passkey …`.
pub(crate) const PRESENCE_HEADER: &str = "x-steprail-presence";

/// The authenticated caller, who may have proved that they are present.
pub(crate) struct Caller(pub User);

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let principal = parts.extensions.get::<Principal>().cloned();
        let unauthenticated =
            || Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "the request is not authenticated");
        let mut principal = principal.ok_or_else(unauthenticated)?;
        let binding = parts.extensions.get::<RequestBinding>().copied();
        prove_presence(app, &parts.headers, binding.as_ref(), &mut principal).await?;
        Ok(Self(app.engine.as_user(principal)))
    }
}

/// Verifies the proof of presence of a request, if it has one. It counts for this request only.
async fn prove_presence(
    app: &App,
    headers: &HeaderMap,
    binding: Option<&RequestBinding>,
    principal: &mut Principal,
) -> Result<(), Problem> {
    let Some(proof) = headers.get(PRESENCE_HEADER) else { return Ok(()) };
    // An agent could guess, and lock its user out.
    if principal.agent {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "denied",
            "an agent cannot prove that its user is present",
        ));
    }
    let proof = proof.to_str().map_err(|_| PresenceError::Malformed)?;
    principal.provenance.presence = app.accounts.verify_presence(principal, proof, binding).await?;
    Ok(())
}

/// A caller in person: neither an agent nor a scoped token. Only they use secrets and logins.
pub(crate) struct InPerson(pub User);

impl FromRequestParts<App> for InPerson {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Caller(user) = Caller::from_request_parts(parts, app).await?;
        if user.principal().agent || user.principal().scope.is_some() {
            let detail = "agents and scoped tokens cannot use secrets or log in at servers";
            let problem = Problem::new(StatusCode::FORBIDDEN, "denied", detail);
            return Err(problem.hint("use the terminal, or a token created with `--person`"));
        }
        Ok(Self(user))
    }
}

/// Query parameters.
pub(crate) struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let read = Query::<T>::try_from_uri(&parts.uri);
        read.map(|Query(args)| Self(args)).map_err(|rejection| Problem::bad(rejection.body_text()))
    }
}

/// The run in the path.
pub(crate) struct RunParam(pub RunId);

impl<S: Send + Sync> FromRequestParts<S> for RunParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let NameParam(text) = NameParam::from_request_parts(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::not_found(format!("there is no run `{text}`")))
    }
}

/// The last path parameter, as text.
pub(crate) struct NameParam(pub String);

impl<S: Send + Sync> FromRequestParts<S> for NameParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|rejection| Problem::not_found(rejection.body_text()))
    }
}

/// A JSON body.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        read_json(request, state, b"").await.map(Self)
    }
}

/// An optional JSON body; `{}` by default.
pub(crate) struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        read_json(request, state, b"{}").await.map(Self)
    }
}

async fn read_json<T: DeserializeOwned, S: Send + Sync>(
    request: Request,
    state: &S,
    default: &[u8],
) -> Result<T, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_none_or(|kind| media_type(kind) == "application/json");
    if !is_json {
        let problem = Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body must be JSON",
        );
        return Err(problem.hint("set `Content-Type: application/json`"));
    }
    let bytes = read(request, state).await?;
    let text = if bytes.is_empty() { default } else { &*bytes };
    serde_json::from_slice(text).map_err(|error| Problem::bad(format!("invalid body: {error}")))
}

/// The body of a request that contains a definition: JSON, or the definition as text.
pub(crate) struct DefinitionBody {
    pub content: String,
    pub is_json: bool,
}

impl<S: Send + Sync> FromRequest<S> for DefinitionBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.map(|kind| media_type(kind).to_owned()).unwrap_or_default();
        let is_json = match &*kind {
            "application/json" | "" => true,
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/plain" => false,
            other => {
                let detail = format!("a definition cannot have the content type `{other}`");
                let problem =
                    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail);
                return Err(problem.hint("send `application/json` or `application/yaml`"));
            }
        };
        let bytes = read(request, state).await?;
        let text = String::from_utf8(bytes.into());
        text.map(|content| Self { content, is_json }).map_err(|_| Problem::bad("the body is not UTF-8"))
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let bytes = Bytes::from_request(request, state).await;
    bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", rejection.body_text())
        }
        _ => Problem::bad(rejection.body_text()),
    })
}

fn media_type(kind: &str) -> &str {
    kind.split(';').next().unwrap_or_default().trim()
}
