//! Ids that count up: every test sees the same ones.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use uuid::{Builder, Uuid};

use crate::env::IdSource;

/// Ids that count up. They are all distinct; v7 ones sort by their time, and those of one time by the order in which
/// they were made; the first digits of v4 ones differ, as those of random ids do.
#[derive(Debug, Default)]
pub struct SequentialIds {
    made: AtomicU64,
}

impl SequentialIds {
    fn count(&self) -> u64 {
        self.made.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl IdSource for SequentialIds {
    fn uuid_v4(&self) -> Uuid {
        let count = self.count();
        let mut bytes = [0; 16];
        // The scrambled half tells ids apart at a glance; the counter, of which nothing is overwritten, for certain.
        bytes[..8].copy_from_slice(&scrambled(count).to_be_bytes());
        bytes[9..].copy_from_slice(&count.to_be_bytes()[1..]);
        Builder::from_random_bytes(bytes).into_uuid()
    }

    fn uuid_v7(&self, now: Timestamp) -> Uuid {
        let mut counter = [0; 10];
        counter[3..].copy_from_slice(&self.count().to_be_bytes()[1..]);
        let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or_default();
        Builder::from_unix_timestamp_millis(milliseconds, &counter).into_uuid()
    }
}

/// One step of `SplitMix64`: the same every time, and without a pattern to the eye.
fn scrambled(count: u64) -> u64 {
    let step = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (step ^ (step >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing;

    #[test]
    fn ids_are_valid_and_distinct() {
        let ids = SequentialIds::default();
        let made: Vec<_> = (0..1_000).map(|_| ids.uuid_v4()).collect();
        assert!(
            made.iter().all(|id| id.get_version_num() == 4 && id.get_variant() == uuid::Variant::RFC4122)
        );
        assert_eq!(made.iter().collect::<HashSet<_>>().len(), made.len());
        let again = SequentialIds::default();
        assert!(made.iter().all(|id| *id == again.uuid_v4()), "two sources differ");
    }

    #[test]
    fn v7_ids_sort_by_time_and_then_by_order() {
        let (env, clock) = testing::env();
        let mut made = Vec::new();
        for _ in 0..3 {
            made.extend((0..300).map(|_| env.ids.uuid_v7(env.now())));
            clock.advance(jiff::SignedDuration::from_millis(1));
        }
        assert!(made.iter().all(|id| id.get_version_num() == 7));
        assert!(made.is_sorted_by(|a, b| a < b));
    }
}
