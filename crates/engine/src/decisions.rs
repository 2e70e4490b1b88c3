//! Decisions of humans: approvals, answers to input requests, resolutions and interventions.

use serde_json::Value;
use steprail_core::limits::NAME_CHARS;
use steprail_core::plan::Hash;
use steprail_core::run::{Intervention, Resolution};
use steprail_store::{AdminAction, AdminEvent, Approval, Principal, Right, RunId};

use crate::engine::Engine;
use crate::error::Error;
use crate::form;
use crate::kernel::Command;

/// A decision at a gate.
#[derive(Debug, Clone, Default)]
pub struct DecisionRequest {
    /// Whether the step may continue.
    pub approved: bool,
    /// The reason, for the log.
    pub reason: Option<String>,
    /// Digest of the approval that the user saw. The decision is rejected if the request has changed. Without it, the
    /// decision is rejected if the request was ever replaced.
    pub digest: Option<Hash>,
    /// The answer to an input request of a tool, or the values of the gate's form.
    pub answer: Option<Value>,
    /// Arguments that replace those of the call that is approved.
    pub edited: Option<Value>,
    /// Lets the approval also cover later calls, if a rule of the policy requires it.
    pub remember: Option<Remember>,
}

/// How long and for which calls an approval is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remember {
    /// Whether it covers calls of the tool with any arguments, instead of the same ones.
    pub any_arguments: bool,
    /// The time in milliseconds, up to 30 days.
    pub millis: u64,
}

impl Engine {
    /// Approves at a gate. `digest` binds the decision to the approval that the user saw. Needs the right `approve`.
    pub async fn approve(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        reason: Option<String>,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        let decision = DecisionRequest { approved: true, reason, digest, ..DecisionRequest::default() };
        self.decide(run, path, by, decision).await
    }

    /// Denies at a gate. `digest` binds the decision to the approval that the user saw. Needs the right `approve`.
    pub async fn deny(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        reason: Option<String>,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        let decision = DecisionRequest { reason, digest, ..DecisionRequest::default() };
        self.decide(run, path, by, decision).await
    }

    /// Answers an input request of a tool. Omitted fields get the defaults of the form, except in an answer from the client
    /// of a relayed call, which is passed on unchanged. Needs the right `approve`, except for that client.
    pub async fn answer(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        answer: Value,
        digest: Option<Hash>,
    ) -> Result<(), Error> {
        let answer = Some(answer);
        let decision = DecisionRequest { approved: true, digest, answer, ..DecisionRequest::default() };
        self.decide(run, path, by, decision).await
    }

    /// Decides at a gate. Needs the right `approve`, except for the client of a relayed call that answers its tool.
    pub async fn decide(
        &self,
        run: RunId,
        path: &str,
        by: &Principal,
        mut decision: DecisionRequest,
    ) -> Result<(), Error> {
        self.authorize_decision(by)?;
        if let Some(answer) = decision.answer.take() {
            let is_relayed = by.relay.is_some();
            let filled = if is_relayed { answer } else { self.fill_defaults(run, path, answer).await? };
            decision.answer = Some(filled);
        }
        if let Some(args) = &decision.edited {
            self.check_edited(run, path, args).await?;
        }
        let command =
            Command::Decide { run, path: path.to_owned(), by: by.clone(), decision: Box::new(decision) };
        let decided = self.command(command).await;
        if let Err(Error::PresenceRequired(_)) = &decided {
            let step = path.chars().take(NAME_CHARS).collect();
            let action = AdminAction::DecisionRejected { run, step, user: by.id.clone() };
            self.registry().record(vec![AdminEvent::new(action, Some(by.into()))]).await?;
        }
        decided
    }

    async fn fill_defaults(&self, run: RunId, path: &str, answer: Value) -> Result<Value, Error> {
        let form = self.find_approval(run, path).await?.and_then(|approval| approval.form);
        let form = form.and_then(|form| serde_json::from_str::<Value>(form.get()).ok());
        Ok(match form {
            Some(form) => form::with_defaults(&form, answer),
            None => answer,
        })
    }

    /// Checks edited arguments against the input schema of their tool. The schema belongs to the server of the tool, so it is
    /// evaluated here and not on the engine thread.
    async fn check_edited(&self, run: RunId, path: &str, args: &Value) -> Result<(), Error> {
        match self.find_approval(run, path).await?.and_then(|approval| approval.tool) {
            Some(tool) => self.0.tools.check_args(&tool, args).map_err(Error::BadInput),
            None => Ok(()),
        }
    }

    async fn find_approval(&self, run: RunId, path: &str) -> Result<Option<Approval>, Error> {
        let approvals = self.read(move |readers| readers.run_approvals(run, usize::MAX)).await?;
        Ok(approvals.into_iter().find(|approval| approval.run_id == run && approval.path == path))
    }

    /// The client of a relayed call needs no right to answer its tool. The kernel rejects its other decisions.
    fn authorize_decision(&self, by: &Principal) -> Result<(), Error> {
        if by.relay.is_some() { Ok(()) } else { self.authorize(by, Right::Approve) }
    }

    /// Returns an error if a user may not decide at an open gate.
    pub async fn may_decide(&self, run: RunId, path: &str, by: &Principal) -> Result<(), Error> {
        self.authorize_decision(by)?;
        self.command(Command::MayDecide { run, path: path.to_owned(), by: by.clone() }).await
    }

    /// Resolves a call with an unknown outcome. `digest` binds the resolution to an attempt. Needs the right `approve`.
    pub async fn resolve(
        &self,
        run: RunId,
        path: &str,
        resolution: Resolution,
        digest: Option<Hash>,
        by: &Principal,
    ) -> Result<(), Error> {
        self.authorize(by, Right::Approve)?;
        let (path, by) = (path.to_owned(), by.clone());
        self.command(Command::Resolve { run, path, resolution, digest, by }).await
    }

    /// Changes a run in progress. Needs the right `approve`.
    pub async fn intervene(
        &self,
        run: RunId,
        intervention: Intervention,
        by: &Principal,
    ) -> Result<(), Error> {
        self.authorize(by, Right::Approve)?;
        self.command(Command::Intervene { run, intervention, by: by.clone() }).await
    }
}
