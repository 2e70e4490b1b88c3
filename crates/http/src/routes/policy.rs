//! The operator's policy: its state, explanations of verdicts, the freeze and remembered approvals.

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_engine::{Annotations, ExplainCall, Freeze, PolicyExplanation};

use crate::api::{Api, delete, get, post, put};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "policy";

pub(super) fn routes(api: Api) -> Api {
    let explain = post("/api/v1/policy/explain", "Explain the verdict about a call")
        .details("The call is not made, and no limit is charged. Others' calls need the right `view`.")
        .body::<ExplainRequest>()
        .returns::<Explanation>(200, "The verdict and the rules that were compared.");
    let freeze = put("/api/v1/policy/freeze", "Freeze all calls")
        .details("No call starts until the freeze is lifted. Calls in flight end normally. Needs the right `administer`.")
        .body::<FreezeRequest>()
        .returns::<PolicyStatus>(200, "The state of the policy.");
    let unfreeze = delete("/api/v1/policy/freeze", "Let calls start again")
        .details("Needs the right `administer`.")
        .returns_empty(204, "Calls start again.");
    let revoke = delete("/api/v1/policy/remembered/{name}", "Revoke a remembered approval")
        .returns_empty(204, "The approval no longer covers calls.");
    api.route(
        TAG,
        get("/api/v1/policy", "Get the state of the policy").returns::<PolicyStatus>(200, "The state."),
        status,
    )
    .route(TAG, explain, self::explain)
    .route(TAG, freeze, self::freeze)
    .route(TAG, unfreeze, self::unfreeze)
    .route(
        TAG,
        get("/api/v1/policy/remembered", "List remembered approvals").returns::<Page<RememberedApproval>>(
            200,
            "Those of the caller, or of all users with the right `view`.",
        ),
        remembered,
    )
    .route(TAG, revoke, self::revoke)
}

/// The state of the policy.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PolicyStatus {
    /// Version of the policy; absent if there is none.
    pub version: Option<String>,
    /// Names of its rules, in order.
    pub rules: Vec<String>,
    /// Why a newer policy file could not be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The freeze, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<FreezeInfo>,
}

/// A freeze of all calls.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FreezeInfo {
    /// The user who froze the calls.
    pub by: String,
    /// The reason that the user gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    pub at: String,
}

impl From<Freeze> for FreezeInfo {
    fn from(freeze: Freeze) -> Self {
        Self { by: freeze.by, reason: freeze.reason, at: timestamp::format(freeze.at) }
    }
}

/// A freeze to begin.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FreezeRequest {
    /// The reason, which callers are shown.
    #[serde(default)]
    reason: Option<String>,
}

/// A call to explain.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExplainRequest {
    /// Full name of the tool.
    tool: String,
    /// The arguments.
    #[serde(default)]
    args: Map<String, Value>,
    /// Annotations to assume instead of those of the tool.
    #[serde(default)]
    annotations: Option<AssumedAnnotations>,
    /// The user; by default the caller.
    #[serde(default)]
    user: Option<String>,
    /// Groups to assume instead of those of the user.
    #[serde(default)]
    groups: Option<Vec<String>>,
    /// Whether an agent starts the call.
    #[serde(default)]
    agent: bool,
    /// Name of the client.
    #[serde(default)]
    client: Option<String>,
    /// Name of the workflow; by default the call is direct.
    #[serde(default)]
    workflow: Option<String>,
}

/// Annotations of a tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AssumedAnnotations {
    read_only: Option<bool>,
    destructive: Option<bool>,
    idempotent: Option<bool>,
    open_world: Option<bool>,
}

/// The verdict about a call, and why.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// `allow`, `deny`, `require_approval` or `limit`.
    pub verdict: String,
    /// The rule that decided; `default` if none matched, and absent without a policy.
    pub rule: Option<String>,
    /// Version of the policy.
    pub version: Option<String>,
    /// Why a call is denied, who may approve it, or the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// The rules that were compared, in order, up to the one that decided.
    pub rules: Vec<ComparedRule>,
}

/// A rule that was compared with a call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ComparedRule {
    /// Name of the rule.
    pub name: String,
    /// Why it did not match; absent for the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
}

impl From<Option<PolicyExplanation>> for Explanation {
    fn from(explanation: Option<PolicyExplanation>) -> Self {
        let Some(PolicyExplanation { verdict, rules }) = explanation else {
            let (verdict, rules) = ("allow".to_owned(), Vec::new());
            return Self {
                verdict,
                rule: None,
                version: None,
                details: Some("there is no policy".to_owned()),
                rules,
            };
        };
        Self {
            verdict: verdict.action.name().to_owned(),
            rule: Some(verdict.rule.to_string()),
            version: Some(verdict.version.to_string()),
            details: verdict.action.details(),
            rules: rules.into_iter().map(|(name, mismatch)| ComparedRule { name, mismatch }).collect(),
        }
    }
}

/// An approval that also covers later calls.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RememberedApproval {
    /// Id to revoke it by.
    pub id: String,
    /// The rule that required the approval.
    pub rule: String,
    /// The user whose calls are covered.
    pub user: String,
    /// Full name of the tool.
    pub tool: String,
    /// `arguments`: only calls with the same arguments. `tool`: all calls of the tool.
    pub scope: String,
    /// The user who approved.
    pub by: String,
    /// When it ends.
    pub until: String,
}

impl From<steprail_engine::Remembered> for RememberedApproval {
    fn from(approval: steprail_engine::Remembered) -> Self {
        let scope = if approval.args.is_some() { "arguments" } else { "tool" };
        Self {
            id: approval.id,
            rule: approval.rule,
            user: approval.user,
            tool: approval.tool,
            scope: scope.to_owned(),
            by: approval.by,
            until: timestamp::format(approval.until),
        }
    }
}

async fn status(Caller(user): Caller) -> Result<Json<PolicyStatus>, Problem> {
    Ok(Json(status_of(&user)))
}

fn status_of(user: &steprail_engine::User) -> PolicyStatus {
    let handle = user.policy();
    let policy = handle.current();
    PolicyStatus {
        version: policy.as_ref().map(|policy| policy.version().to_string()),
        rules: policy.iter().flat_map(|policy| policy.rules().map(str::to_owned)).collect(),
        problem: handle.problem(),
        freeze: handle.freeze().map(FreezeInfo::from),
    }
}

async fn explain(
    Caller(user): Caller,
    Body(request): Body<ExplainRequest>,
) -> Result<Json<Explanation>, Problem> {
    let annotations = request.annotations.map(|assumed| Annotations {
        read_only: assumed.read_only,
        destructive: assumed.destructive,
        idempotent: assumed.idempotent,
        open_world: assumed.open_world,
        ..Annotations::UNANNOTATED
    });
    let call = ExplainCall {
        tool: request.tool,
        args: Value::Object(request.args),
        annotations,
        user: request.user.unwrap_or_else(|| user.principal().id.clone()),
        groups: request.groups,
        agent: request.agent,
        client: request.client,
        workflow: request.workflow,
    };
    Ok(Json(user.explain_policy(&call)?.into()))
}

async fn freeze(
    Caller(user): Caller,
    Body(request): Body<FreezeRequest>,
) -> Result<Json<PolicyStatus>, Problem> {
    user.freeze(request.reason).await?;
    Ok(Json(status_of(&user)))
}

async fn unfreeze(Caller(user): Caller) -> Result<StatusCode, Problem> {
    user.unfreeze().await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remembered(Caller(user): Caller) -> Result<Json<Page<RememberedApproval>>, Problem> {
    let items = user.remembered_approvals().into_iter().map(RememberedApproval::from).collect();
    Ok(Json(Page::single(items)))
}

async fn revoke(Caller(user): Caller, NameParam(id): NameParam) -> Result<StatusCode, Problem> {
    user.revoke_remembered(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
