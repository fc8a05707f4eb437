//! The one that writes the log. Plain blocking I/O: it works in the keeper, which has no runtime.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::prefix::Prefixes;
use super::record::Stream;
use super::rotated;

/// The longest text of one record. A longer line is written in pieces.
pub const PIECE_BYTES: usize = 16 << 10;

/// When a log is rotated. On disk it takes at most `max_bytes × files`; a single write that is larger than a file
/// stays in one file nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogRotation {
    /// A file that would grow beyond this many bytes is put aside first.
    pub max_bytes: u64,
    /// How many files there are at most, the one that is written included; at least 1.
    pub files: u32,
}

impl Default for LogRotation {
    /// Four files of 16 MiB.
    fn default() -> Self {
        Self { max_bytes: 16 << 20, files: 4 }
    }
}

/// Writes records. There is one writer at a time: the keeper while a run lasts, else the host.
#[derive(Debug)]
pub struct LogWriter {
    path: Utf8PathBuf,
    rotation: LogRotation,
    /// `None` after a rotation that failed half way: the next write tries again.
    file: Option<File>,
    size: u64,
    stdout: Unfinished,
    stderr: Unfinished,
    batch: Vec<u8>,
}

/// The beginning of a line whose end has not come yet.
#[derive(Debug, Default)]
struct Unfinished {
    held: Vec<u8>,
    /// Pieces of the line are in the log already, so a record must follow that ends it.
    begun: bool,
}

impl LogWriter {
    /// Opens the log, or makes it with mode 0600. A line that a crash has torn is closed first.
    pub fn open(path: &Utf8Path, rotation: LogRotation) -> io::Result<Self> {
        let mut writer = Self {
            path: path.to_owned(),
            rotation,
            file: None,
            size: 0,
            stdout: Unfinished::default(),
            stderr: Unfinished::default(),
            batch: Vec::new(),
        };
        writer.reopen()?;
        Ok(writer)
    }

    /// Takes in output of the program. What is not ended by a newline is held back, up to
    /// [`PIECE_BYTES`], until its end comes or [`flush`](Self::flush) is called.
    ///
    /// After an error the bytes of this call are lost for the log; the next call tries again.
    pub fn write(&mut self, at: Timestamp, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let prefixes = Prefixes::new(at, stream);
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        match self.unfinished(stream) {
            Some(unfinished) => unfinished.split(bytes, &prefixes, &mut batch),
            None => prefixes.append(true, [bytes, b""], &mut batch),
        }
        let written = self.put(&batch);
        self.batch = batch;
        written
    }

    /// Writes one line of our own. Newlines in it become spaces, so that it stays one record.
    pub fn state(&mut self, at: Timestamp, text: &str) -> io::Result<()> {
        self.write(at, Stream::State, text.replace(['\n', '\r'], " ").as_bytes())
    }

    /// Writes out what is held back of unfinished lines, as pieces.
    pub fn flush(&mut self, at: Timestamp) -> io::Result<()> {
        self.flush_with(at, |unfinished, prefixes, batch| {
            if !unfinished.held.is_empty() {
                prefixes.append(false, [&unfinished.held, b""], batch);
                unfinished.held.clear();
                unfinished.begun = true;
            }
        })
    }

    /// Ends the unfinished lines: no output follows.
    pub fn finish(&mut self, at: Timestamp) -> io::Result<()> {
        self.flush_with(at, |unfinished, prefixes, batch| {
            if unfinished.begun || !unfinished.held.is_empty() {
                prefixes.append(true, [&unfinished.held, b""], batch);
                *unfinished = Unfinished::default();
            }
        })
    }

    /// Whether an unfinished line is held back.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        !self.stdout.held.is_empty() || !self.stderr.held.is_empty()
    }

    fn unfinished(&mut self, stream: Stream) -> Option<&mut Unfinished> {
        match stream {
            Stream::Stdout => Some(&mut self.stdout),
            Stream::Stderr => Some(&mut self.stderr),
            Stream::State => None,
        }
    }

    fn flush_with(
        &mut self,
        at: Timestamp,
        each: impl Fn(&mut Unfinished, &Prefixes, &mut Vec<u8>),
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        each(&mut self.stdout, &Prefixes::new(at, Stream::Stdout), &mut batch);
        each(&mut self.stderr, &Prefixes::new(at, Stream::Stderr), &mut batch);
        self.put(&batch)
    }

    /// Writes whole records, after a rotation where they need one.
    fn put(&mut self, batch: &[u8]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let length = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        if self.file.is_some() && self.size > 0 && self.size.saturating_add(length) > self.rotation.max_bytes
        {
            self.rotate()?;
        }
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = &mut self.file else { return Err(io::Error::other("the log is not open")) };
        match file.write_all(batch) {
            Ok(()) => {
                self.size = self.size.saturating_add(length);
                Ok(())
            }
            Err(error) => {
                // Half a record would swallow the next one.
                if file.set_len(self.size).is_err() {
                    self.file = None;
                }
                Err(error)
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let oldest = self.rotation.files.max(1) - 1;
        if oldest == 0 {
            return fs::remove_file(&self.path);
        }
        for age in (0..oldest).rev() {
            match fs::rename(rotated(&self.path, age), rotated(&self.path, age + 1)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            // The session's own programs can write beside the log; they shall not lead us elsewhere.
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&self.path)?;
        let mut size = file.metadata()?.len();
        if size > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                size += 1;
            }
        }
        self.file = Some(file);
        self.size = size;
        Ok(())
    }
}

impl Unfinished {
    /// Makes records of all lines that end in `bytes`, and of pieces that are long enough.
    fn split(&mut self, bytes: &[u8], prefixes: &Prefixes, batch: &mut Vec<u8>) {
        for piece in lines(bytes) {
            if let Some(end_of_line) = piece.strip_suffix(b"\n") {
                let rest = self.cut(end_of_line, prefixes, batch);
                prefixes.append(true, [&self.held, rest], batch);
                self.held.clear();
                self.begun = false;
            } else {
                let rest = self.cut(piece, prefixes, batch);
                self.held.extend_from_slice(rest);
            }
        }
    }

    /// Writes pieces for as long as what is held and `text` together are more than one; gives what remains of
    /// `text`.
    fn cut<'a>(&mut self, text: &'a [u8], prefixes: &Prefixes, batch: &mut Vec<u8>) -> &'a [u8] {
        let mut rest = text;
        while self.held.len() + rest.len() > PIECE_BYTES {
            let (piece, after) = rest.split_at(PIECE_BYTES - self.held.len());
            prefixes.append(false, [&self.held, piece], batch);
            self.held.clear();
            self.begun = true;
            rest = after;
        }
        rest
    }
}

/// The lines, each with the newline that ends it; the last one may have none.
fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let all = bytes;
        // The search of the standard library, which looks at many bytes at once.
        let length = bytes.skip_until(b'\n').ok().filter(|length| *length > 0)?;
        all.get(..length)
    })
}
