//! Proposals: definitions by agents that a person accepts or rejects.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::TextDiff;
use steprail_core::display;
use steprail_core::plan::Hash;
use steprail_engine::{Proposal, ProposalView};

use super::definitions::StoredVersion;
use crate::api::{Api, get, post};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "definitions";
/// Unchanged lines around each change.
const CONTEXT_LINES: usize = 3;
/// A comparison that takes longer is coarser.
const DIFF_TIME: Duration = Duration::from_millis(200);

pub(super) fn routes(api: Api) -> Api {
    let binding = "`digest` binds the decision to the proposal as it was shown: if the proposal, the definition, a tool or a \
                   sub-workflow has changed, the answer is 409.";
    let accept = post("/api/v1/proposals/{name}/accept", "Accept a proposal")
        .details(&format!("The caller becomes the owner and author of the new version. {binding}"))
        .body::<DecideRequest>()
        .returns::<StoredVersion>(200, "The new version.");
    let reject = post("/api/v1/proposals/{name}/reject", "Reject a proposal")
        .details(binding)
        .body::<DecideRequest>()
        .returns_empty(204, "The proposal is deleted.");
    api.route(
        TAG,
        get("/api/v1/proposals", "List proposals")
            .details("Definitions by agents that wait for a person, where the policy requires it.")
            .returns::<Page<ProposalInfo>>(200, "By name."),
        list,
    )
    .route(
        TAG,
        get("/api/v1/proposals/{name}", "Get a proposal")
            .returns::<ShownProposal>(200, "The proposal with its difference to the newest version."),
        show,
    )
    .route(TAG, accept, self::accept)
    .route(TAG, reject, self::reject)
}

/// A definition by an agent that waits for a person.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ProposalInfo {
    /// Name of the definition.
    pub name: String,
    /// Hash of its content.
    pub hash: String,
    /// The user for whom the agent acted.
    pub created_by: String,
    /// When it was proposed.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// The client of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// A proposal as a person decides about it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ShownProposal {
    /// The proposal.
    #[serde(flatten)]
    pub proposal: ProposalInfo,
    /// The version that it would replace; absent for a new definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_version: Option<u32>,
    /// The versions of sub-workflows that it would keep, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workflows: BTreeMap<String, u32>,
    /// Binds a decision to the proposal, to that version, to the descriptions of its tools and to its sub-workflows.
    pub digest: String,
    /// The difference as a unified diff. Characters that are not plainly visible are replaced by their codes.
    pub diff: String,
    /// The proposed definition.
    pub spec: Value,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DecideRequest {
    /// The digest of the proposal that the caller saw.
    #[schemars(length(max = 64))]
    digest: String,
}

impl DecideRequest {
    fn hash(&self) -> Result<Hash, Problem> {
        Hash::from_hex(&self.digest).ok_or_else(|| Problem::bad("invalid digest"))
    }
}

impl From<&Proposal> for ProposalInfo {
    fn from(proposal: &Proposal) -> Self {
        Self {
            name: proposal.name.clone(),
            hash: proposal.hash.to_string(),
            created_by: proposal.created_by.clone(),
            created_at: timestamp::format(proposal.created_at),
            via: proposal.via.clone(),
        }
    }
}

impl From<&ProposalView> for ShownProposal {
    fn from(view: &ProposalView) -> Self {
        Self {
            proposal: ProposalInfo::from(&view.proposal),
            base_version: view.base.as_ref().map(|base| base.version),
            workflows: view.workflows.iter().map(|(name, pin)| (name.clone(), pin.version)).collect(),
            digest: view.digest.to_string(),
            diff: diff(view),
            spec: serde_json::from_str(&view.proposal.spec_json).unwrap_or_default(),
        }
    }
}

/// The unified diff between the newest version and a proposal, both as JSON with one value per line.
fn diff(view: &ProposalView) -> String {
    let lines = |spec: &str| {
        let spec: Value = serde_json::from_str(spec).unwrap_or_default();
        display::visible(&format!("{spec:#}\n"))
    };
    let old = view.base.as_ref().map(|base| lines(&base.spec_json)).unwrap_or_default();
    let new = lines(&view.proposal.spec_json);
    let name = &view.proposal.name;
    let from = view.base.as_ref().map_or("/dev/null".to_owned(), |base| format!("{name} {}", base.version));
    let to = format!("{name} (proposed)");
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(&old, &new);
    diff.unified_diff().context_radius(CONTEXT_LINES).header(&from, &to).to_string()
}

async fn list(Caller(user): Caller) -> Result<Json<Page<ProposalInfo>>, Problem> {
    let items = user.proposals().await?.iter().map(ProposalInfo::from).collect();
    Ok(Json(Page::single(items)))
}

async fn show(Caller(user): Caller, NameParam(name): NameParam) -> Result<Json<ShownProposal>, Problem> {
    Ok(Json(ShownProposal::from(&user.proposal(&name).await?)))
}

async fn accept(
    Caller(user): Caller,
    NameParam(name): NameParam,
    Body(request): Body<DecideRequest>,
) -> Result<Json<StoredVersion>, Problem> {
    let (defined, _) = user.accept_proposal(&name, request.hash()?).await?;
    Ok(Json(StoredVersion::new(defined, Vec::new())))
}

async fn reject(
    Caller(user): Caller,
    NameParam(name): NameParam,
    Body(request): Body<DecideRequest>,
) -> Result<StatusCode, Problem> {
    user.reject_proposal(&name, request.hash()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
