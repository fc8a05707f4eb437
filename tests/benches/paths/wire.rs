//! A client that writes requests onto a connection which stays open: the same for floor and path.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::measure::{Outcome, ensure};

/// A connection.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    token: String,
    line: String,
    body: Vec<u8>,
}

impl Wire {
    pub(crate) async fn open(address: SocketAddr, token: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = BufReader::new(stream);
        Ok(Self { stream, address, token: token.into(), line: String::new(), body: Vec::new() })
    }

    /// Sends a body, and reads the answer's, which must come with this status.
    pub(crate) async fn post(&mut self, path: &str, body: &str, status: u16) -> Outcome<&[u8]> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let (found, length) = self.head().await?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        ensure!(found == status, "{path}: {found}: {}", String::from_utf8_lossy(&self.body));
        Ok(&self.body)
    }

    /// Begins to read a stream of events.
    pub(crate) async fn follow(&mut self, path: &str) -> Outcome {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: text/event-stream\r\n\r\n",
            self.address, self.token
        );
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let (found, _) = self.head().await?;
        ensure!(found == 200, "{path}: {found}");
        Ok(())
    }

    /// Reads on until an event of this number came.
    pub(crate) async fn until(&mut self, number: usize) -> Outcome {
        let wanted = format!("id: {number}\n");
        loop {
            self.line.clear();
            ensure!(self.stream.read_line(&mut self.line).await? > 0, "the stream ended");
            if self.line == wanted {
                return Ok(());
            }
        }
    }

    async fn head(&mut self) -> Outcome<(u16, usize)> {
        let (mut status, mut length) = (None, 0);
        loop {
            self.line.clear();
            ensure!(self.stream.read_line(&mut self.line).await? > 0, "the connection ended");
            let line = self.line.trim_end();
            if line.is_empty() {
                return Ok((status.ok_or("no status")?, length));
            }
            if status.is_none() {
                status = Some(line.split(' ').nth(1).unwrap_or_default().parse()?);
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
    }
}
