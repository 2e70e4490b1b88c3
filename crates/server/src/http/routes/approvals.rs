//! Approvals: open questions, and a human's answer to one.

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_core::plan::Hash;
use steprail_engine::{RunId, User};

use crate::http::api::{Api, get, post};
use crate::http::extract::{Asker, Body, OfRun};
use crate::http::problem::Problem;
use crate::view::{Approval, Page};

const TAG: &str = "approvals";
/// Open questions that are shown at once: the oldest.
const SHOWN: usize = 100;

pub(super) fn routes(api: Api) -> Api {
    let how = "The decision counts for what `digest` stands for and nothing else. One decision wins; every later one is told \
               who decided.";
    api.route(
        TAG,
        get("/api/v1/approvals", "Open questions").gives::<Page<Approval>>(200, "The oldest first."),
        list,
    )
    .route(
        TAG,
        post("/api/v1/runs/{run_id}/approve", "Say yes at a gate")
            .more(how)
            .body::<Decision>()
            .gives::<Decided>(200, "It was decided."),
        approve,
    )
    .route(
        TAG,
        post("/api/v1/runs/{run_id}/deny", "Say no at a gate")
            .more(how)
            .body::<Decision>()
            .gives::<Decided>(200, "It was decided."),
        deny,
    )
}

/// A decision at a gate.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decision {
    /// The step that waits, by its path.
    step: String,
    /// What was shown: `digest` of the question.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    digest: String,
    /// Why.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
    /// What the step's tool wants to know, if it asks something.
    answer: Option<Map<String, Value>>,
}

/// What was decided.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Decided {
    #[schemars(with = "String", extend("format" = "uuid"))]
    run_id: RunId,
    step: String,
    /// `approved` or `denied`.
    decision: &'static str,
    /// By whom.
    by: String,
}

async fn list(Asker(user): Asker) -> Result<Json<Page<Approval>>, Problem> {
    open(&user).await.map(Json)
}

/// Open questions, with whether whoever asks may answer them.
pub(crate) async fn open(user: &User) -> Result<Page<Approval>, Problem> {
    let mut items = Vec::new();
    for open in user.approvals(SHOWN).await? {
        let may_decide = Some(user.may_decide(open.run_id, &open.path).await);
        items.push(Approval { may_decide, ..open.into() });
    }
    Ok(Page { items, next: None })
}

async fn approve(
    Asker(user): Asker,
    OfRun(run): OfRun,
    Body(decision): Body<Decision>,
) -> Result<Json<Decided>, Problem> {
    decide(&user, run, true, decision).await.map(Json)
}

async fn deny(
    Asker(user): Asker,
    OfRun(run): OfRun,
    Body(decision): Body<Decision>,
) -> Result<Json<Decided>, Problem> {
    decide(&user, run, false, decision).await.map(Json)
}

/// Decides.
pub(crate) async fn decide(
    user: &User,
    run: RunId,
    approved: bool,
    decision: Decision,
) -> Result<Decided, Problem> {
    let Decision { step, digest, reason, answer } = decision;
    let digest = Hash::from_hex(&digest).ok_or_else(|| Problem::bad("the digest is not one of ours"))?;
    let was_open = user.may_decide(run, &step).await;
    match answer {
        Some(answer) if approved => user.answer(run, &step, Value::Object(answer), Some(digest)).await?,
        _ => user.decide(run, &step, approved, reason, Some(digest)).await?,
    }
    let decision = if approved { "approved" } else { "denied" };
    if !was_open {
        // The engine takes the same decision of the same user for one; here, whoever sends it again is told.
        let detail = format!("`{step}` was already {decision} by {}", user.principal().id);
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    Ok(Decided { run_id: run, step, decision, by: user.principal().id.clone() })
}
