//! Which version of a definition a `workflow` step or a schedule runs, and whether its author may still call its tools.

use steprail_core::plan::{Kind, Plan, Workflow};
use steprail_core::run::{Failure, FailureKind};
use steprail_core::steps::WorkflowVersion;
use steprail_store::{
    Commit, Definition, DefinitionChange, DefinitionQuery, Refused, StoreError, VersionPin, WorkflowPins,
};

use super::batch::Batch;
use super::definitions::Compiled;
use crate::calls::check_author;
use crate::error::Error;
use crate::ports::Authorizer;

/// The code of failures of definitions whose author lost a right.
pub(super) const AUTHOR_DENIED: &str = "author_denied";

/// The version that a step runs.
pub(super) struct Resolved {
    pub definition: Definition,
    /// The version to keep from now on, if the sub-workflow did not exist when the enclosing definition was stored.
    late: Option<(String, VersionPin)>,
}

/// A definition, or why there is none.
type Found = Result<Result<Definition, Failure>, StoreError>;

/// Finds the version that a step of a definition runs.
pub(super) fn resolve(
    batch: &mut Batch,
    enclosing: &Compiled,
    workflow: &Workflow,
) -> Result<Result<Resolved, Failure>, StoreError> {
    let kept = |definition| Resolved { definition, late: None };
    let newest = DefinitionQuery::Newest(&workflow.name);
    let Some(key) = workflow.pin_key() else {
        return Ok(followed(batch, enclosing, workflow, newest)?.map(kept));
    };
    if let Some(pin) = enclosing.workflows.get(&key) {
        return Ok(pinned(batch, &workflow.name, *pin)?.map(kept));
    }
    let stored = batch.definition(DefinitionQuery::Id(enclosing.id))?;
    if let Some(pin) = stored.as_ref().and_then(|stored| stored.workflows.get(&key)) {
        return Ok(pinned(batch, &workflow.name, *pin)?.map(kept));
    }
    // A definition that runs itself runs the same version.
    let is_own = |own: &Definition| own.name == *workflow.name && workflow.version.is_none() && !own.deleted;
    if let Some(own) = stored.filter(is_own) {
        return Ok(Ok(kept(own)));
    }
    let found = followed(batch, enclosing, workflow, wanted(workflow))?;
    Ok(found.map(|definition| {
        let late = Some((key, VersionPin::from(&definition)));
        Resolved { definition, late }
    }))
}

/// Keeps the version that a step runs for the first time.
pub(super) fn keep(
    batch: &mut Batch,
    enclosing: &Compiled,
    resolved: &mut Resolved,
    now: i64,
) -> Result<(), StoreError> {
    let Some((key, pin)) = resolved.late.take() else { return Ok(()) };
    let (id, workflows) = (enclosing.id, WorkflowPins::from([(key, pin)]));
    let definitions = vec![DefinitionChange::PinWorkflows { id, workflows }];
    match batch.store().commit(&Commit { now, definitions, ..Commit::default() }) {
        Ok(_) => Ok(()),
        Err(Refused::Unavailable(error)) => Err(error),
        Err(_) => Err(StoreError::Other("the version of a sub-workflow was not stored".to_owned())),
    }
}

/// The versions of sub-workflows that a definition keeps when it is stored: those that exist.
pub(super) fn pins(
    batch: &mut Batch,
    plan: &Plan,
    owner: &str,
    by_agent: bool,
) -> Result<Result<WorkflowPins, Error>, StoreError> {
    let mut pins = WorkflowPins::new();
    for step in &plan.steps {
        let Kind::Workflow(workflow) = &step.kind else { continue };
        let found = match batch.definition(wanted(workflow)) {
            // The other requests of the batch are not affected.
            Err(error @ StoreError::Corrupt(_)) => return Ok(Err(Error::Storage(error))),
            found => found?,
        };
        let Some(found) = found else { continue };
        match workflow.pin_key() {
            None => {
                if let Err(reason) = may_follow(owner, by_agent, &found) {
                    return Ok(Err(Error::Denied(format!("step `{}`: {reason}", step.id))));
                }
            }
            Some(key) => pin_workflow(&mut pins, plan, key, &found),
        }
    }
    Ok(Ok(pins))
}

/// The version that a step runs if the enclosing definition is stored now.
fn wanted(workflow: &Workflow) -> DefinitionQuery<'_> {
    match workflow.version {
        Some(WorkflowVersion::Number(version)) => DefinitionQuery::Version(&workflow.name, version),
        _ => DefinitionQuery::Newest(&workflow.name),
    }
}

/// Keeps the version of a sub-workflow. A definition that runs itself runs the version that is stored.
pub(crate) fn pin_workflow(pins: &mut WorkflowPins, plan: &Plan, key: String, found: &Definition) {
    if key != *plan.name {
        pins.insert(key, VersionPin::from(found));
    }
}

/// The version that was kept. Another one with the same number does not count.
pub(super) fn pinned(batch: &mut Batch, name: &str, pin: VersionPin) -> Found {
    let found = batch.definition(DefinitionQuery::Version(name, pin.version))?;
    Ok(found.filter(|found| found.hash == pin.hash).ok_or_else(|| {
        let message = format!("version {} of the workflow `{name}` was deleted", pin.version);
        Failure::new(FailureKind::NotFound, message)
    }))
}

/// A version that the enclosing definition does not keep, which needs the same owner.
fn followed(
    batch: &mut Batch,
    enclosing: &Compiled,
    workflow: &Workflow,
    which: DefinitionQuery<'_>,
) -> Found {
    let Some(found) = batch.definition(which)? else {
        let message = format!("there is no workflow `{}`; define it first", workflow.name);
        return Ok(Err(Failure::new(FailureKind::NotFound, message)));
    };
    let denied = |reason| Failure::new(FailureKind::Permission, reason);
    Ok(may_follow(&enclosing.author, enclosing.by_agent, &found).map_err(denied).map(|()| found))
}

/// Returns an error unless an owner may follow the versions of a definition. Otherwise whoever owns the definition would
/// decide what the runs of the other owner do, and an agent what the runs of a person do.
pub(super) fn may_follow(owner: &str, by_agent: bool, newest: &Definition) -> Result<(), String> {
    let Definition { name, created_by, .. } = newest;
    if created_by != owner {
        return Err(format!(
            "the workflow `{name}` belongs to {created_by}, not to {owner}, so its newest version is not followed; store \
             the definition again without `version: latest` to keep the current version"
        ));
    }
    if newest.by_agent && !by_agent {
        return Err(format!(
            "an agent stored the workflow `{name}`, so the definition of a person does not follow its newest version; \
             store the definition again without `version: latest` to keep the current version"
        ));
    }
    Ok(())
}

/// Returns an error if the author of a definition may no longer call one of its tools. A user's own definition has the
/// rights of the user anyway.
pub(super) fn check_authorship(
    authorizer: &dyn Authorizer,
    compiled: &Compiled,
    starter: &str,
) -> Result<(), Error> {
    let author = &*compiled.author;
    if author == starter {
        return Ok(());
    }
    let denied = compiled.plan.tools().find(|tool| check_author(authorizer, author, tool).is_err());
    match denied {
        Some(tool) => Err(Error::AuthorDenied {
            definition: compiled.plan.name.to_string(),
            author: author.to_owned(),
            tool: tool.to_owned(),
        }),
        None => Ok(()),
    }
}
