//! The two pipes of a server process: lines out of one, lines into the other, both bounded. Nothing here blocks and nothing
//! is lost when a wait is given up: what was read so far and what is still to be written stays.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use crate::shares::Share;

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
    /// A line of this many bytes, more than a message may have, and which request it answers, where that can be seen.
    Long(u64, Option<u64>),
    /// What came after the last line's end.
    Half(Vec<u8>),
    /// Nothing more.
    End,
}

/// What a server process writes, by lines.
pub(crate) struct Reader {
    from: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    line: Vec<u8>,
    /// Bytes of the line that were let go, because it is too long, and both ends of it.
    dropped: u64,
    ends: Ends,
    max: usize,
}

/// The two ends of a line.
#[derive(Default)]
struct Ends {
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// As much is kept of each end.
const END: usize = 256;

impl Ends {
    fn add(&mut self, part: &[u8]) {
        let lacking = END - self.head.len().min(END);
        self.head.extend_from_slice(&part[..part.len().min(lacking)]);
        self.tail.extend_from_slice(&part[part.len().saturating_sub(END)..]);
        self.tail.drain(..self.tail.len().saturating_sub(END));
    }
}

impl Reader {
    pub(crate) fn new(from: Box<dyn AsyncRead + Send + Unpin>, max: usize) -> Self {
        Self {
            from: BufReader::with_capacity(BUFFER, from),
            line: Vec::new(),
            dropped: 0,
            ends: Ends::default(),
            max,
        }
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
                self.ends.add(&self.line);
                self.ends.add(part);
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
                let ends = std::mem::take(&mut self.ends);
                return Read::Long(dropped, answered(&ends.head, &ends.tail));
            }
            if !line.trim_ascii().is_empty() {
                return Read::Line(line);
            }
        }
    }

    fn at_end(&mut self) -> Read {
        let (line, dropped) = (std::mem::take(&mut self.line), std::mem::take(&mut self.dropped));
        if dropped > 0 {
            let ends = std::mem::take(&mut self.ends);
            Read::Long(dropped, answered(&ends.head, &ends.tail))
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

/// Which request of ours a line answers that is no message, as far as that can be seen of it. Numbers of ours are not small, so
/// that what a server says of its own is not mistaken for one.
pub(crate) fn answered_id(line: &[u8]) -> Option<u64> {
    answered(&line[..line.len().min(END)], &line[line.len().saturating_sub(END)..])
}

/// The id stands before what is large, or is the very last.
fn answered(head: &[u8], tail: &[u8]) -> Option<u64> {
    let mut rest = head.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let (name, after) = quoted(rest)?;
        let value = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        if name == b"method" {
            return None;
        }
        if name == b"id" {
            return number(value);
        }
        rest = match value.first()? {
            b'"' => quoted(value)?.1,
            // What it holds may hold an `id` as well.
            b'{' | b'[' => break,
            _ => &value[value.iter().position(|byte| b",}".contains(byte))?..],
        };
        rest = rest.trim_ascii_start().strip_prefix(b",")?;
    }
    let end = tail.trim_ascii_end().strip_suffix(b"}")?.trim_ascii_end();
    let digits = end.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, digits) = end.split_at(end.len() - digits);
    let before = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"id\"")?;
    before.trim_ascii_end().ends_with(b",").then(|| number(digits))?
}

/// A text without escapes at the beginning, and what comes after it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let end = text.iter().position(|byte| b"\"\\".contains(byte)).filter(|end| text[*end] == b'"')?;
    Some((&text[..end], &text[end + 1..]))
}

/// The whole number at the beginning.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// What is to be written to a server process.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whole lines, the first of them perhaps begun.
    chunks: VecDeque<Bytes>,
    /// Short lines behind them.
    small: BytesMut,
    bytes: usize,
    /// How many bytes have been written of all that ever was to be.
    written: u64,
    /// Shares of the memory, and how much is to be written before each is given back.
    shares: VecDeque<(u64, Arc<Share>)>,
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

    /// This share is of the lines that wait now, and is given back when they have been written.
    pub(crate) fn keep(&mut self, share: Arc<Share>) {
        if self.bytes > 0 {
            self.shares.push_back((self.written + self.bytes as u64, share));
        }
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
        self.written += written as u64;
        while self.shares.pop_front_if(|(until, _)| *until <= self.written).is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn what_waits_to_be_written_has_its_share_of_the_memory_until_it_was() {
        let (shares, ada) = (crate::shares::Shares::new(200), "ada".parse().unwrap());
        let is_free = |amount| shares.take(&ada, amount).is_some();
        let mut outbox = Outbox::default();
        for size in [40, 60] {
            let share = shares.take(&ada, size).unwrap();
            outbox.push("x".repeat(size - 1));
            outbox.keep(Arc::new(share));
        }
        assert!(!is_free(1));
        let (mut into, mut from) = tokio::io::duplex(50);
        outbox.write(&mut into).await.unwrap();
        assert!(is_free(40) && !is_free(41), "the first was written, and some of the second");
        from.read_exact(&mut [0; 50]).await.unwrap();
        outbox.write(&mut into).await.unwrap();
        assert!(is_free(100));
        let share = Arc::new(shares.take(&ada, 100).unwrap());
        outbox.keep(share);
        assert!(is_free(100), "nothing waits");
    }

    async fn read(text: &[u8], max: usize) -> Vec<Read> {
        let mut reader = Reader::new(Box::new(Cursor::new(text.to_vec())), max);
        let mut all = Vec::new();
        loop {
            match reader.next().await {
                Read::End => return all,
                read @ (Read::Line(_) | Read::Long(..) | Read::Half(_)) => all.push(read),
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
            [line("one"), line("12345678"), Read::Long(9, None), line("two\r"), Read::Half("half".into())]
        );
        let mut long = vec![b'x'; BUFFER * 3];
        long.extend_from_slice(b"\nlast\n");
        assert_eq!(read(&long, BUFFER * 2).await, [Read::Long(BUFFER as u64 * 3, None), line("last")]);
        assert_eq!(read(&vec![b'x'; BUFFER * 3], 8).await, [Read::Long(BUFFER as u64 * 3, None)]);
    }

    #[tokio::test]
    async fn a_line_that_is_no_message_says_what_it_answers() {
        let long = "x".repeat(BUFFER);
        for (text, answers) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7000,"result":"{long}"}}"#), Some(7000)),
            (format!(r#"{{ "id" : 7000 ,"result":{{"id":9,"x":"{long}"}}}}"#), Some(7000)),
            (format!(r#"{{"result":{{"id":9,"x":"{long}"}},"jsonrpc":"2.0","id":7000}}"#), Some(7000)),
            (format!(r#"{{"result":{{"x":"{long}","id":9}}}}"#), None),
            (format!(r#"{{"result":{{"x":"{long}"}},"id":"7000"}}"#), None),
            (format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{long}","id":7000}}"#), None),
            (format!(r#"{{"id":"7000","result":"{long}"}}"#), None),
            (format!("{long}}}"), None),
            (r#"{"id":7000,"id":7000,"result":1}"#.to_owned(), Some(7000)),
            ("{".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(answered_id(text.as_bytes()), answers, "{}", &text[..text.len().min(80)]);
            if text.len() > BUFFER {
                let line = format!("{text}\n");
                assert_eq!(read(line.as_bytes(), 100).await, [Read::Long(text.len() as u64, answers)]);
            }
        }
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
