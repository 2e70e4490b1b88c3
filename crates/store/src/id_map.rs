//! Hash maps whose keys are ids that the engine creates: runs, calls and numbers.
//!
//! Nobody outside chooses these keys, so the maps need no protection against chosen collisions, and a few multiplications
//! are enough. A map with keys that users choose must not use this hasher.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by ids that the engine creates.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// The hasher of an [`IdMap`].
#[derive(Debug, Default, Clone, Copy)]
pub struct IdHasher(u64);

/// An odd number with bits that follow no pattern: the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl IdHasher {
    fn add(&mut self, number: u64) {
        let (low, high) = (self.0 ^ number).carrying_mul(MULTIPLIER, 0);
        // The map uses the highest and the lowest bits. Each half alone would have bits that depend on few others.
        self.0 = low ^ high;
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        chunks.iter().for_each(|chunk| self.add(u64::from_le_bytes(*chunk)));
        rest.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_i64(&mut self, number: i64) {
        self.add(number.cast_unsigned());
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number.cast_unsigned() as u64);
    }

    /// The length of an array adds nothing: all keys of a map have the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use uuid::Uuid;

    use super::IdHasher;
    use crate::{RunId, Wanted};

    /// The lowest bits choose the bucket, and the highest ones distinguish the entries of a bucket.
    #[test]
    fn similar_ids_have_different_hashes() {
        let build = BuildHasherDefault::<IdHasher>::default();
        let run = |number: u128| build.hash_one(RunId(Uuid::from_u128((0x0198 << 112) + number)));
        let runs: Vec<u64> = (0..1_000).map(run).chain((1..1_000).map(|n| run(n << 64))).collect();
        let values = (0..1_000).flat_map(|n| [Wanted::Input(n), Wanted::Output(n)]);
        let values: Vec<u64> = values.map(|wanted| build.hash_one(wanted)).collect();
        for hashes in [runs, values] {
            let buckets: BTreeSet<u64> = hashes.iter().map(|hash| hash % 4_096).collect();
            let tags: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // 2,000 random hashes occupy about 1,580 of 4,096 buckets.
            assert!(buckets.len() > 1_400, "{} buckets", buckets.len());
            assert_eq!(tags.len(), 128);
        }
    }
}
