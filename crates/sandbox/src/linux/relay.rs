//! Carries connections from the session's loopback to the host's proxy.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::wire::refusal;
use crate::level::{Refusal, RefusalCode};

/// Where a session finds the proxy.
const PORT: u16 = 3128;
/// The same, as programs are told.
pub(super) const URL: &str = "http://127.0.0.1:3128";
/// The variables by which programs are told.
pub(super) const VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// Connections at once; one more is closed at once.
const CONNECTIONS_MAX: usize = 128;
/// Descriptors that the first process has besides those of connections.
const OTHER_DESCRIPTORS: u64 = 12;
/// A thread here copies bytes and nothing else.
const STACK_BYTES: usize = 128 << 10;
/// How long the relay leaves off where the system has no room for a connection, which would otherwise be offered again
/// at once, and again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Takes the port. The session's first process does so before it confines itself.
pub(super) fn listen() -> Result<TcpListener, Refusal> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .map_err(|error| refusal(RefusalCode::Network, "the relay to the proxy cannot listen", error))
}

/// Serves until the session ends: its threads are those of the session's first process, and end with it. A proxy that
/// is away closes the connections of that time; each new one looks for it again.
pub(super) fn serve(
    listener: TcpListener,
    proxy: Utf8PathBuf,
    open_files: Option<u64>,
) -> Result<(), Refusal> {
    let connections_max = connections(open_files);
    let accept = move || {
        let (open, proxy) = (Arc::new(AtomicUsize::new(0)), Arc::new(proxy));
        for connection in listener.incoming() {
            let Ok(connection) = connection else {
                thread::sleep(NO_ROOM_PAUSE);
                continue;
            };
            if let Some(place) = Place::take(&open, connections_max) {
                let proxy = Arc::clone(&proxy);
                // Without a thread or a proxy the connection is closed, which its program sees.
                let _closed = spawn(move || carry(&connection, &proxy, &place));
            }
        }
    };
    spawn(accept).map_err(|error| refusal(RefusalCode::Network, "the relay to the proxy cannot start", error))
}

/// How many connections there is room for: each takes two descriptors, and one more while it is turned away.
fn connections(open_files: Option<u64>) -> usize {
    let room = open_files.map_or(u64::MAX, |files| files.saturating_sub(OTHER_DESCRIPTORS) / 2);
    usize::try_from(room).unwrap_or(usize::MAX).clamp(1, CONNECTIONS_MAX)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).map(drop)
}

/// One of the connections that may be open at once.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let place = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::SeqCst) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Both directions until both have ended.
fn carry(inside: &TcpStream, proxy: &Utf8Path, _place: &Place) {
    let Ok(outside) = UnixStream::connect(proxy) else { return };
    thread::scope(|scope| {
        let back = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
            // An end in the middle is the end of the connection, and both sides see it.
            if io::copy(&mut &outside, &mut &*inside).is_err() {
                let _closed = outside.shutdown(Shutdown::Both);
            }
            inside.shutdown(Shutdown::Write)
        });
        if back.is_err() || io::copy(&mut &*inside, &mut &outside).is_err() {
            let _closed = inside.shutdown(Shutdown::Both);
            let _closed = outside.shutdown(Shutdown::Both);
        }
        let _closed = outside.shutdown(Shutdown::Write);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_connections_within_the_limit_of_files() {
        for (open_files, expected) in
            [(None, 128), (Some(16), 2), (Some(100), 44), (Some(5000), 128), (Some(0), 1)]
        {
            assert_eq!(connections(open_files), expected, "{open_files:?}");
        }
    }
}
