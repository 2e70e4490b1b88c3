//! Approvals: open ones are listed, and decided with the digest of what was shown.

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use steprail_core::display::ApprovalText;
use steprail_core::plan::Hash;
use steprail_core::presence::Presence;
use steprail_core::run::Subject;
use steprail_core::spec::value::DurationSpec;
use steprail_engine::{CodeRequest, Error, IssuedCode, Remember, RunId, User};

use crate::api::{Api, get, post};
use crate::extract::{Body, Caller, QueryParams, RunParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "approvals";
/// The maximum number of approvals in a list.
const MAX_LISTED: usize = 100;

pub(super) fn routes(api: Api) -> Api {
    let binding = "The decision applies only to what `digest` identifies. The first decision wins; later ones get 409 with the \
                   name of the approver.";
    let presence = "Proof of presence, where it is required: `pin …`, `totp …` or `passkey …`.";
    api.route(
        TAG,
        get("/api/v1/approvals", "List open approvals").returns::<Page<Approval>>(200, "Oldest first."),
        list,
    )
    .route(
        TAG,
        get("/api/v1/approvals/{run_id}", "Show an open approval as text")
            .details("For pages that show it to a person: the facts first, then the prompt as a quotation.")
            .query::<ShownQuery>()
            .returns::<ShownApproval>(200, "The approval."),
        show,
    )
    .route(
        TAG,
        post("/api/v1/runs/{run_id}/approve", "Approve")
            .details(binding)
            .header("X-Steprail-Presence", presence)
            .body::<DecisionRequest>()
            .returns::<DecisionResult>(200, "The decision."),
        approve,
    )
    .route(
        TAG,
        post("/api/v1/runs/{run_id}/deny", "Deny")
            .details(binding)
            .header("X-Steprail-Presence", presence)
            .body::<DecisionRequest>()
            .returns::<DecisionResult>(200, "The decision."),
        deny,
    )
    .route(
        TAG,
        post("/api/v1/runs/{run_id}/codes", "Issue a code for a decision over MCP")
            .details(
                "For people. The code carries the decision: an MCP client of the caller redeems it once, within ten minutes, \
                 with `workflow_approve` or `workflow_deny`. The decision is the caller's.",
            )
            .header("X-Steprail-Presence", presence)
            .body::<NewCode>()
            .returns::<DecisionCode>(201, "The code, once."),
        issue_code,
    )
}

/// An open approval.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Id of the run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Path of the step that waits.
    pub step: String,
    /// The rendered prompt.
    pub prompt: String,
    /// Digest of what the approver sees. A decision must carry it.
    pub digest: String,
    /// The tool that is called after the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Arguments of that call.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Box<RawValue>>,
    /// JSON Schema of the answer, where a tool requests input.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Box<RawValue>>,
    /// What the approval covers, as its digest binds it: the calls that follow with the arguments that are known, the starter,
    /// edits, and who may decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covers: Option<Subject>,
    /// The users who approved before the quorum was reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signed: Vec<String>,
    /// When it was requested.
    #[schemars(extend("format" = "date-time"))]
    pub requested_at: String,
    /// When it times out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The user who started the run.
    #[serde(default)]
    pub created_by: String,
    /// Whether an agent started the run for the user.
    #[serde(default)]
    pub by_agent: bool,
    /// Name of the run's definition.
    #[serde(default)]
    pub definition: String,
    /// Version of the run's definition.
    #[serde(default)]
    pub version: u32,
    /// Whether the caller may decide; only in lists of approvals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_decide: Option<bool>,
}

impl From<steprail_engine::Approval> for Approval {
    fn from(row: steprail_engine::Approval) -> Self {
        Self {
            run_id: row.run_id,
            step: row.path,
            prompt: row.prompt,
            digest: row.digest.to_string(),
            tool: row.tool,
            args: row.args,
            form: row.form,
            covers: row.subject.and_then(|subject| serde_json::from_str(subject.get()).ok()),
            signed: row.signed,
            requested_at: timestamp::format(row.requested_at),
            expires_at: row.expires_at.map(timestamp::format),
            created_by: row.created_by,
            by_agent: row.by_agent,
            definition: row.definition,
            version: row.version,
            may_decide: None,
        }
    }
}

impl Approval {
    /// The approval as it is shown to a person: the facts, then the prompt as a quotation.
    pub fn shown(&self) -> String {
        let text = ApprovalText {
            covered: self.covers.as_ref().map(|covers| covers.calls.clone()).unwrap_or_default(),
            workflows: self.covers.as_ref().map(|covers| covers.workflows.clone()).unwrap_or_default(),
            tool: self.tool.as_deref(),
            args: self.args.as_ref().map(|args| args.get()),
            starter: &self.created_by,
            by_agent: self.by_agent,
            definition: (&self.definition, self.version),
            step: &self.step,
            prompt: &self.prompt,
        };
        text.render()
    }
}

/// Selects an open approval of a run.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShownQuery {
    /// Path of the step that waits; optional if only one does.
    step: Option<String>,
}

/// An open approval as text.
#[derive(Serialize, JsonSchema)]
struct ShownApproval {
    /// Id of the run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    run_id: RunId,
    /// Path of the step that waits.
    step: String,
    /// Digest of what the approver sees. A decision must carry it.
    digest: String,
    /// The facts, then the prompt as a quotation. Untrusted characters are made visible.
    text: String,
    /// JSON Schema of the answer, where a tool requests input.
    #[schemars(with = "Option<Value>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<Box<RawValue>>,
    /// The factor of presence that a decision needs.
    presence: Presence,
    /// Whether the caller may decide.
    may_decide: bool,
}

/// A decision at a gate.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionRequest {
    /// Path of the step that waits.
    step: String,
    /// `digest` of the approval, as it was shown.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    digest: String,
    /// Reason, for the log.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
    /// Answer that matches `form`.
    answer: Option<Map<String, Value>>,
    /// Arguments that replace those of the call that is approved.
    args: Option<Map<String, Value>>,
    /// Lets the approval also cover later calls, if a rule of the policy requires it.
    remember: Option<RememberRequest>,
}

/// How long and for which calls an approval is remembered.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RememberRequest {
    /// The calls that it covers.
    scope: RememberScope,
    /// The time, up to 30 days, such as `1h`.
    #[serde(rename = "for")]
    period: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RememberScope {
    /// Calls of the tool with the same arguments.
    Arguments,
    /// All calls of the tool.
    Tool,
}

impl RememberRequest {
    fn parse(&self) -> Result<Remember, Problem> {
        let period = DurationSpec::parse(&self.period).map_err(Error::BadInput)?;
        Ok(Remember { any_arguments: self.scope == RememberScope::Tool, millis: period.millis })
    }
}

/// A decision that was recorded.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DecisionResult {
    #[schemars(with = "String", extend("format" = "uuid"))]
    run_id: RunId,
    step: String,
    /// `approved` or `denied`.
    decision: &'static str,
    /// The user who decided.
    by: String,
}

/// A decision for which a code is issued.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCode {
    /// Path of the step that waits.
    step: String,
    /// `digest` of the approval, as it was shown.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    digest: String,
    /// The decision that the code carries; `approve` by default.
    #[serde(default)]
    decision: CodeDecision,
    /// Reason, for the log.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
    /// Answer that matches `form`.
    answer: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CodeDecision {
    /// The code approves.
    #[default]
    Approve,
    /// The code denies.
    Deny,
}

/// A code for a decision.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct DecisionCode {
    /// The code. It cannot be read again.
    pub code: String,
    /// When it expires.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
}

async fn issue_code(
    Caller(user): Caller,
    RunParam(run): RunParam,
    Body(new): Body<NewCode>,
) -> Result<(StatusCode, Json<DecisionCode>), Problem> {
    let digest = Hash::from_hex(&new.digest).ok_or_else(|| Problem::bad("invalid digest"))?;
    let request = CodeRequest {
        run,
        path: new.step,
        digest,
        approved: new.decision == CodeDecision::Approve,
        answer: new.answer.map(Value::Object),
        reason: new.reason,
    };
    let IssuedCode { code, expires_at } = user.issue_code(request).await?;
    Ok((StatusCode::CREATED, Json(DecisionCode { code, expires_at: timestamp::format(expires_at) })))
}

async fn list(Caller(user): Caller) -> Result<Json<Page<Approval>>, Problem> {
    open(&user).await.map(Json)
}

async fn show(
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(ShownQuery { step }): QueryParams<ShownQuery>,
) -> Result<Json<ShownApproval>, Problem> {
    // Approvals of sub-workflows belong to other runs.
    let open = user.run_approvals(run).await?.into_iter().filter(|open| open.run_id == run);
    let mut open = open.filter(|open| step.as_ref().is_none_or(|step| *step == open.path));
    let none = || Problem::not_found("the run has no such open approval; it may have been decided already");
    let row = open.next().ok_or_else(none)?;
    if open.next().is_some() {
        return Err(Problem::bad("several steps wait for an approval; name one with `step`"));
    }
    let (presence, may_decide) = (user.presence_at(&row), user.may_decide(run, &row.path).await);
    let approval = Approval::from(row);
    let text = approval.shown();
    let Approval { run_id, step, digest, form, .. } = approval;
    Ok(Json(ShownApproval { run_id, step, digest, text, form, presence, may_decide }))
}

/// Open approvals, with whether the user may decide.
pub(crate) async fn open(user: &User) -> Result<Page<Approval>, Problem> {
    let mut items = Vec::new();
    for open in user.approvals(MAX_LISTED).await? {
        let may_decide = Some(user.may_decide(open.run_id, &open.path).await);
        items.push(Approval { may_decide, ..open.into() });
    }
    Ok(Page::single(items))
}

async fn approve(
    Caller(user): Caller,
    RunParam(run): RunParam,
    Body(decision): Body<DecisionRequest>,
) -> Result<Json<DecisionResult>, Problem> {
    decide(&user, run, true, decision).await.map(Json)
}

async fn deny(
    Caller(user): Caller,
    RunParam(run): RunParam,
    Body(decision): Body<DecisionRequest>,
) -> Result<Json<DecisionResult>, Problem> {
    decide(&user, run, false, decision).await.map(Json)
}

pub(crate) async fn decide(
    user: &User,
    run: RunId,
    approved: bool,
    decision: DecisionRequest,
) -> Result<DecisionResult, Problem> {
    let DecisionRequest { step, digest, reason, answer, args, remember } = decision;
    let remember = remember.map(|remember| remember.parse()).transpose()?;
    let digest = Hash::from_hex(&digest).ok_or_else(|| Problem::bad("invalid digest"))?;
    let was_open = user.may_decide(run, &step).await;
    let request = steprail_engine::DecisionRequest {
        approved,
        reason,
        digest: Some(digest),
        answer: answer.filter(|_| approved).map(Value::Object),
        edited: args.map(Value::Object),
        remember,
    };
    user.decide_with(run, &step, request).await?;
    let decision = if approved { "approved" } else { "denied" };
    if !was_open {
        // The engine accepts a repeated decision of the same user. Over REST it is a conflict.
        let detail = format!("`{step}` was already {decision} by {}", user.principal().id);
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    Ok(DecisionResult { run_id: run, step, decision, by: user.principal().id.clone() })
}
