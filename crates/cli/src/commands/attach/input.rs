//! The lines of stdin, read only when they are wanted.

use std::io;

use rustix::io::Errno;
use rustix::stdio::stdin;
use session_core::turn::PROMPT_MAX;
use tokio::task::JoinHandle;

use crate::failure::{Failure, Kind, Outcome};

/// How much is read at once, in bytes.
const READ_BYTES: usize = 8 << 10;

/// The lines of stdin.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// A read that is under way: kept when nobody waits for it, and left to the end of the process when nothing more comes.
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// What was read of the next lines.
    read: Vec<u8>,
    over: bool,
}

impl Input {
    /// The next line, without its end; `None` when nothing more comes. Cancel safe.
    pub(super) async fn next(&mut self) -> Outcome<Option<String>> {
        loop {
            if let Some(at) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(at + 1);
                return text(std::mem::replace(&mut self.read, rest)).map(Some);
            }
            if self.over {
                let rest = std::mem::take(&mut self.read);
                return if rest.is_empty() { Ok(None) } else { text(rest).map(Some) };
            }
            if self.read.len() > PROMPT_MAX {
                return Err(Failure::usage(format!("a line of stdin is longer than {PROMPT_MAX} bytes")));
            }
            let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(read));
            let read = reading.await;
            self.reading = None;
            let read = read.map_err(io::Error::other).flatten();
            let read = read.map_err(|error| Failure::caused(Kind::Error, "stdin cannot be read", &error))?;
            self.over = read.is_empty();
            self.read.extend(read);
        }
    }
}

/// Some bytes, as soon as there are any; nothing at the end.
fn read() -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; READ_BYTES];
    let read = loop {
        match rustix::io::read(stdin(), &mut buffer) {
            Err(Errno::INTR) => {}
            read => break read?,
        }
    };
    buffer.truncate(read);
    Ok(buffer)
}

fn text(line: Vec<u8>) -> Outcome<String> {
    let line = String::from_utf8(line)
        .map_err(|error| Failure::caused(Kind::Usage, "a line of stdin is not UTF-8", &error))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
