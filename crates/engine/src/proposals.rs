//! Proposals: definitions by agents that a person accepts or rejects.

use serde_json::json;
use steprail_core::diagnostic::Diagnostic;
use steprail_core::plan::{Hash, Kind, Plan};
use steprail_core::steps::WorkflowVersion;
use steprail_store::{Actor, Definition, Expected, Pins, Proposal, Reads, Right, StoreError, WorkflowPins};

use crate::definitions::DefineOptions;
use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{AcceptedProposal, Command, DefinitionVersion, pin_workflow, pins_hash, tool_pins};
use crate::start::{UNNAMED, check};
use crate::user::User;

/// A proposal with the version that it would change.
#[derive(Debug, Clone)]
pub struct ProposalView {
    /// The proposal.
    pub proposal: Proposal,
    /// The newest version of the definition, if there is one.
    pub base: Option<Definition>,
    /// The versions of sub-workflows that it would keep.
    pub workflows: WorkflowPins,
    /// Binds a decision to the proposal, to the version that it was compared with, to the descriptions of its tools and to
    /// the versions of its sub-workflows.
    pub digest: Hash,
    pinned: Hash,
}

impl ProposalView {
    fn new(proposal: Proposal, base: Option<Definition>, tools: &Pins, workflows: WorkflowPins) -> Self {
        let version = base.as_ref().map(|base| (base.version, base.hash));
        let pinned = pins_hash(tools, &workflows);
        let Proposal { name, hash, created_by, .. } = &proposal;
        let digest = Hash::of(json!([name, hash, created_by, version, pinned]).to_string().as_bytes());
        Self { proposal, base, workflows, digest, pinned }
    }

    fn require(&self, digest: Hash) -> Result<(), Error> {
        if self.digest == digest {
            return Ok(());
        }
        let name = &self.proposal.name;
        Err(Error::Conflict(format!(
            "the proposal for `{name}`, the definition, or one of its tools or sub-workflows has changed since you saw it; \
             look at it again"
        )))
    }
}

impl Engine {
    /// Returns every proposal, by name.
    pub async fn proposals(&self) -> Result<Vec<Proposal>, Error> {
        self.read(|readers| readers.proposals()).await
    }

    /// Returns the proposal for a name, with the version that it would change.
    pub async fn proposal(&self, name: &str) -> Result<ProposalView, Error> {
        let key = name.to_owned();
        let found = self
            .read(move |readers| {
                Ok(readers.proposal(&key)?.map(|found| (found, readers.definition(&key, None))))
            })
            .await?;
        let (proposal, base) =
            found.ok_or_else(|| Error::NotFound(format!("there is no proposal for `{name}`")))?;
        let plan = check(UNNAMED, &proposal.spec_json, None)?.plan;
        let tools = tool_pins(&*self.0.tools, &plan);
        let workflows = self.read(move |readers| workflow_pins(readers, &plan)).await?;
        Ok(ProposalView::new(proposal, base?, &tools, workflows))
    }
}

/// The versions of sub-workflows that a definition would keep if it were stored now.
fn workflow_pins(readers: &dyn Reads, plan: &Plan) -> Result<WorkflowPins, StoreError> {
    let mut pins = WorkflowPins::new();
    for step in &plan.steps {
        let Kind::Workflow(workflow) = &step.kind else { continue };
        let Some(key) = workflow.pin_key() else { continue };
        let version = match workflow.version {
            Some(WorkflowVersion::Number(version)) => Some(version),
            _ => None,
        };
        if let Some(found) = readers.definition(&workflow.name, version)? {
            pin_workflow(&mut pins, plan, key, &found);
        }
    }
    Ok(pins)
}

impl User {
    /// Returns the proposals that the user's agents made; all with the right `administer` or `view`.
    pub async fn proposals(&self) -> Result<Vec<Proposal>, Error> {
        self.require_read()?;
        let mut proposals = self.engine().proposals().await?;
        proposals.retain(|proposal| self.sees(proposal));
        Ok(proposals)
    }

    /// Returns a proposal, with the version that it would change.
    pub async fn proposal(&self, name: &str) -> Result<ProposalView, Error> {
        self.require_read()?;
        let found = self.engine().proposal(name).await?;
        if self.sees(&found.proposal) {
            return Ok(found);
        }
        Err(Error::NotFound(format!("there is no proposal for `{name}`")))
    }

    fn sees(&self, proposal: &Proposal) -> bool {
        proposal.created_by == self.principal().id || self.may(Right::Administer) || self.may(Right::View)
    }

    /// Accepts a proposal: it becomes the newest version of its definition, with this user as owner and author. `digest` binds
    /// the decision to what the user saw.
    pub async fn accept_proposal(
        &self,
        name: &str,
        digest: Hash,
    ) -> Result<(DefinitionVersion, Vec<Diagnostic>), Error> {
        let found = self.decidable(name, digest).await?;
        let options = DefineOptions {
            expected: found.base.as_ref().map_or(Expected::Absent, |base| Expected::Version(base.version)),
            owner: (!self.may(Right::Administer)).then(|| self.principal().id.clone()),
            unpublished_only: !self.may(Right::Publish),
            accepts: Some(AcceptedProposal { hash: found.proposal.hash, pinned: found.pinned }),
            ..DefineOptions::default()
        };
        self.engine().define_with(&found.proposal.spec_json, self.principal(), &options).await
    }

    /// Rejects a proposal.
    pub async fn reject_proposal(&self, name: &str, digest: Hash) -> Result<(), Error> {
        let hash = self.decidable(name, digest).await?.proposal.hash;
        let by = Actor::from(self.principal());
        self.engine().command(Command::RejectProposal { name: name.to_owned(), hash, by }).await
    }

    /// A proposal that this user decides about: a person whose agent made it, or with the right `administer`.
    async fn decidable(&self, name: &str, digest: Hash) -> Result<ProposalView, Error> {
        self.require_person("accepts and rejects proposals")?;
        let found = self.proposal(name).await?;
        if found.proposal.created_by != self.principal().id {
            self.require(Right::Administer)?;
        }
        found.require(digest)?;
        Ok(found)
    }

    /// Definitions are taken over and accepted in person, with all rights of the user, who has to be present where it is required.
    pub(crate) fn require_person(&self, what: &str) -> Result<(), Error> {
        self.require(Right::Workflow)?;
        if self.principal().agent {
            return Err(Error::Denied(format!("a person {what}, not an agent; ask a human")));
        }
        if self.principal().scope.is_some() {
            return Err(Error::Denied(format!("a person {what}, not with a scoped token")));
        }
        self.require_presence()
    }
}
