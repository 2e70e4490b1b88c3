//! The preconditions of changes of definitions, for every store.

use steprail_core::plan::Hash;

use crate::limits::{PROPOSALS, PROPOSALS_PER_USER};
use crate::{Actor, Conflict, Definition, Expected, NewDefinition, Refused, VersionPin};

/// Checks that a name may be given a new version. The name of a deleted definition still belongs to its owner: runs,
/// clients and people know it.
pub(crate) fn check_name(
    new: &NewDefinition,
    newest: Option<&Definition>,
    deleted: Option<&Definition>,
) -> Result<(), Refused> {
    check(&new.name, newest, new.expected, new.owner.as_deref())?;
    check_owner(newest.or(deleted), new.owner.as_deref())
}

/// Checks the preconditions of a change against the newest version.
pub(crate) fn check(
    name: &str,
    newest: Option<&Definition>,
    expected: Expected,
    owner: Option<&str>,
) -> Result<(), Refused> {
    let version = newest.map(|newest| newest.version);
    let is_expected = match expected {
        Expected::Any => true,
        Expected::Absent => version.is_none(),
        Expected::Version(expected) => version == Some(expected),
    };
    if !is_expected {
        return Err(Refused::Conflict(Conflict::Version { name: name.to_owned(), newest: version }));
    }
    check_owner(newest, owner)
}

fn check_owner(last: Option<&Definition>, owner: Option<&str>) -> Result<(), Refused> {
    match last {
        Some(last) if owner.is_some_and(|owner| owner != last.created_by) => {
            Err(Refused::Conflict(Conflict::Owned { name: last.name.clone(), by: last.created_by.clone() }))
        }
        _ => Ok(()),
    }
}

/// Checks that an agent does not change the definition of a person.
pub(crate) fn check_agent(newest: Option<&Definition>, by: Option<&Actor>) -> Result<(), Refused> {
    match newest {
        Some(newest) if !newest.by_agent && by.is_some_and(|by| by.agent) => {
            Err(Refused::Conflict(Conflict::OfPerson { name: newest.name.clone() }))
        }
        _ => Ok(()),
    }
}

/// Whether a definition to store is the same as a stored version: its hash is, and no tool or sub-workflow has changed.
pub(crate) fn is_same(new: &NewDefinition, known: &Definition) -> bool {
    let is_other = |(tool, hash): (&String, &Hash)| new.pins.get(tool).is_some_and(|now| now != hash);
    let is_other_version =
        |(name, pin): (&String, &VersionPin)| new.workflows.get(name).is_some_and(|now| now != pin);
    known.hash == new.hash
        && !known.pins.iter().any(is_other)
        && !known.workflows.iter().any(is_other_version)
}

/// Whether the pins of a definition to store add nothing to those of a stored version.
pub(crate) fn is_pinned(new: &NewDefinition, known: &Definition) -> bool {
    new.pins.keys().all(|tool| known.pins.contains_key(tool))
        && new.workflows.keys().all(|name| known.workflows.contains_key(name))
}

/// Checks that the proposal for a name has a hash.
pub(crate) fn check_proposal(name: &str, found: Option<Hash>, expected: Hash) -> Result<(), Refused> {
    if found == Some(expected) {
        return Ok(());
    }
    Err(Refused::Conflict(Conflict::Proposal { name: name.to_owned(), changed: found.is_some() }))
}

/// Checks that another proposal may wait: of all users, and of one.
pub(crate) fn check_proposal_limits(all: usize, of_user: usize) -> Result<(), Refused> {
    if all >= PROPOSALS || of_user >= PROPOSALS_PER_USER {
        return Err(Refused::Conflict(Conflict::ProposalLimit));
    }
    Ok(())
}

/// Checks that no other user has a proposal for the name.
pub(crate) fn check_proposer(new: &NewDefinition, proposed_by: Option<&str>) -> Result<(), Refused> {
    match proposed_by {
        Some(by) if by != new.by.id => {
            Err(Refused::Conflict(Conflict::Owned { name: new.name.clone(), by: by.to_owned() }))
        }
        _ => Ok(()),
    }
}
