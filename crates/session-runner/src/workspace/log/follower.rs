//! `logs -f`: records as they come, woken by the kernel and not by a timer, across rotations.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::inotify;
use tokio::net::unix::pipe::Receiver;

use super::files::{age_of, inode, open_files, open_for_reading};
use super::reader::{LINE_BYTES, LastLines, Start};
use super::record::LogRecord;
use super::rotated;

/// How much of a file is read at once.
const READ_BYTES: usize = 64 << 10;
/// Room for the kernel's notifications.
const EVENT_BYTES: usize = 4 << 10;
/// The most records that one call of [`LogFollower::next`] gives.
const BATCH_RECORDS: usize = 4096;

/// Follows a log. It never ends by itself: the caller knows when the session is over, and then takes what is
/// left with [`LogFollower::available`].
#[derive(Debug)]
pub struct LogFollower {
    log: Utf8PathBuf,
    /// The kernel's notifications: not a pipe, but tokio reads it as one.
    notify: Receiver,
    /// Read at the start, to find out what the last lines are.
    first: VecDeque<LogRecord>,
    /// The oldest first. The last one is, or was, the newest file.
    files: VecDeque<Followed>,
    lost: bool,
}

impl LogFollower {
    /// Begins to follow. The directory must exist, the log need not. Must be called inside a tokio runtime
    /// with I/O enabled.
    pub fn open(log: &Utf8Path, start: Start) -> io::Result<Self> {
        let directory = log.parent().ok_or_else(|| io::Error::other(format!("{log} has no directory")))?;
        let notify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let watched = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(&notify, directory.as_std_path(), watched)?;
        // The watch stands before the files are read, so nothing falls between the two.
        let mut files: VecDeque<Followed> =
            open_files(log)?.into_iter().map(Followed::new).collect::<io::Result<_>>()?;
        let first = match start {
            Start::Beginning => VecDeque::new(),
            Start::Last(lines) => {
                let first = last_lines(&mut files, lines)?;
                files.drain(..files.len().saturating_sub(1));
                first
            }
        };
        Ok(Self {
            log: log.to_owned(),
            notify: Receiver::from_owned_fd_unchecked(notify)?,
            first,
            files,
            lost: false,
        })
    }

    /// The next records, at least one; waits for them. Dropping the future loses nothing.
    pub async fn next(&mut self) -> io::Result<Vec<LogRecord>> {
        loop {
            let records = self.available()?;
            if !records.is_empty() {
                return Ok(records);
            }
            self.notify.readable().await?;
            // What the notifications say does not matter; the files are looked at anyway.
            let mut events = [0; EVENT_BYTES];
            loop {
                match self.notify.try_read(&mut events) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// The records that are there and were not given yet, without waiting. Empty when there are none; a long
    /// backlog comes in several calls.
    pub fn available(&mut self) -> io::Result<Vec<LogRecord>> {
        let mut records: Vec<LogRecord> = Vec::new();
        records.extend(self.first.drain(..self.first.len().min(BATCH_RECORDS)));
        while records.len() < BATCH_RECORDS {
            let read = match self.files.front_mut() {
                Some(file) => file.read(&mut records)?,
                None => 0,
            };
            if read == 0 && !self.next_file()? {
                break;
            }
        }
        Ok(records)
    }

    /// Whether the log was rotated faster than it was read, so that records are missing.
    #[must_use]
    pub fn lost_records(&self) -> bool {
        self.lost
    }

    /// At the end of the first file: whether there is something to go on with.
    fn next_file(&mut self) -> io::Result<bool> {
        if self.files.len() > 1 {
            self.files.pop_front();
            return Ok(true);
        }
        let Some(last) = self.files.front_mut() else {
            return self.go_on_with(open_files(&self.log)?.pop());
        };
        let age = age_of(&self.log, last.inode)?;
        if age == Some(0) {
            return Ok(false);
        }
        if !last.put_aside {
            // A file is never written to after it was renamed, but it may have been between our last look at
            // it and the renaming.
            last.put_aside = true;
            return Ok(true);
        }
        let Some(age) = age else {
            let all = open_files(&self.log)?;
            self.lost |= !all.is_empty();
            return self.go_on_with(all.into_iter().next());
        };
        let newer = open_for_reading(&rotated(&self.log, age.saturating_sub(1)))?;
        // One more rotation in between, and what was opened is not the next file: look again.
        if age_of(&self.log, last.inode)? != Some(age) {
            return Ok(true);
        }
        self.go_on_with(newer)
    }

    fn go_on_with(&mut self, file: Option<File>) -> io::Result<bool> {
        let Some(file) = file else { return Ok(false) };
        self.files = VecDeque::from([Followed::new(file)?]);
        Ok(true)
    }
}

/// A file of the log, and how far it was read.
#[derive(Debug)]
struct Followed {
    file: File,
    inode: (u64, u64),
    /// It was seen to be the newest no more.
    put_aside: bool,
    /// The beginning of a record whose end has not come yet.
    torn: Vec<u8>,
}

impl Followed {
    fn new(file: File) -> io::Result<Self> {
        Ok(Self { inode: inode(&file)?, file, put_aside: false, torn: Vec::new() })
    }

    /// Reads on and adds the records; how many bytes there were, 0 at the end of what there is now.
    fn read(&mut self, records: &mut Vec<LogRecord>) -> io::Result<usize> {
        let mut buffer = vec![0; READ_BYTES];
        let read = loop {
            match self.file.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        for piece in buffer.get(..read).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) if self.torn.is_empty() => records.extend(LogRecord::parse(end)),
                Some(end) => {
                    self.torn.extend_from_slice(end);
                    records.extend(LogRecord::parse(&self.torn));
                    self.torn.clear();
                }
                None if self.torn.len() + piece.len() <= LINE_BYTES => self.torn.extend_from_slice(piece),
                None => {}
            }
        }
        Ok(read)
    }
}

/// Reads to the end, the newest file first and no more of them than it takes.
fn last_lines(files: &mut VecDeque<Followed>, lines: usize) -> io::Result<VecDeque<LogRecord>> {
    let mut missing = lines;
    let mut found = VecDeque::new();
    for (index, file) in files.iter_mut().rev().enumerate() {
        if missing == 0 && index > 0 {
            break;
        }
        let mut last = LastLines::new(missing);
        let mut records = Vec::new();
        while file.read(&mut records)? > 0 {
            records.drain(..).for_each(|record| last.push(record));
        }
        missing -= last.lines;
        last.records.append(&mut found);
        found = last.records;
    }
    Ok(found)
}
