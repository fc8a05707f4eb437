//! Where in a map a session lies. Ids are random and made by us, so they are folded into a number: no secret key is needed
//! against ids that are chosen to collide, and a lookup is a fraction of the default's.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps by [`SessionId`](session_core::SessionId), and nothing that a caller chooses.
pub(super) type Spread = BuildHasherDefault<Fold>;

/// Folds words into one: multiplied to twice their width, both halves together.
#[derive(Debug, Default)]
pub(super) struct Fold(u64);

impl Fold {
    /// 2^64 divided by the golden ratio: odd, with its bits in no order.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    fn fold(&mut self, word: u64) {
        let (low, high) = (self.0 ^ word).carrying_mul(Self::FACTOR, 0);
        // The upper bits of a word are in the upper half alone, the lower ones best in both.
        self.0 = low ^ high;
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        for &byte in rest {
            self.fold(byte.into());
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher as _;

    use session_core::SessionId;

    use super::*;

    fn ids(make: impl Fn(u32) -> u128) -> Vec<u64> {
        let id = |number: u128| -> SessionId { format!("ses_{number:032x}").parse().unwrap() };
        (0..4_096).map(|number| Spread::default().hash_one(id(make(number)))).collect()
    }

    #[test]
    fn ids_spread_over_the_bits_that_a_map_takes_wherever_they_differ() {
        for shift in [0, 20, 52, 64, 90, 114] {
            let hashes = ids(|number| u128::from(number) << shift | 1 << 127);
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len(), "shifted by {shift}");
            // Thrown at random they would take 2 590 places; even those that differ in a few bits take a third.
            let places: HashSet<_> = hashes.iter().map(|hash| hash % 4_096).collect();
            assert!(places.len() > 1_365, "{} places, shifted by {shift}", places.len());
            let tags: HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(tags.len() > 120, "{} tags, shifted by {shift}", tags.len());
        }
    }

    #[test]
    fn every_byte_counts_and_so_does_its_place() {
        let hash = |bytes: &[u8]| {
            let mut fold = Fold::default();
            fold.write(bytes);
            fold.finish()
        };
        let different =
            [&b"12345678ab"[..], b"12345678ba", b"12345678a", b"abcdefgh12345678", b"12345678abcdefgh"];
        assert_eq!(different.map(hash).into_iter().collect::<HashSet<_>>().len(), different.len());
    }
}
