//! One record of the log, as a value and as a line.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;

/// Where a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// The program's standard output.
    Stdout,
    /// The program's standard error.
    Stderr,
    /// Our own words on what happened to the run.
    State,
}

impl Stream {
    /// Every stream.
    pub const ALL: [Self; 3] = [Self::Stdout, Self::Stderr, Self::State];

    /// The name in the log and in options.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::State => "state",
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no stream of a log: stdout, stderr or state")]
pub struct UnknownStream(String);

impl FromStr for Stream {
    type Err = UnknownStream;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|stream| stream.as_str() == text);
        known.ok_or_else(|| UnknownStream(text.chars().take(48).collect()))
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// When it was read from the program, to the millisecond.
    pub at: Timestamp,
    /// Where it comes from.
    pub stream: Stream,
    /// Whether it ends a line of the program. A line that was cut is all pieces up to the one that ends it.
    pub ends_line: bool,
    /// What the program wrote, byte for byte, without the newline.
    pub bytes: Vec<u8>,
}

impl LogRecord {
    /// Reads a line of the log, without its newline; `None` if it is none, as after a crash in mid-write.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let at = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let stream = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let ends_line = match fields.next()? {
            b"F" => true,
            b"P" => false,
            _ => return None,
        };
        Some(Self { at, stream, ends_line, bytes: fields.next()?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefix::Prefixes;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let at: Timestamp = "2026-11-21T04:31:00.123Z".parse().unwrap();
        let mut line = Vec::new();
        let prefixes = Prefixes::new(at, Stream::Stdout);
        prefixes.append(true, [b"hello  ", b"\xff\0world"], &mut line);
        assert_eq!(line, b"2026-11-21T04:31:00.123Z stdout F hello  \xff\0world\n");
        let record = LogRecord::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(
            record,
            LogRecord { at, stream: Stream::Stdout, ends_line: true, bytes: b"hello  \xff\0world".into() }
        );
        let mut piece = Vec::new();
        prefixes.append(false, [b"", b""], &mut piece);
        assert_eq!(piece, b"2026-11-21T04:31:00.123Z stdout P \n");
    }

    #[test]
    fn whole_seconds_keep_their_milliseconds() {
        let mut line = Vec::new();
        Prefixes::new("2026-11-21T04:31:00Z".parse().unwrap(), Stream::State).append(
            true,
            [b"x", b""],
            &mut line,
        );
        assert_eq!(line, b"2026-11-21T04:31:00.000Z state F x\n");
    }

    #[test]
    fn torn_lines_are_no_records() {
        for torn in [
            &b""[..],
            b"2026-11-21T04:31",
            b"2026-11-21T04:31:00.123Z stdout",
            b"2026-11-21T04:31:00.123Z stdout X y",
            b"2026-11-21T04:31:00.123Z nowhere F y",
            b"2026-11-21T04:31:00.123Z stdout F",
        ] {
            assert_eq!(LogRecord::parse(torn), None, "{}", torn.escape_ascii());
        }
    }
}
