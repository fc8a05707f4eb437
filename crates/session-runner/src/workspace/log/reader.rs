//! Reading the log from its oldest record to its newest, across its files, while it may be written.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader};

use camino::Utf8Path;

use super::files::open_files;
use super::record::{LogRecord, Stream};

/// The longest line that is read: a piece and what stands before it, with room for logs of others.
pub(super) const LINE_BYTES: usize = 128 << 10;

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record.
    Beginning,
    /// At the last so many lines of the programs; 0 is the end.
    Last(usize),
}

/// An iterator over the records that are there now.
#[derive(Debug)]
pub struct LogReader {
    ahead: VecDeque<LogRecord>,
    files: VecDeque<BufReader<File>>,
    skipped: u64,
}

impl LogReader {
    /// Opens all files of the log. A log that does not exist yet is an empty one.
    pub fn open(log: &Utf8Path, start: Start) -> io::Result<Self> {
        let files = open_files(log)?.into_iter().map(BufReader::new).collect();
        let mut reader = Self { ahead: VecDeque::new(), files, skipped: 0 };
        if let Start::Last(lines) = start {
            reader.skip_to_last(lines)?;
        }
        Ok(reader)
    }

    /// How many lines so far were no records, such as one that a crash has torn.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Reads newest files first, and no more of them than hold the lines that are wanted.
    fn skip_to_last(&mut self, lines: usize) -> io::Result<()> {
        let mut missing = lines;
        let mut found = VecDeque::new();
        while missing > 0
            && let Some(file) = self.files.pop_back()
        {
            let mut of_file = Self { ahead: VecDeque::new(), files: VecDeque::from([file]), skipped: 0 };
            let mut last = LastLines::new(missing);
            for record in &mut of_file {
                last.push(record?);
            }
            self.skipped += of_file.skipped;
            missing -= last.lines;
            last.records.append(&mut found);
            found = last.records;
        }
        self.files.clear();
        self.ahead = found;
        Ok(())
    }
}

impl Iterator for LogReader {
    type Item = io::Result<LogRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.ahead.pop_front() {
            return Some(Ok(record));
        }
        let mut line = Vec::new();
        loop {
            let file = self.files.front_mut()?;
            line.clear();
            match read_line(file, &mut line) {
                Ok(true) => match LogRecord::parse(&line) {
                    Some(record) => return Some(Ok(record)),
                    None => self.skipped += 1,
                },
                Ok(false) => {
                    self.skipped += u64::from(!line.is_empty());
                    self.files.pop_front();
                }
                Err(error) => {
                    self.files.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The last so many lines of what is pushed, pieces included.
pub(super) struct LastLines {
    wanted: usize,
    pub(super) lines: usize,
    pub(super) records: VecDeque<LogRecord>,
}

impl LastLines {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, lines: 0, records: VecDeque::new() }
    }

    pub(super) fn push(&mut self, record: LogRecord) {
        self.lines += usize::from(ends_a_line(&record));
        self.records.push_back(record);
        while self.lines > self.wanted {
            match self.records.pop_front() {
                Some(first) => self.lines -= usize::from(ends_a_line(&first)),
                None => break,
            }
        }
    }
}

/// Our own words do not count among the lines of the programs.
fn ends_a_line(record: &LogRecord) -> bool {
    record.ends_line && record.stream != Stream::State
}

/// Reads up to the next newline, which is dropped; `false` if the file ends before it. Of a line that is
/// longer than [`LINE_BYTES`] the beginning is kept.
fn read_line(file: &mut impl io::BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let available = match file.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(false);
        }
        let newline = available.iter().position(|byte| *byte == b'\n');
        let taken = newline.unwrap_or(available.len());
        let room = LINE_BYTES.saturating_sub(line.len());
        line.extend_from_slice(available.get(..taken.min(room)).unwrap_or_default());
        file.consume(taken + usize::from(newline.is_some()));
        if newline.is_some() {
            return Ok(true);
        }
    }
}
