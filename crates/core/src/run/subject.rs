//! Computes what an approval covers, and the digest that binds a decision to it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::approval::{ApprovalKind, GuardedCall, GuardedWorkflow, PolicyRule, Subject};
use super::decide::Decision;
use super::parts::ScopeKey;
use super::{Payload, WorldError};
use crate::expr::{Ambient, Root, StepIx, ValueTemplate};
use crate::limits::{GUARDED_ARGS_BYTES, GUARDED_CALLS};
use crate::plan::{Call, Gate, GateRules, Hash, Kind};

/// The calls that an approval covers.
pub(super) enum Covered<'c> {
    /// The call of the step itself, with its arguments.
    Own(StepIx, &'c Payload),
    /// The calls and sub-workflows of these steps.
    Steps(&'c [StepIx]),
}

impl Decision<'_> {
    /// What an approval in a scope covers now.
    pub(super) fn subject(
        &mut self,
        kind: ApprovalKind,
        scope: ScopeKey,
        covered: &Covered<'_>,
        rules: &GateRules,
        policy: Option<PolicyRule>,
    ) -> Result<Subject, WorldError> {
        let mut subject = Subject {
            kind,
            definition: self.plan.hash,
            starter: self.world.starter(),
            calls: Vec::new(),
            more_calls: false,
            workflows: Vec::new(),
            edits: self.run.edits.values().chain(self.run.overrides.values()).copied().collect(),
            rules: rules.clone(),
            policy,
        };
        match covered {
            Covered::Own(step, args) => {
                let mut call = self.own_call(*step, args);
                // The request of a tool does not store the arguments of its call.
                if let Some(call) = call.as_mut().filter(|_| kind == ApprovalKind::Input)
                    && args.json().len() <= GUARDED_ARGS_BYTES
                {
                    call.args = Some(args.value().clone());
                }
                subject.calls.extend(call);
            }
            Covered::Steps(steps) => self.guarded(scope, steps, &mut subject)?,
        }
        Ok(subject)
    }

    fn own_call(&self, step: StepIx, args: &Payload) -> Option<GuardedCall> {
        let Kind::Call(call) = &self.step(step).kind else { return None };
        // The request stores the arguments themselves.
        Some(GuardedCall {
            args_hash: Some(args.hash()),
            tool_hash: self.world.pin(&call.name),
            ..self.unresolved_call(step, call)
        })
    }

    fn guarded(
        &mut self,
        scope: ScopeKey,
        steps: &[StepIx],
        subject: &mut Subject,
    ) -> Result<(), WorldError> {
        let mut bytes = 0;
        for step in steps.iter().take(GUARDED_CALLS).copied() {
            let id = self.step(step).id.clone();
            match &self.step(step).kind {
                Kind::Call(call) => {
                    let guarded = self.guarded_call(scope, step, call, steps, &mut bytes)?;
                    subject.calls.push(guarded);
                }
                Kind::Workflow(workflow) => {
                    let hash = self.world.workflow_hash(workflow)?;
                    let mut unknown = Vec::new();
                    let inputs = self.known_arguments(scope, &workflow.inputs, steps, &mut unknown)?;
                    bytes += inputs.as_ref().map_or(0, |inputs| inputs.to_string().len());
                    let inputs = inputs.filter(|_| bytes <= GUARDED_ARGS_BYTES);
                    let name = workflow.name.clone();
                    subject.workflows.push(GuardedWorkflow { step: id, name, hash, inputs, unknown });
                }
                Kind::Foreach(_)
                | Kind::Parallel(_)
                | Kind::Branch(_)
                | Kind::Approve(_)
                | Kind::Sleep(_)
                | Kind::Wait(_)
                | Kind::Let(_)
                | Kind::Pass => {}
            }
        }
        subject.more_calls = steps.len() > GUARDED_CALLS;
        Ok(())
    }

    /// A call with the arguments that do not depend on steps that have not run.
    fn guarded_call(
        &mut self,
        scope: ScopeKey,
        step: StepIx,
        call: &Call,
        steps: &[StepIx],
        bytes: &mut usize,
    ) -> Result<GuardedCall, WorldError> {
        let mut guarded =
            GuardedCall { tool_hash: self.world.pin(&call.name), ..self.unresolved_call(step, call) };
        let path = self.run.path(self.plan, scope, step);
        let args = match self.run.edits.get(&*path).copied() {
            Some(seq) => {
                guarded.from_tools.clear();
                Some(self.event_value(seq)?.value().clone())
            }
            None => self.known_arguments(scope, &call.args, steps, &mut guarded.unknown)?,
        };
        let Some(args) = args else { return Ok(guarded) };
        let args = Payload::new(args);
        *bytes += args.json().len();
        // With an idempotency argument, the arguments are complete only when the call starts.
        if guarded.unknown.is_empty() && call.idempotency_arg.is_none() {
            guarded.args_hash = Some(args.hash());
        }
        if *bytes <= GUARDED_ARGS_BYTES {
            guarded.args = Some(args.value().clone());
        }
        Ok(guarded)
    }

    fn known_arguments(
        &mut self,
        scope: ScopeKey,
        template: &ValueTemplate,
        steps: &[StepIx],
        unknown: &mut Vec<Box<str>>,
    ) -> Result<Option<Value>, WorldError> {
        let ValueTemplate::Map(entries) = template else {
            let known = self.known_value(scope, template, steps)?;
            if known.is_none() {
                unknown.push("*".into());
            }
            return Ok(known);
        };
        let mut args = Map::new();
        for (name, template) in entries {
            match self.known_value(scope, template, steps)? {
                Some(value) => drop(args.insert(name.to_string(), value)),
                None => unknown.push(name.clone()),
            }
        }
        Ok(Some(Value::Object(args)))
    }

    fn known_value(
        &mut self,
        scope: ScopeKey,
        template: &ValueTemplate,
        steps: &[StepIx],
    ) -> Result<Option<Value>, WorldError> {
        let mut is_known = true;
        template.roots(&mut |root| is_known &= self.is_known(scope, root, steps));
        if is_known { Ok(self.eval(scope, template)?.ok()) } else { Ok(None) }
    }

    /// Whether a root has its final value. The outputs of steps that follow the gate do not.
    fn is_known(&self, scope: ScopeKey, root: &Root, steps: &[StepIx]) -> bool {
        match root {
            Root::Inputs | Root::Env | Root::Ambient(_) => true,
            Root::Output(step) | Root::FileRefs(step) | Root::Status(step) | Root::Error(step) => {
                let is_set = self.run.overrides.contains_key(&Some(*step));
                is_set || (self.has_ended(scope, *step) && !steps.contains(step))
            }
            Root::Item(step) => self.is_item(scope, *step),
            Root::Failure => self.run.failing.is_some(),
            Root::Probe | Root::Call(_) | Root::Variable(_) | Root::Let(_) | Root::Now => false,
        }
    }

    /// A call as the plan describes it, without the values of its arguments.
    fn unresolved_call(&self, step: StepIx, call: &Call) -> GuardedCall {
        GuardedCall {
            step: self.step(step).id.clone(),
            tool: call.name.clone(),
            args: None,
            args_hash: None,
            unknown: Vec::new(),
            from_tools: self.arguments_from_tools(&call.args),
            tool_hash: None,
        }
    }

    fn arguments_from_tools(&self, args: &ValueTemplate) -> Vec<Box<str>> {
        match args {
            ValueTemplate::Map(entries) => {
                let named = entries.iter().filter(|(_, template)| self.is_from_tools(template));
                named.map(|(name, _)| name.clone()).collect()
            }
            whole if self.is_from_tools(whole) => vec!["*".into()],
            _ => Vec::new(),
        }
    }

    /// Whether a value contains outputs of tools, also by way of `let` steps. A person enters the output of an approval.
    fn is_from_tools(&self, template: &ValueTemplate) -> bool {
        let (mut open, mut seen, mut found) = (vec![template], BTreeSet::new(), false);
        while let Some(template) = open.pop() {
            template.roots(&mut |root| match root {
                Root::Output(step) | Root::FileRefs(step) | Root::Error(step) => match &self.step(*step).kind
                {
                    Kind::Approve(_) => {}
                    Kind::Let(values) if seen.insert(*step) => {
                        open.extend(values.values.iter().map(|value| &value.value));
                    }
                    Kind::Let(_) => {}
                    _ => found = true,
                },
                Root::Item(step) => match &self.step(*step).kind {
                    Kind::Foreach(each) if seen.insert(*step) => open.push(&each.items),
                    _ => {}
                },
                Root::Failure => found = true,
                Root::Inputs
                | Root::Env
                | Root::Ambient(_)
                | Root::Status(_)
                | Root::Probe
                | Root::Call(_)
                | Root::Variable(_)
                | Root::Let(_)
                | Root::Now => {}
            });
        }
        found
    }

    /// The digest of a request and its subject.
    pub(super) fn digest(&self, request: Hash, subject: &Subject) -> Hash {
        let run = self.world.ambient(Ambient::RunId);
        Hash::of(json!([run, request, subject]).to_string().as_bytes())
    }
}

impl Gate {
    /// The rules of a gate as the plan states them, for logs without subjects.
    pub(super) fn rules_of(step: &crate::plan::Step) -> GateRules {
        match (&step.kind, &step.needs_human) {
            (Kind::Approve(approve), _) => approve.gate.rules.clone(),
            (_, Some(gate)) => gate.rules.clone(),
            _ => GateRules::default(),
        }
    }
}
