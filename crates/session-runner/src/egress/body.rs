//! Where the body of a forwarded request ends. It passes as it is; only its end is looked for, so that what follows is
//! not taken for a request to the same server.

use super::request::Malformed;

/// What is still to come of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// Nothing.
    Complete,
    /// So many bytes.
    Bytes(u64),
    /// Chunks (RFC 9112, 7.1).
    Chunks(Chunks),
}

/// Where in the chunks it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// In a chunk's size.
    Size { digits: u8, value: u64 },
    /// After its size.
    Extension { value: u64 },
    /// Before the line feed after them.
    SizeEnd { value: u64 },
    /// So many bytes before its end.
    Data(u64),
    /// Before the carriage return after it.
    DataEnd,
    /// Before the line feed after that.
    DataEndFeed,
    /// At the beginning of a line after the last chunk.
    Trailer,
    /// In such a line.
    TrailerLine,
    /// Before the line feed after it.
    TrailerLineEnd,
    /// Before the last line feed.
    LastFeed,
}

impl Chunks {
    /// Before the first.
    pub(super) const START: Self = Self::Size { digits: 0, value: 0 };
    /// More digits than a number of 64 bits has.
    const DIGITS_MAX: u8 = 15;
}

impl Body {
    /// How many of these bytes, from the first, belong to the body. Fewer than all: it has ended with them.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            taken += match self {
                Self::Complete => return Ok(taken),
                Self::Bytes(left) => {
                    let step = skip(left, rest);
                    if *left == 0 {
                        *self = Self::Complete;
                    }
                    step
                }
                Self::Chunks(Chunks::Data(left)) => {
                    let step = skip(left, rest);
                    if *left == 0 {
                        *self = Self::Chunks(Chunks::DataEnd);
                    }
                    step
                }
                Self::Chunks(at) => {
                    let byte = rest.first().copied().unwrap_or_default();
                    *self = after(*at, byte).ok_or(Malformed::Chunks)?;
                    1
                }
            };
        }
        Ok(taken)
    }
}

/// How many of the bytes lie before the end, which comes nearer by them.
fn skip(left: &mut u64, bytes: &[u8]) -> usize {
    let step = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left = left.saturating_sub(u64::try_from(step).unwrap_or(u64::MAX));
    step
}

/// Strict: whatever a server could read in another way ends the connection.
fn after(at: Chunks, byte: u8) -> Option<Body> {
    use Chunks::{
        Data, DataEnd, DataEndFeed, Extension, LastFeed, Size, SizeEnd, Trailer, TrailerLine, TrailerLineEnd,
    };
    let next = match (at, byte) {
        (Size { digits, value }, _) if byte.is_ascii_hexdigit() && digits < Chunks::DIGITS_MAX => {
            let digit = char::from(byte).to_digit(16)?;
            Size { digits: digits + 1, value: value << 4 | u64::from(digit) }
        }
        (Size { digits: 1.., value } | Extension { value }, b'\r') => SizeEnd { value },
        (Size { digits: 1.., value }, b';' | b' ' | b'\t') => Extension { value },
        (Extension { value }, _) if is_text(byte) => Extension { value },
        (SizeEnd { value: 0 } | TrailerLineEnd, b'\n') => Trailer,
        (SizeEnd { value }, b'\n') => Data(value),
        (DataEnd, b'\r') => DataEndFeed,
        (DataEndFeed, b'\n') => Chunks::START,
        (Trailer, b'\r') => LastFeed,
        (TrailerLine, b'\r') => TrailerLineEnd,
        (Trailer | TrailerLine, _) if is_text(byte) => TrailerLine,
        (LastFeed, b'\n') => return Some(Body::Complete),
        // `Data` is counted, not read.
        (
            Size { .. }
            | Extension { .. }
            | SizeEnd { .. }
            | Data(_)
            | DataEnd
            | DataEndFeed
            | Trailer
            | TrailerLine
            | TrailerLineEnd
            | LastFeed,
            _,
        ) => return None,
    };
    Some(Body::Chunks(next))
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: Body = Body::Chunks(Chunks::START);

    #[track_caller]
    fn check(mut body: Body, bytes: &[u8], expected: Result<(usize, bool), Malformed>) {
        let found = body.take(bytes).map(|taken| (taken, body == Body::Complete));
        assert_eq!(found, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn a_body_ends_where_it_says() {
        check(Body::Complete, b"GET /", Ok((0, true)));
        check(Body::Bytes(3), b"abcGET /", Ok((3, true)));
        check(Body::Bytes(3), b"ab", Ok((2, false)));
        check(CHUNKED, b"0\r\n\r\nGET /", Ok((5, true)));
        check(CHUNKED, b"3\r\nabc\r\n0\r\n\r\nGET /", Ok((13, true)));
        check(CHUNKED, b"a;x=\"y\" ;z\r\n0\r\n\r\n12345\r\n00\r\nT: 1\r\nU:\r\n\r\nG", Ok((40, true)));
        check(CHUNKED, b"FFF", Ok((3, false)));
    }

    #[test]
    fn chunks_that_could_be_read_in_two_ways_are_refused() {
        for bytes in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x1\r\n",
            b";\r\n",
            b"1\na\n",
            b"1;\na",
            b"1\rX",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\rX",
            b"0\r\n\n",
            b"0\r\nX\n\r\n",
            b"0\r\n\rX",
            b"1;\x00\r\n",
            b"1111111111111111\r\n",
        ] {
            check(CHUNKED, bytes, Err(Malformed::Chunks));
        }
    }

    proptest! {
        #[test]
        fn how_it_is_cut_makes_no_difference(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            after in proptest::collection::vec(any::<u8>(), 0..10),
            step in 1_usize..50,
        ) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
            let length = bytes.len();
            bytes.extend(&after);
            let mut body = CHUNKED;
            let mut taken = 0;
            for piece in bytes.chunks(step) {
                taken += body.take(piece).unwrap();
            }
            prop_assert_eq!((taken, body), (length, Body::Complete));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut body = CHUNKED;
            if let Ok(taken) = body.take(&bytes) {
                prop_assert!(taken <= bytes.len());
            }
        }
    }
}
