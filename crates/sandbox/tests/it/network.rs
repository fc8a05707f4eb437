//! Nothing leaves a session without a network, by whatever kind of packet.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread;

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, said, skipped};

escapes! {
    n01_tcp: Leaks, Held, Held => tcp;
    n02_bind_and_listen: Leaks, Held, Held => bind_and_listen;
    n03_udp: Leaks, Held, Held => udp;
    n10_tcp_over_ipv6: Leaks, Held, Held => tcp_over_ipv6;
    n11_mptcp: Unjudged, Held, Held => mptcp;
    n12_fast_open: Leaks, Held, Held => fast_open;
    n14_listen_without_bind: Leaks, Held, Held => listen_without_bind;
    n08_io_uring: Leaks, Held, Held => io_uring;
    n08_io_uring_with_a_network: Leaks, Held, Held => io_uring_with_a_network;
    n15_calls_of_32_bits: Unjudged, Held, Held => calls_of_32_bits;
    n04_raw_and_packet_sockets: LeaksForRoot, Held, Held => raw_and_packet_sockets;
    n06_interfaces_of_the_host: Leaks, Held, Held => interfaces_of_the_host;
    n07_socket_to_the_hypervisor: Unjudged, Held, Held => socket_to_the_hypervisor;
    k08_algorithm_and_netfilter_sockets: Unjudged, Held, Held => algorithm_and_netfilter_sockets;
}

/// Whether an attempt reaches a listener of the host. The options are those of the session.
fn reaches(room: &Room, what: &str, address: &str) -> bool {
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let told = room.attempt(&[what, &port]);
    listener.accept().is_ok() || told
}

fn tcp(room: &Room) -> bool {
    reaches(room, "tcp", "127.0.0.1:0")
}

fn tcp_over_ipv6(room: &Room) -> bool {
    reaches(room, "tcp6", "[::1]:0")
}

fn mptcp(room: &Room) -> bool {
    reaches(room, "mptcp", "127.0.0.1:0")
}

fn fast_open(room: &Room) -> bool {
    reaches(room, "fast-open", "127.0.0.1:0")
}

fn udp(room: &Room) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    room.attempt(&["udp", &socket.local_addr().unwrap().port().to_string()]);
    socket.recv(&mut [0; 8]).is_ok()
}

/// Whether the host can connect to a listener inside.
fn is_reached(room: &Room, what: &str) -> bool {
    let program = room.text("readable/attempt");
    let mut command = room.inside(&[&program, what]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let port = first.strip_prefix("port ").and_then(|port| port.parse::<u16>().ok());
    let reached = port.is_some_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(&output));
    reached
}

fn bind_and_listen(room: &Room) -> bool {
    is_reached(room, "bind-and-listen")
}

fn listen_without_bind(room: &Room) -> bool {
    is_reached(room, "listen")
}

fn calls_of_32_bits(room: &Room) -> bool {
    cfg!(target_arch = "x86_64") && reaches(room, "int80", "127.0.0.1:0")
}

fn io_uring(room: &Room) -> bool {
    reaches(room, "ring-connect", "127.0.0.1:0")
}

/// The network may be open: by a ring nobody would see which sockets are made.
fn io_uring_with_a_network(room: &Room) -> bool {
    room.guard == Guard::Off || reaches(&room.with(&["--net", "open"]), "ring-connect", "127.0.0.1:0")
}

fn raw_and_packet_sockets(room: &Room) -> bool {
    let room = room.with(&["--net", "open"]);
    room.attempt(&["raw"]) || room.attempt(&["packet"])
}

fn interfaces_of_the_host(room: &Room) -> bool {
    let listed = room
        .shell(&format!("{} interfaces; cut -d: -f1 -s /proc/net/dev; true", room.text("readable/attempt")));
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let hosts = fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name());
    // Every network has a loopback. A host that has nothing else has nothing to show.
    let hosts: Vec<_> = hosts.map(|name| name.into_string().unwrap()).filter(|name| name != "lo").collect();
    let shown = text.lines().any(|line| hosts.iter().any(|name| name == line.trim()));
    shown || (hosts.is_empty() && room.guard == Guard::Off)
}

fn socket_to_the_hypervisor(room: &Room) -> bool {
    room.with(&["--net", "open"]).attempt(&["vsock"])
}

fn algorithm_and_netfilter_sockets(room: &Room) -> bool {
    let room = room.with(&["--net", "open"]);
    room.attempt(&["alg"]) || room.attempt(&["netfilter"])
}

#[test]
fn open_is_open() {
    if skipped() {
        return;
    }
    for guard in [Guard::Floor, Guard::Full] {
        for who in Who::all() {
            let room = Room::new(guard, who).with(&["--net", "open"]);
            assert!(reaches(&room, "tcp", "127.0.0.1:0"), "{who:?} at {guard:?}");
        }
    }
}

/// With a loopback of its own, what listens on the host is as far away as without.
#[test]
fn loopback_is_its_own() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who).with(&["--net", "loopback"]);
        for attempt in [tcp, mptcp, fast_open, udp] {
            assert!(!attempt(&room), "{who:?}");
        }
        assert!(!is_reached(&room, "bind-and-listen"), "{who:?}");
        let script = "import socket\ns = socket.create_server(('127.0.0.1', 0))\n\
            c = socket.create_connection(s.getsockname())\ns.accept()[0].send(b'heard')\nprint(c.recv(9).decode())";
        let output = room.inside(&["/usr/bin/python3", "-c", script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "heard\n", "{who:?}: {}", said(&output));
    }
}

/// A stand-in for the host's proxy: answers each connection with what it heard first.
fn proxy(room: &Room) -> thread::JoinHandle<String> {
    fs::create_dir(room.path("proxy")).unwrap();
    let listener = UnixListener::bind(room.path("proxy/socket")).unwrap();
    fs::set_permissions(room.path("proxy/socket"), fs::Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 64];
        let length = connection.read(&mut request).unwrap();
        connection.write_all(b"through the proxy").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    })
}

#[test]
fn the_proxy_is_the_only_way_out() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who);
        let socket = room.text("proxy/socket");
        let heard = proxy(&room);
        let room = room.with(&["--net", &socket]);
        for attempt in ["tcp", "mptcp", "fast-open"] {
            assert!(!reaches(&room, attempt, "127.0.0.1:0"), "{who:?}: {attempt}");
        }
        let script = "import os, socket\nhost, port = os.environ['HTTPS_PROXY'].split('//')[1].split(':')\n\
            s = socket.create_connection((host, int(port)))\ns.send(b'CONNECT x:443')\nprint(s.recv(99).decode())";
        let output = room.inside(&["/usr/bin/python3", "-c", script]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "through the proxy\n",
            "{who:?}: {}",
            said(&output)
        );
        assert_eq!(heard.join().unwrap(), "CONNECT x:443");
    }
}
