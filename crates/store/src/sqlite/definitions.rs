//! Definitions in SQLite: versions of a name, their owner, and the preconditions of a change.

use rusqlite::{Connection, Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use super::{bindings, rows};
use crate::{
    Actor, Conflict, Definition, DefinitionQuery, Expected, NewDefinition, Refused, StoreError, WorkflowPins,
    preconditions,
};

/// Finds a definition.
pub(super) fn find(
    connection: &Connection,
    which: DefinitionQuery<'_>,
) -> Result<Option<Definition>, StoreError> {
    Ok(find_bound(connection, which)?.map(|(definition, _)| definition))
}

/// Finds a definition with the hash of its row.
pub(super) fn find_bound(
    connection: &Connection,
    which: DefinitionQuery<'_>,
) -> Result<Option<(Definition, Hash)>, StoreError> {
    let columns = rows::DEFINITION;
    let read = |row: &Row<'_>| {
        let (_, content) = bindings::content(row, rows::DEFINITION_COLUMNS)?;
        Ok((rows::definition(row)?, content))
    };
    let found = match which {
        DefinitionQuery::Id(id) => {
            let sql = format!("SELECT {columns} FROM workflow_definitions WHERE id = ?1");
            rows::all(connection, &sql, [id], read)
        }
        DefinitionQuery::Newest(name) => {
            let sql = format!(
                "SELECT {columns} FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NULL
                 ORDER BY version DESC LIMIT 1"
            );
            rows::all(connection, &sql, [name], read)
        }
        DefinitionQuery::Version(name, version) => {
            let sql = format!(
                "SELECT {columns} FROM workflow_definitions WHERE name = ?1 AND version = ?2
                 AND deleted_at IS NULL"
            );
            rows::all(connection, &sql, params![name, version], read)
        }
    };
    Ok(found?.pop())
}

/// Stores a version. A version that is the same as the newest one, or a hidden one that exists, is not added again.
pub(super) fn put(connection: &Connection, new: &NewDefinition, now: Millis) -> Result<Definition, Refused> {
    let known = if new.hidden {
        find_hidden(connection, new)?
    } else {
        let newest = find(connection, DefinitionQuery::Newest(&new.name))?;
        let deleted = find_deleted(connection, &new.name)?;
        preconditions::check_name(new, newest.as_ref(), deleted.as_ref())?;
        preconditions::check_agent(newest.as_ref().or(deleted.as_ref()), Some(&new.by))?;
        newest
    };
    if let Some(known) = known.filter(|known| preconditions::is_same(new, known)) {
        return Ok(pin(connection, known, new)?);
    }
    Ok(insert(connection, new, now)?)
}

/// Hides all versions of a definition from new runs. Returns their ids.
pub(super) fn delete(
    connection: &Connection,
    name: &str,
    expected: Expected,
    owner: Option<&str>,
    by: Option<&Actor>,
    now: Millis,
) -> Result<Vec<String>, Refused> {
    let newest = find(connection, DefinitionQuery::Newest(name))?;
    if newest.is_none() {
        return Err(Refused::Conflict(Conflict::NoDefinition(name.to_owned())));
    }
    preconditions::check(name, newest.as_ref(), expected, owner)?;
    preconditions::check_agent(newest.as_ref(), by)?;
    let ids = current(connection, name)?;
    // A version that was never offered has both times from the same commit.
    let sql = "UPDATE workflow_definitions SET deleted_at = max(?2, created_at + 1)
               WHERE name = ?1 AND deleted_at IS NULL";
    connection.prepare_cached(sql)?.execute(params![name, now])?;
    Ok(ids)
}

/// The last version of a name that was deleted.
pub(super) fn find_deleted(connection: &Connection, name: &str) -> Result<Option<Definition>, StoreError> {
    let sql = format!(
        "SELECT {} FROM workflow_definitions WHERE name = ?1 AND deleted_at > created_at
         ORDER BY version DESC LIMIT 1",
        rows::DEFINITION
    );
    Ok(rows::all(connection, &sql, [name], rows::definition)?.pop())
}

/// A hidden version of the same author: the author's rights restrict the runs.
fn find_hidden(connection: &Connection, new: &NewDefinition) -> Result<Option<Definition>, StoreError> {
    let sql = format!(
        "SELECT {} FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NOT NULL AND hash = ?2
         AND created_by = ?3 AND by_agent = ?4 ORDER BY version DESC LIMIT 1",
        rows::DEFINITION
    );
    let params = params![new.name, new.hash.to_string(), new.by.id, new.by.agent];
    Ok(rows::all(connection, &sql, params, rows::definition)?.pop())
}

/// Adds pins of tools and sub-workflows that were unknown when the version was stored.
fn pin(
    connection: &Connection,
    mut known: Definition,
    new: &NewDefinition,
) -> Result<Definition, StoreError> {
    if preconditions::is_pinned(new, &known) {
        return Ok(known);
    }
    known.pins.extend(new.pins.iter().map(|(tool, hash)| (tool.clone(), *hash)));
    let sql = "UPDATE workflow_definitions SET pins_json = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![known.id, serde_json::to_string(&known.pins)?])?;
    pin_workflows(connection, known, &new.workflows)
}

/// Adds versions of sub-workflows. A name that has one keeps it.
pub(super) fn pin_workflows(
    connection: &Connection,
    mut known: Definition,
    workflows: &WorkflowPins,
) -> Result<Definition, StoreError> {
    for (name, pin) in workflows {
        known.workflows.entry(name.clone()).or_insert(*pin);
    }
    let sql = "UPDATE workflow_definitions SET workflows_json = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![known.id, json(&known.workflows)?])?;
    Ok(known)
}

/// The versions of sub-workflows as they are stored: NULL if there are none.
fn json(workflows: &WorkflowPins) -> Result<Option<String>, StoreError> {
    let stored = (!workflows.is_empty()).then(|| serde_json::to_string(workflows)).transpose();
    Ok(stored?)
}

/// Makes a user the owner and author of all versions. Returns their ids and the owner before.
pub(super) fn adopt(
    connection: &Connection,
    name: &str,
    expected: Expected,
    by: &Actor,
) -> Result<(Vec<String>, String), Refused> {
    let Some(newest) = find(connection, DefinitionQuery::Newest(name))? else {
        return Err(Refused::Conflict(Conflict::NoDefinition(name.to_owned())));
    };
    preconditions::check(name, Some(&newest), expected, None)?;
    let ids = current(connection, name)?;
    let sql = "UPDATE workflow_definitions SET created_by = ?2, by_agent = ?3 WHERE name = ?1 AND deleted_at IS NULL";
    connection.prepare_cached(sql)?.execute(params![name, by.id, by.agent])?;
    Ok((ids, newest.created_by))
}

/// The ids of the versions that can be started.
fn current(connection: &Connection, name: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT id FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NULL";
    rows::all(connection, sql, [name], |row| Ok(row.get::<_, i64>(0)?.to_string()))
}

fn insert(connection: &Connection, new: &NewDefinition, now: Millis) -> Result<Definition, StoreError> {
    let sql = "INSERT INTO workflow_definitions (name, version, hash, spec_json, created_at, created_by, deleted_at,
                   published, pins_json, by_agent, workflows_json)
               VALUES (?1, (SELECT coalesce(max(version), 0) + 1 FROM workflow_definitions WHERE name = ?1),
                   ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    connection.prepare_cached(sql)?.execute(params![
        new.name,
        new.hash.to_string(),
        &*new.spec_json,
        now,
        new.by.id,
        new.hidden.then_some(now),
        new.published,
        serde_json::to_string(&new.pins)?,
        new.by.agent,
        json(&new.workflows)?
    ])?;
    let id = connection.last_insert_rowid();
    let inserted = find(connection, DefinitionQuery::Id(id))?;
    inserted.ok_or_else(|| StoreError::Other("a definition was not stored".to_owned()))
}

/// The newest version of every definition that can be started, by name; only published ones if `published`.
pub(super) fn newest(connection: &Connection, published: bool) -> Result<Vec<Definition>, StoreError> {
    let published = if published { "published = 1 AND" } else { "" };
    let sql = format!(
        "SELECT {} FROM workflow_definitions d WHERE {published} deleted_at IS NULL AND version =
         (SELECT max(version) FROM workflow_definitions WHERE name = d.name AND deleted_at IS NULL)
         ORDER BY name",
        rows::DEFINITION
    );
    rows::all(connection, &sql, [], |row: &Row<'_>| rows::definition(row))
}
