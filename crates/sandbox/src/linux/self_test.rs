//! Tries to get out, from inside, before the program starts. What succeeds and should not ends the launch.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};
use rustix::process::{Pid, getpid, test_kill_process};
use rustix::thread::{SecureComputingMode, UnshareFlags, secure_computing_mode};

use super::capabilities;
use super::wire::refusal;
use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::Network;

/// No connection inside a machine takes longer.
const CONNECT_WAIT_MAX: Duration = Duration::from_millis(200);
/// A port at which nobody needs to listen: being refused by the other side counts as having got there.
const PORT: u16 = 9;
const AF_VSOCK: u16 = 40;

/// A socket outside that must not be reachable from inside.
#[derive(Debug)]
pub(super) struct Canary {
    pub(super) name: String,
    pub(super) socket: OwnedFd,
}

impl Canary {
    /// Listens in the abstract namespace, under a name that the kernel gives, so that nobody can have taken it.
    pub(super) fn listening() -> Result<Self, Refusal> {
        let attempt = || {
            let socket = stream_socket()?;
            bind(&socket, &SocketAddrUnix::new_unnamed())?;
            listen(&socket, 1)?;
            let address = SocketAddrUnix::try_from(getsockname(&socket)?)?;
            let name = address.abstract_name().ok_or(Errno::ADDRNOTAVAIL)?;
            Ok::<_, Errno>((String::from_utf8_lossy(name).into_owned(), socket))
        };
        let (name, socket) = attempt().map_err(|error| {
            refusal(
                RefusalCode::SelfTest,
                "the socket for the self-test cannot be made",
                io::Error::from(error),
            )
        })?;
        Ok(Self { name, socket })
    }
}

/// What the attempts aim at.
pub(super) struct Target<'a> {
    pub(super) level: Level,
    pub(super) network: &'a Network,
    /// Name of the [`Canary`].
    pub(super) canary: &'a str,
    /// A socket that was made before the confinement, for the level that lets no program make one.
    pub(super) spare: OwnedFd,
    /// The process that started the launcher, as it is numbered outside.
    pub(super) outside: Option<Pid>,
}

/// A socket to try the canary with.
pub(super) fn stream_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// The names of all attempts, each refused by the kernel. The first that is not is the error.
pub(super) fn run(target: &Target<'_>) -> Result<Vec<String>, Refusal> {
    let mut verified = Vec::new();
    for (name, holds) in attempts(target) {
        if !holds {
            let message =
                format!("the sandbox was applied and does not hold: {name} was possible from inside");
            return Err(Refusal::new(RefusalCode::SelfTest, message));
        }
        verified.push(name.to_owned());
    }
    Ok(verified)
}

fn attempts(target: &Target<'_>) -> Vec<(&'static str, bool)> {
    let mut attempts = vec![
        ("use of capabilities", capabilities::are_gone()),
        ("system calls without a filter", secure_computing_mode() == Ok(SecureComputingMode::Filter)),
        ("listing /", open("/", OFlags::RDONLY | OFlags::DIRECTORY).is_err()),
        ("making a file in /", open("/sandbox-self-test", OFlags::WRONLY | OFlags::CREATE).is_err()),
        ("changing a program", open("/usr", OFlags::WRONLY | OFlags::TMPFILE).is_err()),
        ("reading /etc/shadow", open("/etc/shadow", OFlags::RDONLY).is_err()),
        ("writing to /proc/sys", open("/proc/sys/kernel/core_pattern", OFlags::WRONLY).is_err()),
        ("an abstract socket outside", unreachable(target)),
        (
            "a socket to the hypervisor",
            socket(AddressFamily::from_raw(AF_VSOCK), SocketType::STREAM).is_err(),
        ),
        ("a raw packet socket", socket(AddressFamily::PACKET, SocketType::RAW).is_err()),
        ("a user namespace", unshare_is_refused()),
        ("making a set-user-id file", mode_is_refused()),
        ("changing the root", rustix::process::chroot("/") == Err(Errno::PERM)),
    ];
    match target.level {
        Level::Full => attempts.push(("seeing processes outside", getpid().as_raw_nonzero().get() == 1)),
        Level::Floor => {
            let signal = target.outside.is_none_or(|pid| test_kill_process(pid) == Err(Errno::PERM));
            attempts.push(("a signal to a process outside", signal));
        }
    }
    match target.network {
        Network::None => attempts.push(("a TCP connection", no_connection())),
        Network::Open | Network::Loopback | Network::Proxy { .. } => {}
    }
    attempts
}

fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::RUSR)
}

fn unreachable(target: &Target<'_>) -> bool {
    SocketAddrUnix::new_abstract_name(target.canary.as_bytes())
        .is_ok_and(|address| connect(&target.spare, &address).is_err())
}

fn socket(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe for the sake of CLONE_FILES, which is never asked for here"
)]
fn unshare_is_refused() -> bool {
    rustix::thread::unshare(UnshareFlags::NEWUSER) == Err(Errno::PERM)
}

/// The filter answers before the path is looked at.
fn mode_is_refused() -> bool {
    rustix::fs::chmod("/sandbox-self-test", Mode::from_raw_mode(0o4755)) == Err(Errno::PERM)
}

fn no_connection() -> bool {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], PORT));
    match TcpStream::connect_timeout(&address, CONNECT_WAIT_MAX) {
        Ok(_) => false,
        // Somebody, or the kernel for somebody, said no: the packet got there.
        Err(error) => error.kind() != io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the attempt would prove nothing.
    #[test]
    fn the_canary_can_be_reached_from_outside() {
        let canary = Canary::listening().unwrap();
        let address = SocketAddrUnix::new_abstract_name(canary.name.as_bytes()).unwrap();
        connect(stream_socket().unwrap(), &address).unwrap();
    }
}
