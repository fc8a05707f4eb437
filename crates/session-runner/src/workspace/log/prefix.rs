//! What stands before the text of a record, for whoever writes many.

use std::io::Write as _;

use jiff::Timestamp;

use super::record::Stream;

/// Everything of a record that stands before its text. The same for all records of one moment.
#[derive(Debug)]
pub(super) struct Prefixes {
    full: Vec<u8>,
    partial: Vec<u8>,
}

impl Prefixes {
    pub(super) fn new(at: Timestamp, stream: Stream) -> Self {
        let mut full = Vec::with_capacity(40);
        // Writing to a vector cannot fail.
        let _infallible = write!(full, "{at:.3} {stream} F ");
        let mut partial = full.clone();
        if let Some(flag) = partial.len().checked_sub(2).and_then(|flag| partial.get_mut(flag)) {
            *flag = b'P';
        }
        Self { full, partial }
    }

    /// Appends one record to what is about to be written.
    pub(super) fn append(&self, ends_line: bool, pieces: [&[u8]; 2], to: &mut Vec<u8>) {
        to.extend_from_slice(if ends_line { &self.full } else { &self.partial });
        for piece in pieces {
            to.extend_from_slice(piece);
        }
        to.push(b'\n');
    }
}
