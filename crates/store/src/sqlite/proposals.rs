//! Proposals in SQLite: definitions by agents that wait for a person.

use rusqlite::{Connection, OptionalExtension, Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use super::{bindings, rows};
use crate::{DefinitionQuery, NewDefinition, Proposal, Refused, RowKind, StoreError, preconditions};

pub(super) const COLUMNS: &str = "name, hash, spec_json, created_at, created_by, via";
/// The number of [`COLUMNS`].
const COLUMN_COUNT: usize = 6;

/// Stores a proposal.
pub(super) fn put(connection: &Connection, new: &NewDefinition, now: Millis) -> Result<(), Refused> {
    let newest = super::definitions::find(connection, DefinitionQuery::Newest(&new.name))?;
    let deleted = super::definitions::find_deleted(connection, &new.name)?;
    preconditions::check_name(new, newest.as_ref(), deleted.as_ref())?;
    let proposed_by = owner(connection, &new.name)?;
    preconditions::check_proposer(new, proposed_by.as_deref())?;
    if proposed_by.is_none() {
        let sql = "SELECT count(*), count(iif(created_by = ?1, 1, NULL)) FROM definition_proposals";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (all, of_user) = connection.prepare_cached(sql)?.query_row([&new.by.id], read)?;
        preconditions::check_proposal_limits(all, of_user)?;
    }
    let sql =
        format!("INSERT OR REPLACE INTO definition_proposals ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
    connection.prepare_cached(&sql)?.execute(params![
        new.name,
        new.hash.to_string(),
        &*new.spec_json,
        now,
        new.by.id,
        new.by.via
    ])?;
    Ok(())
}

fn owner(connection: &Connection, name: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT created_by FROM definition_proposals WHERE name = ?1";
    Ok(connection.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()?)
}

/// Removes a proposal that has a hash. Its row must be what the log says.
pub(super) fn close(connection: &Connection, name: &str, hash: Hash) -> Result<(), Refused> {
    let found = find(connection, name)?;
    preconditions::check_proposal(name, found.map(|found| found.hash), hash)?;
    connection.prepare_cached("DELETE FROM definition_proposals WHERE name = ?1")?.execute([name])?;
    Ok(())
}

/// The proposal for a name.
pub(super) fn find(connection: &Connection, name: &str) -> Result<Option<Proposal>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM definition_proposals WHERE name = ?1");
    let read = |row: &Row<'_>| {
        let (id, content) = bindings::content(row, COLUMN_COUNT)?;
        bindings::check(connection, RowKind::Proposal, &id, content)?;
        read(row)
    };
    Ok(rows::all(connection, &sql, [name], read)?.pop())
}

/// Every proposal, by name.
pub(super) fn all(connection: &Connection) -> Result<Vec<Proposal>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM definition_proposals ORDER BY name");
    rows::all(connection, &sql, [], read)
}

fn read(row: &Row<'_>) -> Result<Proposal, StoreError> {
    Ok(Proposal {
        name: row.get(0)?,
        hash: rows::hash_from_text(row.get_ref(1)?.as_str().map_err(rows::damaged)?)?,
        spec_json: row.get(2)?,
        created_at: row.get(3)?,
        created_by: row.get(4)?,
        via: row.get(5)?,
    })
}
