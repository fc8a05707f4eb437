//! Attempts over a network, in a session that has none.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;

use rustix::net::{
    AddressFamily, Protocol, RawProtocol, SendFlags, SocketFlags, SocketType, bind, connect, getsockname,
    ipproto, sendto, socket_with,
};

use super::attempts::Got;
use super::inside::{Aim, Trouble};
use super::outside::SECRET;

/// Data with the first packet.
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// `IPPROTO_MPTCP`
const MPTCP: u32 = 262;
const AF_VSOCK: u16 = 40;
const AF_ALG: u16 = 38;
/// `NETLINK_NETFILTER`
const NETFILTER: u32 = 12;

fn socket(
    family: AddressFamily,
    kind: SocketType,
    protocol: Option<Protocol>,
) -> rustix::io::Result<OwnedFd> {
    // None of it waits.
    socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, protocol)
}

fn protocol(number: u32) -> Option<Protocol> {
    RawProtocol::new(number).map(Protocol::from_raw)
}

fn local(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

fn port_of(aim: &Aim, number: usize) -> u16 {
    aim.tcp.get(number).copied().unwrap_or_default()
}

pub(super) fn tcp(aim: &Aim) -> Got {
    connect(socket(AddressFamily::INET, SocketType::STREAM, None)?, &local(port_of(aim, 0)))?;
    Ok(String::new())
}

pub(super) fn tcp6(aim: &Aim) -> Got {
    let port = aim.tcp6.ok_or_else(|| Trouble::Cannot("this machine has no IPv6".to_owned()))?;
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    connect(socket(AddressFamily::INET6, SocketType::STREAM, None)?, &address)?;
    Ok(String::new())
}

pub(super) fn mptcp(aim: &Aim) -> Got {
    connect(socket(AddressFamily::INET, SocketType::STREAM, protocol(MPTCP))?, &local(port_of(aim, 1)))?;
    Ok(String::new())
}

pub(super) fn fast_open(aim: &Aim) -> Got {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sendto(socket, b"x", SendFlags::from_bits_retain(MSG_FASTOPEN), &local(port_of(aim, 2)))?;
    Ok(String::new())
}

pub(super) fn udp(aim: &Aim) -> Got {
    UdpSocket::bind(local(0))?.send_to(b"x", local(aim.udp))?;
    Ok(String::new())
}

pub(super) fn bind_and_listen(_: &Aim) -> Got {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &local(0))?;
    listening(socket)
}

pub(super) fn listen(_: &Aim) -> Got {
    listening(socket(AddressFamily::INET, SocketType::STREAM, None)?)
}

/// The port. Whoever connects while the program runs hears that it is this one, and no other that has the same port.
fn listening(socket: OwnedFd) -> Got {
    rustix::net::listen(&socket, 1)?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(false)?;
    thread::Builder::new().spawn(move || {
        // A caller that has gone has heard enough.
        let _heard = listener.accept().and_then(|(mut caller, _)| caller.write_all(SECRET.as_bytes()));
    })?;
    Ok(address.port().to_string())
}

pub(super) fn raw(_: &Aim) -> Got {
    socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))
        .or_else(|_| socket(AddressFamily::PACKET, SocketType::RAW, None))?;
    Ok(String::new())
}

pub(super) fn hypervisor(_: &Aim) -> Got {
    socket(AddressFamily::from_raw(AF_VSOCK), SocketType::STREAM, None)?;
    Ok(String::new())
}

pub(super) fn into_kernel(_: &Aim) -> Got {
    socket(AddressFamily::from_raw(AF_ALG), SocketType::SEQPACKET, None)
        .or_else(|_| socket(AddressFamily::NETLINK, SocketType::RAW, protocol(NETFILTER)))?;
    Ok(String::new())
}

/// Whether the table of sockets has the host's listener.
pub(super) fn listed(aim: &Aim) -> Got {
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let wanted = format!("0100007F:{:04X}", port_of(aim, 0));
    if table.contains(&wanted) { Ok(wanted) } else { Err(io::Error::from(io::ErrorKind::NotFound).into()) }
}
