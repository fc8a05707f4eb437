//! Carries connections from the session's loopback to the host's proxy.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::mounts::PROXY;
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
/// A thread here copies bytes and nothing else.
const STACK_BYTES: usize = 128 << 10;

/// Takes the port. The session's first process does so before it confines itself.
pub(super) fn listen() -> Result<TcpListener, Refusal> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .map_err(|error| refusal(RefusalCode::Network, "the relay to the proxy cannot listen", error))
}

/// Serves until the session ends: its threads are those of the session's first process, and end with it.
pub(super) fn serve(listener: TcpListener) -> Result<(), Refusal> {
    let accept = move || {
        let open = Arc::new(AtomicUsize::new(0));
        for connection in listener.incoming().filter_map(Result::ok) {
            let place = Place::take(&open);
            if let Some(place) = place {
                // Without a thread or a proxy the connection is closed, which its program sees.
                let _closed = spawn(move || carry(&connection, &place));
            }
        }
    };
    spawn(accept).map_err(|error| refusal(RefusalCode::Network, "the relay to the proxy cannot start", error))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).map(drop)
}

/// One of the connections that may be open at once.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::SeqCst) < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Both directions until both have ended.
fn carry(inside: &TcpStream, _place: &Place) {
    let attempt = || {
        let outside = UnixStream::connect(PROXY)?;
        let (inside_again, outside_again) = (inside.try_clone()?, outside.try_clone()?);
        let back = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            // An end in the middle is the end of the connection, and both sides see it.
            let _ended = io::copy(&mut &outside_again, &mut &inside_again);
            inside_again.shutdown(Shutdown::Write)
        })?;
        let _ended = io::copy(&mut &*inside, &mut &outside);
        let _closed = outside.shutdown(Shutdown::Write);
        let _joined = back.join();
        Ok::<_, io::Error>(())
    };
    let _closed = attempt();
}
