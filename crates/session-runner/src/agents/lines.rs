//! Lines of an agent, with a longest length: an agent that prints without end fills no memory.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// The longest line that is read, in bytes: 16 MiB.
pub(super) const LINE_MAX: usize = 16 << 20;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// The line, without its end. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// A line too long to be read, and its length in bytes; it was skipped.
    TooLong(u64),
}

/// Reads lines.
pub(super) struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    skipped: u64,
    max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads lines of at most so many bytes.
    pub(super) fn new(from: R, max: usize) -> Self {
        Self { from: BufReader::with_capacity(64 << 10, from), line: Vec::new(), skipped: 0, max }
    }

    /// The next line; `None` at the end. What has been read of a line is kept when the future is dropped.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let read = self.from.fill_buf().await?;
            if read.is_empty() {
                let nothing = self.line.is_empty() && self.skipped == 0;
                return Ok((!nothing).then(|| self.take()));
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            if self.skipped > 0 || self.line.len() + part.len() > self.max {
                self.skipped += u64::try_from(self.line.len() + part.len()).unwrap_or(u64::MAX);
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let consumed = part.len() + usize::from(end.is_some());
            self.from.consume(consumed);
            if end.is_some() {
                return Ok(Some(self.take()));
            }
        }
    }

    fn take(&mut self) -> Line {
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            return Line::TooLong(skipped);
        }
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Line::Text(match String::from_utf8(line) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], max: usize) -> Vec<Line> {
        let mut lines = Lines::new(bytes, max);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(line);
        }
        all
    }

    fn text(text: &str) -> Line {
        Line::Text(text.into())
    }

    #[tokio::test]
    async fn lines_are_read_whatever_ends_them() {
        assert_eq!(read(b"a\n\nb\r\nc", 10).await, [text("a"), text(""), text("b"), text("c")]);
        assert_eq!(read(b"", 10).await, []);
        assert_eq!(read(b"\xff\n", 10).await, [text("\u{fffd}")]);
    }

    #[tokio::test]
    async fn what_is_too_long_is_skipped_and_the_next_is_read() {
        assert_eq!(
            read(b"0123456789\n01234567890\nb", 10).await,
            [text("0123456789"), Line::TooLong(11), text("b")]
        );
        let mut long = vec![b'x'; 1 << 20];
        long.extend_from_slice(b"\nafter\n");
        assert_eq!(read(&long, 1000).await, [Line::TooLong(1 << 20), text("after")]);
        assert_eq!(read(&long[..1 << 20], 1000).await, [Line::TooLong(1 << 20)]);
    }
}
