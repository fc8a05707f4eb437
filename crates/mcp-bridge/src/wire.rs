//! The two pipes of a server process: lines out of one, lines into the other, both bounded. Nothing here blocks and nothing
//! is lost when a wait is given up: what was read so far and what is still to be written stays.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

/// The longest message in bytes, in either direction.
pub(crate) const MESSAGE_MAX: usize = 32 * 1024 * 1024;
/// As much is read at once.
const BUFFER: usize = 32 * 1024;
/// How much of a line that is no message is shown.
const SHOWN_MAX: usize = 1_024;
/// Lines that are not longer are gathered and leave together.
const SMALL: usize = 8 * 1024;

/// What a server process wrote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line of this many bytes, more than a message may have.
    Long(u64),
    /// What came after the last line's end.
    Half(Vec<u8>),
    /// Nothing more.
    End,
}

/// What a server process writes, by lines.
pub(crate) struct Reader {
    from: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    line: Vec<u8>,
    /// Bytes of the line that were let go, because it is too long.
    dropped: u64,
    max: usize,
}

impl Reader {
    pub(crate) fn new(from: Box<dyn AsyncRead + Send + Unpin>, max: usize) -> Self {
        Self { from: BufReader::with_capacity(BUFFER, from), line: Vec::new(), dropped: 0, max }
    }

    /// The next line that is not blank. May be given up and asked again at any time.
    pub(crate) async fn next(&mut self) -> Read {
        loop {
            let Ok(available) = self.from.fill_buf().await else { return self.at_end() };
            if available.is_empty() {
                return self.at_end();
            }
            let end = memchr::memchr(b'\n', available);
            let part = &available[..end.unwrap_or(available.len())];
            if self.dropped > 0 || self.line.len() + part.len() > self.max {
                // What was gathered of it is of no use any more.
                self.dropped += (self.line.len() + part.len()) as u64;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.from.consume(used);
            if end.is_none() {
                continue;
            }
            let (line, dropped) = (std::mem::take(&mut self.line), std::mem::take(&mut self.dropped));
            if dropped > 0 {
                return Read::Long(dropped);
            }
            if !line.trim_ascii().is_empty() {
                return Read::Line(line);
            }
        }
    }

    fn at_end(&mut self) -> Read {
        let (line, dropped) = (std::mem::take(&mut self.line), std::mem::take(&mut self.dropped));
        if dropped > 0 {
            Read::Long(dropped)
        } else if line.is_empty() {
            Read::End
        } else {
            Read::Half(line)
        }
    }
}

/// The beginning of a line, to be shown.
pub(crate) fn shown(line: &[u8]) -> &[u8] {
    &line[..line.len().min(SHOWN_MAX)]
}

/// What is to be written to a server process.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whole lines, the first of them perhaps begun.
    chunks: VecDeque<Bytes>,
    /// Short lines behind them.
    small: BytesMut,
    bytes: usize,
}

impl Outbox {
    /// One more line.
    pub(crate) fn push(&mut self, mut line: String) {
        self.bytes += line.len() + 1;
        if line.len() <= SMALL {
            self.small.put_slice(line.as_bytes());
            self.small.put_u8(b'\n');
            return;
        }
        self.settle();
        line.push('\n');
        self.chunks.push_back(Bytes::from(line));
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push_back(self.small.split().freeze());
        }
    }

    /// How much waits.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Writes some of it. May be given up and asked again at any time.
    pub(crate) async fn write(&mut self, into: &mut (dyn AsyncWrite + Send + Unpin)) -> io::Result<()> {
        if self.chunks.is_empty() {
            self.settle();
        }
        let Some(chunk) = self.chunks.front_mut() else { return Ok(()) };
        let written = into.write(chunk).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        chunk.advance(written);
        self.bytes -= written;
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    async fn read(text: &[u8], max: usize) -> Vec<Read> {
        let mut reader = Reader::new(Box::new(Cursor::new(text.to_vec())), max);
        let mut all = Vec::new();
        loop {
            match reader.next().await {
                Read::End => return all,
                read @ (Read::Line(_) | Read::Long(_) | Read::Half(_)) => all.push(read),
            }
        }
    }

    fn line(text: &str) -> Read {
        Read::Line(text.into())
    }

    #[tokio::test]
    async fn what_is_too_long_does_not_stop_what_comes_after_it() {
        let text = b"one\n\n  \r\n12345678\n123456789\ntwo\r\nhalf";
        assert_eq!(
            read(text, 8).await,
            [line("one"), line("12345678"), Read::Long(9), line("two\r"), Read::Half("half".into())]
        );
        let mut long = vec![b'x'; BUFFER * 3];
        long.extend_from_slice(b"\nlast\n");
        assert_eq!(read(&long, BUFFER * 2).await, [Read::Long(BUFFER as u64 * 3), line("last")]);
        assert_eq!(read(&vec![b'x'; BUFFER * 3], 8).await, [Read::Long(BUFFER as u64 * 3)]);
    }

    #[tokio::test]
    async fn lines_leave_in_their_order_whole_however_little_is_taken_at_a_time() {
        let lines: Vec<String> =
            [3, SMALL + 1, 1, 2, SMALL, SMALL * 4, 5].into_iter().map(|size| "x".repeat(size)).collect();
        let mut outbox = Outbox::default();
        for line in &lines {
            outbox.push(line.clone());
        }
        let whole = lines.iter().fold(String::new(), |all, line| all + line + "\n");
        assert_eq!(outbox.bytes(), whole.len());
        let (mut into, from) = tokio::io::duplex(1_000);
        let reading = tokio::spawn(async move {
            let mut reader = Reader::new(Box::new(from), MESSAGE_MAX);
            let mut read = Vec::new();
            while let Read::Line(line) = reader.next().await {
                read.push(String::from_utf8(line).unwrap());
            }
            read
        });
        while !outbox.is_empty() {
            outbox.write(&mut into).await.unwrap();
        }
        drop(into);
        assert_eq!(reading.await.unwrap(), lines);
    }
}
