//! JSON values, one a line, over a socket: bounded in both directions.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// A socket that carries lines.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    longest: usize,
    /// What was read of a line before a read was cancelled.
    partial: Vec<u8>,
}

impl Lines {
    /// Lines of at most `longest` bytes.
    pub fn new(stream: UnixStream, longest: usize) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: BufReader::new(reader), writer, longest, partial: Vec::new() }
    }

    /// The next value; `None` when the other side is gone. Cancel safe.
    pub async fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let room = (self.longest + 1).saturating_sub(self.partial.len());
        let mut limited = (&mut self.reader).take(room as u64);
        limited.read_until(b'\n', &mut self.partial).await?;
        if self.partial.last() != Some(&b'\n') {
            if self.partial.len() > self.longest {
                return Err(invalid(format!("a line of more than {} bytes", self.longest)));
            }
            // The end of the stream; a torn last line says nothing.
            return Ok(None);
        }
        let line = std::mem::take(&mut self.partial);
        serde_json::from_slice(&line).map(Some).map_err(|error| invalid(error.to_string()))
    }

    /// Sends a value.
    pub async fn write<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        if line.len() >= self.longest {
            let reason =
                format!("{} bytes are more than the {} that one message may have", line.len(), self.longest);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        line.push(b'\n');
        self.writer.write_all(&line).await
    }

    /// Waits until the other side closes or speaks; what it says is kept for the next read.
    pub async fn closed(&mut self) -> io::Result<()> {
        while !self.reader.fill_buf().await?.is_empty() {
            let room = self.longest.saturating_sub(self.partial.len());
            if room == 0 {
                return Ok(());
            }
            let taken = {
                let buffer = self.reader.buffer();
                let taken = buffer.len().min(room);
                self.partial.extend_from_slice(&buffer[..taken]);
                taken
            };
            self.reader.consume(taken);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn values_pass_and_long_lines_are_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut here, mut there) = (Lines::new(here, 64), Lines::new(there, 8));
        here.write(&"a\nb").await.unwrap();
        assert_eq!(there.read::<String>().await.unwrap().as_deref(), Some("a\nb"));
        here.write(&"far too long").await.unwrap();
        let error = there.read::<String>().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let refused = here.write(&"x".repeat(80)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        drop(there);
        assert_eq!(here.read::<String>().await.unwrap(), None);
    }
}
