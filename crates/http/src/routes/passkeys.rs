//! Passkeys: registration, and challenges with which a passkey confirms one request.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::App;
use crate::accounts::StoredPasskey;
use crate::api::{Api, delete, get, post};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::request_binding::RequestBinding;
use crate::timestamp;

const TAG: &str = "presence";

pub(super) fn routes(api: Api) -> Api {
    let proof = "A caller who has a factor already proves it in `X-Steprail-Presence`.";
    let header = "Proof of presence: `pin …`, `totp …` or `passkey …`.";
    api.route(
        TAG,
        get("/api/v1/me/passkeys", "List the passkeys of the caller")
            .returns::<Page<PasskeyInfo>>(200, "Oldest first."),
        list,
    )
    .route(
        TAG,
        post("/api/v1/me/passkeys/begin", "Begin to register a passkey")
            .details(proof)
            .header("X-Steprail-Presence", header)
            .returns::<CreationOptions>(200, "Options for `navigator.credentials.create`, valid for five minutes."),
        begin,
    )
    .route(
        TAG,
        post("/api/v1/me/passkeys/finish", "Register the passkey that the authenticator created")
            .body::<NewPasskey>()
            .returns::<PasskeyInfo>(201, "The passkey is registered."),
        finish,
    )
    .route(
        TAG,
        delete("/api/v1/me/passkeys/{id}", "Remove a passkey of the caller")
            .details("Needs a passkey as proof. The only factor cannot be removed.")
            .header("X-Steprail-Presence", header)
            .returns_empty(204, "The passkey is removed."),
        remove,
    )
    .route(
        TAG,
        post("/api/v1/me/presence/challenge", "Create a challenge for a passkey")
            .details(
                "The assertion confirms exactly the request that is stated here. It is sent with that request as \
                 `X-Steprail-Presence: passkey …`: the JSON of the assertion (`toJSON()`) in base64url. A challenge works once, \
                 within two minutes. A decision over the WebSocket is stated as the request over REST.",
            )
            .body::<ChallengeRequest>()
            .returns::<Challenge>(200, "Options for `navigator.credentials.get`."),
        challenge,
    )
}

/// A passkey of the caller.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PasskeyInfo {
    /// Id of the passkey.
    pub id: String,
    /// The name that the user gave it.
    pub name: String,
    /// When it was registered.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
}

impl From<StoredPasskey> for PasskeyInfo {
    fn from(stored: StoredPasskey) -> Self {
        Self { id: stored.id, name: stored.name, created_at: timestamp::format(stored.created_at) }
    }
}

/// Options for `navigator.credentials.create`. Binary values are in base64url.
#[derive(Serialize, JsonSchema)]
struct CreationOptions {
    /// `publicKey` of the options.
    #[serde(rename = "publicKey")]
    public_key: Value,
}

/// A passkey to register.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewPasskey {
    /// A name, such as that of the device.
    #[schemars(length(min = 1, max = 64))]
    name: String,
    /// The JSON of the credential (`toJSON()`).
    credential: Value,
}

/// The request that a passkey confirms.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChallengeRequest {
    /// The method.
    #[schemars(regex(pattern = "^(POST|PUT|DELETE)$"))]
    method: String,
    /// The path with its query.
    #[schemars(length(max = 2000))]
    path: String,
    /// The body: JSON, a text for other content types, null without a body.
    #[serde(default)]
    body: Value,
}

/// A challenge for a passkey.
#[derive(Serialize, JsonSchema)]
struct Challenge {
    /// `publicKey` of the options. Binary values are in base64url.
    #[serde(rename = "publicKey")]
    public_key: Value,
    /// When it expires.
    #[schemars(extend("format" = "date-time"))]
    expires_at: String,
}

async fn list(State(app): State<App>, Caller(user): Caller) -> Json<Page<PasskeyInfo>> {
    let keys = app.accounts.passkeys_of(&user.principal().id);
    Json(Page::single(keys.into_iter().map(PasskeyInfo::from).collect()))
}

async fn begin(State(app): State<App>, Caller(user): Caller) -> Result<Json<CreationOptions>, Problem> {
    let mut options = app.accounts.begin_passkey(&user)?;
    Ok(Json(CreationOptions { public_key: options["publicKey"].take() }))
}

async fn finish(
    State(app): State<App>,
    Caller(user): Caller,
    Body(NewPasskey { name, credential }): Body<NewPasskey>,
) -> Result<(StatusCode, Json<PasskeyInfo>), Problem> {
    let passkey = app.accounts.finish_passkey(&user, &name, credential).await?;
    Ok((StatusCode::CREATED, Json(passkey.into())))
}

async fn remove(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
) -> Result<StatusCode, Problem> {
    app.accounts.remove_passkey(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn challenge(
    State(app): State<App>,
    Caller(user): Caller,
    Body(ChallengeRequest { method, path, body }): Body<ChallengeRequest>,
) -> Result<Json<Challenge>, Problem> {
    let binding = RequestBinding::new(&method, &path, &body);
    let (mut options, expires_at) = app.accounts.passkey_challenge(&user, binding)?;
    let public_key = options["publicKey"].take();
    Ok(Json(Challenge { public_key, expires_at: timestamp::format(expires_at) }))
}
