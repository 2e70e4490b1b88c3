//! An authorization server and the MCP server that it protects, on one loopback port.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// Settings of the server. Tests change them at run time.
pub(crate) struct Behaviour {
    /// Path of the metadata of the authorization server.
    pub metadata_at: &'static str,
    /// Whether protected-resource metadata is published.
    pub resource_metadata: bool,
    /// The issuer in the resource metadata, if it is another server.
    pub issuer: Option<String>,
    /// Fields that replace those of the metadata; null removes one.
    pub metadata: Value,
    /// The `iss` parameter of redirects, if it is not the issuer.
    pub iss: Option<String>,
    /// The secret that registration issues; token requests must then carry it.
    pub client_secret: Option<&'static str>,
    /// Lifetime of access tokens, in seconds.
    pub expires_in: u64,
    /// Status and `error` of every refresh.
    pub reject_refresh: Option<(StatusCode, &'static str)>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            metadata_at: "/.well-known/oauth-authorization-server",
            resource_metadata: true,
            issuer: None,
            metadata: json!({}),
            iss: None,
            client_secret: None,
            expires_in: 3600,
            reject_refresh: None,
        }
    }
}

/// Parameters of a request.
pub(crate) type Form = BTreeMap<String, String>;

#[derive(Default)]
struct AuthorityState {
    behaviour: Behaviour,
    requests: Vec<(&'static str, Form)>,
    /// Issued codes with their authorization requests.
    codes: BTreeMap<String, Form>,
    /// The currently valid refresh token.
    refresh: String,
    count: u32,
}

/// A running server.
#[derive(Clone)]
pub(crate) struct Authority {
    pub origin: String,
    state: Arc<Mutex<AuthorityState>>,
    /// Token requests wait for a permit.
    pub gate: Arc<Semaphore>,
}

impl Authority {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(AuthorityState { behaviour, ..AuthorityState::default() }));
        let authority = Self { origin, state, gate: Arc::new(Semaphore::new(1_000)) };
        let router = Router::new()
            .route("/mcp", get(resource))
            .route("/register", post(register))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .fallback(metadata)
            .with_state(authority.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        authority
    }

    /// The URL of the MCP server.
    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    fn state(&self) -> MutexGuard<'_, AuthorityState> {
        self.state.lock().expect("no panic")
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.state().behaviour);
    }

    /// The requests that reached an endpoint.
    pub(crate) fn requests(&self, endpoint: &str) -> Vec<Form> {
        let state = self.state();
        state.requests.iter().filter(|(at, _)| *at == endpoint).map(|(_, form)| form.clone()).collect()
    }

    /// A challenge as the MCP server would send it.
    pub(crate) fn challenge(&self, rest: &str) -> String {
        format!("Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"{rest}", self.origin)
    }
}

async fn resource(State(authority): State<Authority>) -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, authority.challenge(""))]).into_response()
}

async fn metadata(State(authority): State<Authority>, request: axum::extract::Request) -> Response {
    let (state, origin) = (authority.state(), &authority.origin);
    let path = request.uri().path();
    if path == "/.well-known/oauth-protected-resource/mcp" && state.behaviour.resource_metadata {
        let issuer = state.behaviour.issuer.as_ref().unwrap_or(origin);
        let document = json!({
            "resource": authority.url(), "authorization_servers": [issuer], "scopes_supported": ["read"],
        });
        return axum::Json(document).into_response();
    }
    if path != state.behaviour.metadata_at {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut document = json!({
        "issuer": origin,
        "authorization_endpoint": format!("{origin}/authorize"),
        "token_endpoint": format!("{origin}/token"),
        "registration_endpoint": format!("{origin}/register"),
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
    });
    for (key, value) in state.behaviour.metadata.as_object().expect("a map") {
        document[key] = value.clone();
    }
    document.as_object_mut().expect("a map").retain(|_, value| !value.is_null());
    axum::Json(document).into_response()
}

async fn register(State(authority): State<Authority>, body: String) -> Response {
    let mut state = authority.state();
    state.requests.push(("register", [("body".to_owned(), body.clone())].into()));
    let request: Value = serde_json::from_str(&body).expect("JSON");
    let mut client = json!({ "client_id": "registered", "redirect_uris": request["redirect_uris"] });
    if let Some(secret) = state.behaviour.client_secret {
        client["client_secret"] = secret.into();
    }
    (StatusCode::CREATED, axum::Json(client)).into_response()
}

/// Grants every request without a prompt.
async fn authorize(State(authority): State<Authority>, RawQuery(query): RawQuery) -> Redirect {
    let form = form(&query.unwrap_or_default());
    let mut state = authority.state();
    state.count += 1;
    let code = format!("code-{}", state.count);
    let iss = state.behaviour.iss.clone().unwrap_or_else(|| authority.origin.clone());
    let to = format!("{}?code={code}&state={}&iss={iss}", form["redirect_uri"], form["state"]);
    state.codes.insert(code, form.clone());
    state.requests.push(("authorize", form));
    Redirect::to(&to)
}

async fn token(State(authority): State<Authority>, headers: HeaderMap, body: String) -> Response {
    let mut form = form(&body);
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        form.insert("authorization".to_owned(), value.to_str().expect("text").to_owned());
    }
    authority.state().requests.push(("token", form.clone()));
    let _permit = authority.gate.acquire().await.expect("open");
    let mut state = authority.state();
    if let Err((status, error)) = state.check(&form) {
        return (status, axum::Json(json!({ "error": error }))).into_response();
    }
    state.count += 1;
    let count = state.count;
    let mut issued = json!({
        "access_token": format!("access-{count}"), "token_type": "Bearer", "expires_in": state.behaviour.expires_in,
    });
    if form["grant_type"] != "client_credentials" {
        state.refresh = format!("refresh-{count}");
        issued["refresh_token"] = state.refresh.clone().into();
    }
    axum::Json(issued).into_response()
}

impl AuthorityState {
    /// Checks a token request.
    fn check(&mut self, form: &Form) -> Result<(), (StatusCode, &'static str)> {
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let bad = |error| Err((StatusCode::BAD_REQUEST, error));
        if self.behaviour.client_secret.is_some() && !field("authorization").starts_with("Basic ") {
            return bad("invalid_client");
        }
        match field("grant_type") {
            "authorization_code" => {
                let authorized =
                    self.codes.remove(field("code")).ok_or((StatusCode::BAD_REQUEST, "invalid_grant"))?;
                let is_same = |name: &str| authorized.get(name).map(String::as_str) == Some(field(name));
                let is_proven = authorized["code_challenge"] == challenge_of(field("code_verifier"));
                let is_good = is_same("redirect_uri") && is_same("resource") && is_proven;
                if is_good { Ok(()) } else { bad("invalid_grant") }
            }
            "refresh_token" => match self.behaviour.reject_refresh {
                Some((status, error)) => Err((status, error)),
                None if field("refresh_token") == self.refresh => Ok(()),
                None => bad("invalid_grant"),
            },
            "client_credentials" if field("client_secret") == "s3cret" => Ok(()),
            _ => bad("invalid_client"),
        }
    }
}

/// The parameters of a query or a form.
pub(crate) fn form(query: &str) -> Form {
    let url = reqwest::Url::parse(&format!("http://localhost/?{query}")).expect("a query");
    url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
}

/// RFC 7636: the S256 challenge of a verifier.
fn challenge_of(verifier: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = Sha256::digest(verifier.as_bytes()).iter().fold(String::new(), |mut bits, byte| {
        write!(bits, "{byte:08b}").expect("text");
        bits
    });
    let digit = |chunk: &[u8]| {
        let bits = format!("{:0<6}", std::str::from_utf8(chunk).expect("digits"));
        char::from(DIGITS[usize::from_str_radix(&bits, 2).expect("a number")])
    };
    bits.as_bytes().chunks(6).map(digit).collect()
}
