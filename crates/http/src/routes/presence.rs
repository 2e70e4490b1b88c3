//! Presence: the PIN, the authenticator and the passkeys with which users prove that they are present when they decide.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_core::presence::Presence;

use crate::App;
use crate::accounts::TotpEnrollment;
use crate::api::{Api, delete, get, post, put};
use crate::extract::{Body, Caller, NameParam};
use crate::problem::Problem;

const TAG: &str = "presence";

pub(super) fn routes(api: Api) -> Api {
    let proof = "A caller who has a factor already proves it in `X-Steprail-Presence`.";
    let header = "Proof of presence: `pin …`, `totp …` or `passkey …`.";
    api.route(
        TAG,
        get("/api/v1/presence", "Get the factors of the caller")
            .returns::<PresenceStatus>(200, "Which factors are set, and which one decisions need."),
        status,
    )
    .route(
        TAG,
        put("/api/v1/presence/pin", "Set the PIN of the caller")
            .details(proof)
            .header("X-Steprail-Presence", header)
            .body::<PinRequest>()
            .returns_empty(204, "The PIN is set."),
        set_pin,
    )
    .route(
        TAG,
        post("/api/v1/presence/totp", "Begin to enroll an authenticator")
            .details(proof)
            .header("X-Steprail-Presence", header)
            .returns::<NewAuthenticator>(200, "The secret, once. It counts after it is confirmed."),
        begin_totp,
    )
    .route(
        TAG,
        post("/api/v1/presence/totp/confirm", "Enroll an authenticator with its first code")
            .details(proof)
            .header("X-Steprail-Presence", header)
            .body::<TotpRequest>()
            .returns_empty(204, "The authenticator is enrolled."),
        confirm_totp,
    )
    .route(
        TAG,
        delete("/api/v1/users/{id}/presence", "Remove the factors of a user who lost them")
            .details("Needs the right `manage`, in person.")
            .returns_empty(204, "The factors are removed."),
        reset,
    )
}

/// The factors of the caller.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PresenceStatus {
    /// The factor that every decision and account change needs. Rules of the policy may need a stronger one.
    pub required: Presence,
    /// Whether the caller has a PIN.
    pub pin: bool,
    /// Whether the caller has an authenticator.
    pub totp: bool,
    /// The number of passkeys of the caller.
    #[serde(default)]
    pub passkeys: usize,
    /// Address of the page that registers and uses passkeys, where they work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passkey_page: Option<String>,
}

/// A PIN to set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PinRequest {
    /// The PIN: printable ASCII characters without spaces.
    #[schemars(length(min = 6, max = 64))]
    pin: String,
}

/// A code of an authenticator.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TotpRequest {
    /// The current code.
    #[schemars(regex(pattern = "^[0-9]{6}$"))]
    code: String,
}

/// An authenticator that is not confirmed yet.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct NewAuthenticator {
    /// The secret in base32.
    pub secret: String,
    /// The URI that authenticator apps read.
    pub uri: String,
}

async fn status(State(app): State<App>, Caller(user): Caller) -> Json<PresenceStatus> {
    let factors = app.accounts.presence_of(&user.principal().id);
    Json(PresenceStatus {
        required: app.engine.presence(),
        pin: factors.has(Presence::Pin),
        totp: factors.has(Presence::Totp),
        passkeys: app.accounts.passkeys_of(&user.principal().id).len(),
        passkey_page: app.accounts.passkey_origin().ok().map(|origin| format!("{origin}/passkeys")),
    })
}

async fn set_pin(
    State(app): State<App>,
    Caller(user): Caller,
    Body(PinRequest { pin }): Body<PinRequest>,
) -> Result<StatusCode, Problem> {
    app.accounts.set_pin(&user, pin).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn begin_totp(State(app): State<App>, Caller(user): Caller) -> Result<Json<NewAuthenticator>, Problem> {
    let TotpEnrollment { secret, uri } = app.accounts.begin_totp(&user)?;
    Ok(Json(NewAuthenticator { secret, uri }))
}

async fn confirm_totp(
    State(app): State<App>,
    Caller(user): Caller,
    Body(TotpRequest { code }): Body<TotpRequest>,
) -> Result<StatusCode, Problem> {
    app.accounts.confirm_totp(&user, &code).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn reset(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
) -> Result<StatusCode, Problem> {
    app.accounts.reset_presence(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
