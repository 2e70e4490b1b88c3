//! The identity of a database, stored in `steprail_meta`.

use std::fs::File;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use steprail_core::run::Millis;

use super::admin::LogEnd;
use super::anchor::{Anchor, Stored, this_boot};
use crate::{ChainHead, RestoredBackup, StoreError};

/// Key of the time of the restored backup. It exists until the unfinished runs are interrupted.
pub(super) const PARK: &str = "park_restored_from";
/// Key of the time at which a backup was made. It marks a file as a backup.
pub(super) const BACKUP_AT: &str = "backup_at";

/// The identity of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// Random id of the database, kept by backups and restores.
    pub database: String,
    /// Number of restores that led to this database, plus one.
    pub incarnation: u64,
    /// Number of the last event.
    pub last_event: i64,
    /// Whether this is a backup that was not restored.
    pub is_backup: bool,
}

impl Identity {
    /// Reads the identity. `None` if the file has no tables.
    pub(super) fn read(connection: &Connection) -> Result<Option<Self>, StoreError> {
        let has_tables = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'steprail_meta')";
        if !connection.query_row(has_tables, [], |row| row.get::<_, bool>(0))? {
            return Ok(None);
        }
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        Ok(Some(Self {
            database: get(connection, "database")?.unwrap_or_default(),
            incarnation: number(get(connection, "incarnation")?).unwrap_or_default(),
            last_event: last_event(connection)?,
            is_backup: get(connection, BACKUP_AT)?.is_some(),
        }))
    }

    /// Gives a new database its id and its first incarnation.
    pub(super) fn create(connection: &Connection) -> Result<(), StoreError> {
        connection.execute_batch(
            "INSERT OR IGNORE INTO steprail_meta (key, value)
             VALUES ('database', lower(hex(randomblob(16)))), ('incarnation', '1')",
        )?;
        Ok(())
    }

    /// Starts a new incarnation in a restored database, greater than all known ones. The next engine interrupts its
    /// unfinished runs.
    pub(super) fn start_incarnation(connection: &Connection, stored: &Stored) -> Result<Self, StoreError> {
        Self::create(connection)?;
        let none = || StoreError::Other("the database has no tables".to_owned());
        let mut identity = Self::read(connection)?.ok_or_else(none)?;
        let known = if let Stored::Anchor(anchor) = stored { anchor.incarnation } else { 0 };
        identity.incarnation = identity.incarnation.max(known) + 1;
        let backup_at = get(connection, BACKUP_AT)?;
        let backup_at = backup_at
            .map_or_else(|| Ok(last_time(connection)?.unwrap_or(0).to_string()), Ok::<_, StoreError>)?;
        set(connection, PARK, &backup_at)?;
        set(connection, "incarnation", &identity.incarnation.to_string())?;
        remove(connection, BACKUP_AT)?;
        identity.is_backup = false;
        Ok(identity)
    }

    /// The anchor of this database.
    pub(super) fn anchor(&self, stored: &Stored) -> Anchor {
        Anchor {
            write: if let Stored::Anchor(known) = stored { known.write } else { 0 },
            database: self.database.clone(),
            incarnation: self.incarnation,
            last_event: self.last_event,
            boot: None,
        }
    }

    /// Why an anchor does not describe this database; `None` if it does.
    pub(super) fn mismatch(found: Option<&Self>, stored: &Stored) -> Option<String> {
        let anchor = match (stored, found) {
            (_, Some(found)) if found.is_backup => {
                return Some(
                    "the file is a backup that was copied here without `steprail restore`".to_owned(),
                );
            }
            (Stored::Damaged, _) => return Some("its anchor file is damaged".to_owned()),
            (Stored::Blank, Some(found)) if found.last_event > 0 => {
                return Some("its anchor file is missing".to_owned());
            }
            (Stored::Blank, _) => return None,
            (Stored::Anchor(anchor), _) => anchor,
        };
        let Some(found) = found else {
            return Some(format!("the file is empty, and the database had {} events", anchor.last_event));
        };
        found.differs_from(anchor)
    }

    fn differs_from(&self, anchor: &Anchor) -> Option<String> {
        if self.database != anchor.database {
            return Some("the file is another database".to_owned());
        }
        if self.incarnation != anchor.incarnation {
            let (found, known) = (self.incarnation, anchor.incarnation);
            return Some(format!("the file has incarnation {found}, and the anchor has {known}"));
        }
        // With `durability: process`, a power failure can lose events that were only in the page cache.
        let is_binding = anchor.boot.as_ref().is_none_or(|boot| *boot == this_boot());
        if is_binding && self.last_event < anchor.last_event {
            let (found, known) = (self.last_event, anchor.last_event);
            return Some(format!(
                "the file is an older copy, or its write-ahead log is missing: it ends at event {found}, and event \
                 {known} was committed"
            ));
        }
        None
    }
}

/// The number of the last event, including events of deleted runs.
pub(super) fn last_event(connection: &Connection) -> Result<i64, StoreError> {
    Ok(connection.query_row("SELECT coalesce(max(id), 0) FROM workflow_log", [], |row| row.get(0))?)
}

/// The last row that the anchor beside a database says was committed. `None` if there is no anchor that binds it.
pub(super) fn anchored_row(connection: &Connection, database: &Path) -> Result<Option<i64>, StoreError> {
    let Some(identity) = Identity::read(connection)? else { return Ok(None) };
    let Ok(file) = File::open(super::beside(database, "-anchor")) else { return Ok(None) };
    let Ok(Stored::Anchor(anchor)) = Anchor::read(&file) else { return Ok(None) };
    let is_same = anchor.database == identity.database && anchor.incarnation == identity.incarnation;
    let is_binding = anchor.boot.as_ref().is_none_or(|boot| *boot == this_boot());
    Ok((is_same && is_binding).then_some(anchor.last_event))
}

/// The end of the hash chain.
pub(super) fn chain_head(connection: &Connection) -> Result<ChainHead, StoreError> {
    let none = || StoreError::Other("the database has no tables".to_owned());
    let Identity { database, incarnation, .. } = Identity::read(connection)?.ok_or_else(none)?;
    let LogEnd { chain, last_row, .. } = LogEnd::read(connection)?;
    Ok(ChainHead { database, incarnation, row: last_row, hash: chain })
}

/// The time of the last event.
pub(super) fn last_time(connection: &Connection) -> Result<Option<Millis>, StoreError> {
    let sql = "SELECT at FROM workflow_log ORDER BY id DESC LIMIT 1";
    Ok(connection.query_row(sql, [], |row| row.get(0)).optional()?)
}

/// The restore after which no engine has interrupted the unfinished runs yet.
pub(super) fn pending_restore(connection: &Connection) -> Result<Option<RestoredBackup>, StoreError> {
    let Some(backup_at) = get(connection, PARK)?.and_then(|text| text.parse().ok()) else { return Ok(None) };
    let incarnation = get(connection, "incarnation")?.and_then(|text| text.parse().ok()).unwrap_or_default();
    Ok(Some(RestoredBackup { incarnation, backup_at }))
}

/// A value of `steprail_meta`.
pub(super) fn get(connection: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT value FROM steprail_meta WHERE key = ?1";
    Ok(connection.query_row(sql, [key], |row| row.get(0)).optional()?)
}

/// Sets a value of `steprail_meta`.
pub(super) fn set(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO steprail_meta (key, value) VALUES (?1, ?2)";
    connection.execute(sql, [key, value])?;
    Ok(())
}

/// Removes a value of `steprail_meta`.
pub(super) fn remove(connection: &Connection, key: &str) -> Result<(), StoreError> {
    connection.execute("DELETE FROM steprail_meta WHERE key = ?1", [key])?;
    Ok(())
}
