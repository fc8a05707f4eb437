//! Writing to an agent without waiting for it: while it writes and does not read, we read.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// What is to be written, and the stdin that it goes to.
pub(super) struct Pen {
    to: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    waiting: VecDeque<Vec<u8>>,
    written: usize,
    closing: bool,
}

impl Pen {
    pub(super) fn new(to: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        Self { to: Some(to), waiting: VecDeque::new(), written: 0, closing: false }
    }

    /// To be written. An agent that no longer listens is told nothing. How much can wait is bounded by what is asked: one
    /// prompt, and one answer a question.
    pub(super) fn write(&mut self, text: String) {
        if self.to.is_some() && !self.closing && !text.is_empty() {
            self.waiting.push_back(text.into_bytes());
        }
    }

    /// One line, to be written.
    pub(super) fn write_line(&mut self, mut line: String) {
        line.push('\n');
        self.write(line);
    }

    /// Nothing more will be written: the agent's stdin is closed when it has all.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// There is something to do.
    pub(super) fn is_busy(&self) -> bool {
        self.to.is_some() && (self.closing || !self.waiting.is_empty())
    }

    /// Writes as much as the agent takes at once, or closes its stdin. What was written stays written when the future is
    /// dropped. Asked only while there is something to do.
    pub(super) async fn step(&mut self) {
        if let Err(error) = self.try_step().await {
            // It closed its stdin or is gone; its output says which.
            tracing::debug!(%error, "an agent no longer listens");
            self.to = None;
            self.waiting.clear();
        }
    }

    async fn try_step(&mut self) -> io::Result<()> {
        let Some(to) = &mut self.to else { return Ok(()) };
        let Some(first) = self.waiting.front() else {
            to.shutdown().await?;
            self.to = None;
            return Ok(());
        };
        let written = to.write(&first[self.written..]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += written;
        if self.written == first.len() {
            self.waiting.pop_front();
            self.written = 0;
            if self.waiting.is_empty() {
                to.flush().await?;
            }
        }
        Ok(())
    }
}
