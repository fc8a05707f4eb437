//! The format of a stream of server-sent events: written by the server, read by the client.

use std::fmt::Write as _;

/// The longest event that is read: an event of a log is 1 MiB at most, and has a few fields around it.
pub const FRAME_MAX: usize = 2 * 1024 * 1024;
/// A comment: it says that the stream lives, and nothing else.
pub const HEARTBEAT: &str = ":\n\n";
/// The name of the event by which a server that ends asks its readers to come back.
pub const RECONNECT: &str = "reconnect";

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// Its name; nothing for `message`.
    pub event: Option<String>,
    /// Its id, by which a reader that comes back says what it has.
    pub id: Option<String>,
    /// What it says.
    pub data: String,
    /// After how many milliseconds a reader that lost the stream is to come back.
    pub retry_ms: Option<u64>,
}

impl Frame {
    /// The event as text. A line break within the data begins another line of data; in a name or an id there is none.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.data.len() + 64);
        // Writing to a string does not fail.
        if let Some(retry) = self.retry_ms {
            let _infallible = writeln!(text, "retry: {retry}");
        }
        if let Some(id) = &self.id {
            let _infallible = writeln!(text, "id: {id}");
        }
        if let Some(event) = &self.event {
            let _infallible = writeln!(text, "event: {event}");
        }
        for line in self.data.split('\n') {
            let _infallible = writeln!(text, "data: {line}");
        }
        text.push('\n');
        text
    }
}

/// A stream cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event is longer than [`FRAME_MAX`].
    #[error("an event of the stream is longer than {FRAME_MAX} bytes")]
    TooLong,
    /// It is not UTF-8.
    #[error("the stream is not UTF-8")]
    NotText,
}

/// Reads a stream as it comes, in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The line that is not ended yet.
    line: Vec<u8>,
    /// The piece before ended with `\r`: a `\n` that follows belongs to it.
    after_return: bool,
    frame: Frame,
    has_data: bool,
    /// Bytes of the frame so far.
    bytes: usize,
}

impl Decoder {
    /// The events that this piece completes.
    pub fn feed(&mut self, piece: &[u8]) -> Result<Vec<Frame>, SseError> {
        let mut frames = Vec::new();
        let mut rest = piece;
        if self.after_return
            && let [first, tail @ ..] = rest
        {
            self.after_return = false;
            if *first == b'\n' {
                rest = tail;
            }
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.keep(&rest[..end])?;
            let returned = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if returned {
                match rest {
                    [b'\n', tail @ ..] => rest = tail,
                    [] => self.after_return = true,
                    [_, ..] => {}
                }
            }
            frames.extend(self.line_ended()?);
        }
        self.keep(rest)?;
        Ok(frames)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), SseError> {
        self.bytes += part.len();
        if self.bytes > FRAME_MAX {
            return Err(SseError::TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn line_ended(&mut self) -> Result<Option<Frame>, SseError> {
        let line = String::from_utf8(std::mem::take(&mut self.line)).map_err(|_| SseError::NotText)?;
        if line.is_empty() {
            self.bytes = 0;
            let frame = std::mem::take(&mut self.frame);
            return Ok(std::mem::take(&mut self.has_data).then_some(frame));
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            "event" => self.frame.event = Some(value.into()),
            "id" if !value.contains('\0') => self.frame.id = Some(value.into()),
            "retry" => self.frame.retry_ms = value.parse().ok().or(self.frame.retry_ms),
            // A comment, or a field of a later day.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(id: &str, data: &str) -> Frame {
        Frame { id: Some(id.into()), data: data.into(), ..Frame::default() }
    }

    #[test]
    fn every_end_of_a_line_ends_it_and_comments_are_nothing() {
        for end in ["\n", "\r", "\r\n"] {
            let text =
                [":", "", "id: 7", "data:a", "data: b", "vendor: x", "", "event: e", ""].join(end) + end;
            let mut decoder = Decoder::default();
            let frames: Vec<_> =
                text.as_bytes().iter().flat_map(|byte| decoder.feed(&[*byte]).unwrap()).collect();
            assert_eq!(frames, [frame("7", "a\nb")], "{end:?}: what has no data is no event");
        }
    }

    #[test]
    fn what_is_too_long_or_no_text_is_refused() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; FRAME_MAX];
        assert_eq!(decoder.feed(&piece), Ok(Vec::new()));
        assert_eq!(decoder.feed(b"x"), Err(SseError::TooLong));
        assert_eq!(Decoder::default().feed(b"data: \xff\n"), Err(SseError::NotText));
        let mut decoder = Decoder::default();
        let many: usize = (0..10)
            .map(|_| decoder.feed(&frame("1", &"y".repeat(FRAME_MAX / 2)).text().into_bytes()).unwrap().len())
            .sum();
        assert_eq!(many, 10, "the bound is of one event, not of the stream");
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_in_pieces_of_any_size(
            data in prop::collection::vec("[^\r]{0,40}", 1..5),
            cuts in prop::collection::vec(1_usize..9, 1..40),
        ) {
            let frames: Vec<_> = data.iter().enumerate().map(|(n, data)| frame(&n.to_string(), data)).collect();
            let text: String = frames.iter().flat_map(|frame| [HEARTBEAT.into(), frame.text()]).collect();
            let mut decoder = Decoder::default();
            let (mut rest, mut found, mut cuts) = (text.as_bytes(), Vec::new(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                found.extend(decoder.feed(piece).unwrap());
                rest = tail;
            }
            prop_assert_eq!(found, frames);
        }
    }
}
