//! The anchor: a small file beside the database that identifies the database and its last event.
//!
//! It is separate from the database and its WAL, so opening detects an emptied, replaced or older database. Its two
//! slots are written alternately; a torn write leaves the other slot intact.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

/// Bytes of one slot.
const SLOT_BYTES: usize = 512;
/// Bytes of both slots.
pub(super) const SLOTS_BYTES: usize = 2 * SLOT_BYTES;
/// First word of a slot.
const MAGIC: &str = "steprail-anchor-1";

/// The contents of the anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Anchor {
    /// Number of this write. The slot with the higher number is valid.
    pub write: u64,
    /// Random id of the database, also stored in it.
    pub database: String,
    /// Number of restores that led to this database, plus one.
    pub incarnation: u64,
    /// Number of the last committed event.
    pub last_event: i64,
    /// Boot of the machine during which `last_event` must exist; `None` if it was durable when it was written.
    pub boot: Option<String>,
}

/// The state of an anchor file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    /// The file is new.
    Blank,
    /// Neither slot is valid.
    Damaged,
    Anchor(Anchor),
}

impl Anchor {
    /// Reads the newer valid slot.
    pub(super) fn read(file: &File) -> io::Result<Stored> {
        let mut bytes = [0; SLOTS_BYTES];
        let mut filled = 0;
        while let read @ 1.. = file.read_at(&mut bytes[filled..], filled as u64)? {
            filled += read;
        }
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Stored::Blank);
        }
        let slots = bytes.chunks(SLOT_BYTES).filter_map(Self::parse);
        Ok(slots.max_by_key(|anchor| anchor.write).map_or(Stored::Damaged, Stored::Anchor))
    }

    /// Writes the older slot. The caller decides whether to sync.
    pub(super) fn write(&mut self, file: &File) -> io::Result<()> {
        self.write += 1;
        let mut line = self.to_line().into_bytes();
        line.resize(SLOT_BYTES, b' ');
        file.write_all_at(&line, (self.write % 2) * SLOT_BYTES as u64)
    }

    fn to_line(&self) -> String {
        let Self { write, database, incarnation, last_event, boot } = self;
        let boot = boot.as_deref().unwrap_or("-");
        let line = format!("{MAGIC} {write} {database} {incarnation} {last_event} {boot}");
        let sum = checksum(&line);
        format!("{line} {sum}\n")
    }

    fn parse(slot: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(slot).ok()?.trim_end();
        let (line, sum) = line.rsplit_once(' ')?;
        if sum != checksum(line) {
            return None;
        }
        let mut words = line.split(' ');
        let mut next = || words.next();
        if next()? != MAGIC {
            return None;
        }
        Some(Self {
            write: next()?.parse().ok()?,
            database: next()?.to_owned(),
            incarnation: next()?.parse().ok()?,
            last_event: next()?.parse().ok()?,
            boot: Some(next()?).filter(|boot| *boot != "-").map(str::to_owned),
        })
    }
}

/// The first 16 hexadecimal digits of the SHA-256 hash of a line.
fn checksum(line: &str) -> String {
    let hash = Sha256::digest(line.as_bytes());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Identifies this boot of the machine. A power failure ends it.
pub(super) fn this_boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(last_event: i64) -> Anchor {
        Anchor { write: 0, database: "d1".to_owned(), incarnation: 2, last_event, boot: None }
    }

    #[test]
    fn a_torn_write_leaves_the_slot_before_it() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(Anchor::read(&file).expect("read"), Stored::Blank);
        let mut anchor = anchor(7);
        anchor.write(&file).expect("written");
        let first = anchor.clone();
        anchor.last_event = 8;
        anchor.write(&file).expect("written");
        assert_eq!(Anchor::read(&file).expect("read"), Stored::Anchor(anchor.clone()));
        file.write_all_at(b"xxxx", (anchor.write % 2) * SLOT_BYTES as u64 + 20).expect("damage");
        assert_eq!(Anchor::read(&file).expect("read"), Stored::Anchor(first.clone()));
        file.write_all_at(b"xxxx", (first.write % 2) * SLOT_BYTES as u64 + 20).expect("damage");
        assert_eq!(Anchor::read(&file).expect("read"), Stored::Damaged);
    }
}
