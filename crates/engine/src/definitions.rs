//! Definitions and schedules of an engine.

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, Severity};
use steprail_core::names;
use steprail_core::plan::{Kind, NamedPrincipal, Plan};
use steprail_core::run::Millis;
use steprail_store::{Actor, Definition, Expected, Principal, Schedule, TokenScope};
use tokio::sync::{MutexGuard, watch};

use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{AcceptedProposal, Command, Define, DefinitionVersion, Request};
use crate::start::{Checked, UNNAMED, check};

/// Options and preconditions of [`Engine::define_with`].
#[derive(Debug, Clone, Default)]
pub struct DefineOptions {
    /// Overrides the field of the definition that offers it to agents as a tool.
    pub publish: Option<bool>,
    /// The newest version that the change is based on.
    pub expected: Expected,
    /// The user who must own the name, if it is taken; `None` for any.
    pub owner: Option<String>,
    /// Rejects a definition that is published as a tool: the user lacks the right.
    pub unpublished_only: bool,
    /// The scope of the token that stores it, which restricts the tools of the definition.
    pub scope: Option<TokenScope>,
    /// Stores a proposal, which a person has to accept, instead of a version.
    pub propose: bool,
    /// The proposal that the definition was, which is closed with the same commit.
    pub accepts: Option<AcceptedProposal>,
}

impl Engine {
    /// Stores a definition, written as YAML or JSON. Returns its version and its warnings.
    pub async fn define(
        &self,
        text: &str,
        by: &Principal,
    ) -> Result<(DefinitionVersion, Vec<Diagnostic>), Error> {
        self.define_with(text, by, &DefineOptions::default()).await
    }

    /// Stores a definition with preconditions, which hold at the time of the commit.
    pub async fn define_with(
        &self,
        text: &str,
        by: &Principal,
        options: &DefineOptions,
    ) -> Result<(DefinitionVersion, Vec<Diagnostic>), Error> {
        let Checked { spec, plan, mut warnings } = check(UNNAMED, text, options.publish)?;
        warnings.extend(self.check_principals(&plan)?);
        if let Some(scope) = &options.scope {
            check_scope(&plan, scope).map_err(Error::Denied)?;
        }
        let is_published = plan.settings.publish.is_some();
        if is_published && options.unpublished_only {
            let message = format!(
                "{} may not publish workflows as tools: the right `publish` is missing; store it with `publish: false`",
                by.id
            );
            return Err(Error::Denied(message));
        }
        let _publishing = if is_published { Some(self.reserve_tool_name(&plan).await?) } else { None };
        let define = Define {
            spec,
            plan,
            by: Actor::from(by),
            expected: options.expected,
            owner: options.owner.clone(),
            propose: options.propose,
            accepts: options.accepts,
        };
        let defined = self.send(|reply| Request::Define(Box::new(define), reply)).await?;
        self.definitions_changed();
        Ok((defined, warnings))
    }

    /// Returns an error if another published workflow has the name of the tool, or one that clients could confuse with it.
    /// No other workflow is published while the result is held.
    async fn reserve_tool_name(&self, plan: &Plan) -> Result<MutexGuard<'_, ()>, Error> {
        let reserved = self.0.publishing.lock().await;
        let Some(tool) = plan.settings.publish.as_ref().map(|publish| publish.tool_name(&plan.name)) else {
            return Ok(reserved);
        };
        let published = self.published().await?;
        let is_same = |other: &&Definition| {
            other.name != *plan.name && names::folded(&published_name(other)) == names::folded(&tool)
        };
        match published.iter().find(is_same) {
            Some(Definition { name, created_by, .. }) => Err(Error::Conflict(format!(
                "the tool name `{tool}` is reserved for the published workflow `{name}` of {created_by}; choose another \
                 one: publish: {{ as: NAME }}"
            ))),
            None => Ok(reserved),
        }
    }

    /// Returns an error if a gate names an unknown user or group, or one without its type if both exist. Where names need not
    /// be known, returns warnings.
    pub(crate) fn check_principals(&self, plan: &Plan) -> Result<Vec<Diagnostic>, Error> {
        let problems = plan.principals.iter().filter_map(|named| {
            let problem = self.principal_problem(named)?;
            let step = named.step.map(|step| plan.step(step).id.to_string());
            Some(Diagnostic { step, ..problem })
        });
        let is_error = |problem: &Diagnostic| problem.code.severity() == Severity::Error;
        let (errors, warnings): (Vec<_>, Vec<_>) = problems.partition(is_error);
        if errors.is_empty() { Ok(warnings) } else { Err(Error::Invalid(errors)) }
    }

    fn principal_problem(&self, named: &NamedPrincipal) -> Option<Diagnostic> {
        let NamedPrincipal { name, is_approver, span, .. } = named;
        if !name.contains(':') && self.0.authorizer.is_ambiguous(name) {
            let hint = format!("write `user:{name}` or `group:{name}`");
            let message = format!("`{name}` is a user and a group");
            return Some(Diagnostic::new(Code::AmbiguousPrincipal, *span, message).hint(hint));
        }
        let unknown = self.0.people.as_ref()?.find(name, *is_approver).err()?;
        let code = if unknown.is_error { Code::UnknownPrincipal } else { Code::UnlistedPrincipal };
        let problem = Diagnostic::new(code, *span, unknown.message);
        Some(match unknown.hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        })
    }

    /// Makes a user the owner and author of all versions of a definition. Runs in progress keep their authors.
    pub async fn adopt_definition(
        &self,
        name: &str,
        expected: Expected,
        by: &Principal,
    ) -> Result<(), Error> {
        let (name, by) = (name.to_owned(), Actor::from(by));
        self.command(Command::AdoptDefinition { name, expected, by }).await?;
        self.definitions_changed();
        Ok(())
    }

    /// Hides a definition from new runs. Runs in progress continue.
    pub async fn delete_definition(&self, name: &str) -> Result<(), Error> {
        self.delete_definition_with(name, Expected::Any, None, None).await
    }

    /// Hides a definition from new runs, with preconditions that hold at the time of the commit.
    pub async fn delete_definition_with(
        &self,
        name: &str,
        expected: Expected,
        owner: Option<String>,
        by: Option<&Principal>,
    ) -> Result<(), Error> {
        let (name, by) = (name.to_owned(), by.map(Actor::from));
        self.command(Command::DeleteDefinition { name, expected, owner, by }).await?;
        self.definitions_changed();
        Ok(())
    }

    fn definitions_changed(&self) {
        self.0.definition_changes.send_modify(|changes| *changes += 1);
    }

    /// Watches the number of changes to definitions.
    pub fn definition_changes(&self) -> watch::Receiver<u64> {
        self.0.definition_changes.subscribe()
    }

    /// Returns the newest version of every definition, by name.
    pub async fn definitions(&self) -> Result<Vec<Definition>, Error> {
        self.read(|readers| readers.definitions()).await
    }

    /// Returns the newest version of every definition that is published as a tool, by name.
    pub async fn published(&self) -> Result<Vec<Definition>, Error> {
        self.read(|readers| readers.published()).await
    }

    /// Returns a version of a definition; the newest if `version` is `None`.
    pub async fn definition(&self, name: &str, version: Option<u32>) -> Result<Definition, Error> {
        let key = name.to_owned();
        let definition = self.read(move |readers| readers.definition(&key, version)).await?;
        definition.ok_or_else(|| no_definition(name))
    }

    /// Returns the versions of a definition that can be started, newest first.
    pub async fn versions(&self, name: &str) -> Result<Vec<Definition>, Error> {
        let key = name.to_owned();
        let versions = self.read(move |readers| readers.versions(&key)).await?;
        if versions.is_empty() { Err(no_definition(name)) } else { Ok(versions) }
    }

    /// Stores a schedule. It replaces the schedule of the same name. Returns the next time at which it is due, or `None` if
    /// it is paused (its `due` is `None`).
    pub async fn schedule(&self, mut schedule: Schedule) -> Result<Option<Millis>, Error> {
        schedule.principal.tools = self.0.authorizer.tools(&schedule.principal);
        self.send(|reply| Request::Schedule(Box::new(schedule), reply)).await
    }

    /// Deletes a schedule. Runs that it started continue.
    pub async fn unschedule(&self, name: &str) -> Result<(), Error> {
        self.command(Command::Unschedule { name: name.to_owned(), by: None }).await
    }

    /// The same for a user, whom the log names.
    pub async fn unschedule_by(&self, name: &str, by: &Principal) -> Result<(), Error> {
        self.command(Command::Unschedule { name: name.to_owned(), by: Some(Actor::from(by)) }).await
    }

    /// Ends the active schedules of principals that lost their rights: they stay listed with the reason and start no further
    /// runs. Returns their number.
    pub async fn end_schedules(
        &self,
        reason: &str,
        has_ended: impl Fn(&Principal) -> bool,
    ) -> Result<usize, Error> {
        let _scheduling = self.0.scheduling.lock().await;
        let mut schedules = self.schedules().await?;
        schedules.retain(|schedule| schedule.due.is_some() && has_ended(&schedule.principal));
        let count = schedules.len();
        for schedule in schedules {
            let command = Command::EndSchedule { schedule: Box::new(schedule), reason: reason.to_owned() };
            self.command(command).await?;
        }
        Ok(count)
    }

    /// Returns every schedule, by name, with the outcome of its last time.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        self.read(|readers| readers.schedules()).await
    }
}

/// Returns an error if runs of a definition could call tools outside the scope of a token. They have the rights of the
/// users who start them, not the scope.
fn check_scope(plan: &Plan, scope: &TokenScope) -> Result<(), String> {
    if let Some(tool) = plan.tools().find(|tool| !scope.has_tool(tool)) {
        return Err(format!("the definition calls `{tool}`, which the scope of this token excludes"));
    }
    let allowed = plan.settings.allowed_tools.as_ref();
    let tools = allowed.map(|tools| tools.iter().map(ToString::to_string).collect());
    let is_within = scope.contains(&TokenScope { may: scope.may.clone(), tools });
    let has_sub_workflows = plan.steps.iter().any(|step| matches!(step.kind, Kind::Workflow(_)));
    if has_sub_workflows && !is_within {
        return Err("the definition runs other workflows; a token with a scope needs `allowed_tools` within its scope for \
                    them"
            .to_owned());
    }
    Ok(())
}

/// The name of the tool as which a definition is published.
fn published_name(definition: &Definition) -> String {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    match spec["publish"]["as"].as_str() {
        Some(name) => name.to_owned(),
        None => names::workflow_name(&definition.name),
    }
}

fn no_definition(name: &str) -> Error {
    Error::NotFound(format!("there is no definition `{name}`"))
}
