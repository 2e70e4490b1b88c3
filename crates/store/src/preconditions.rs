//! The preconditions of changes of definitions, for every store.

use steprail_core::plan::Hash;

use crate::{Actor, Conflict, Definition, Expected, NewDefinition, Refused};

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
    match newest {
        Some(newest) if owner.is_some_and(|owner| owner != newest.created_by) => {
            Err(Refused::Conflict(Conflict::Owned { name: name.to_owned(), by: newest.created_by.clone() }))
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

/// Whether a definition to store is the same as a stored version: its hash is, and no tool has changed.
pub(crate) fn is_same(new: &NewDefinition, known: &Definition) -> bool {
    let is_other = |(tool, hash): (&String, &Hash)| new.pins.get(tool).is_some_and(|now| now != hash);
    known.hash == new.hash && !known.pins.iter().any(is_other)
}
