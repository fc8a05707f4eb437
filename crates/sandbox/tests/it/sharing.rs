//! What processes of one user share although no file is between them.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, skipped};

escapes! {
    i09_abstract_socket: Leaks, Held, Held => abstract_socket;
    i10_socket_outside: Leaks, Held, Held => socket_outside;
    i11_datagram_socket_outside: Leaks, Held, Held => datagram_socket_outside;
    i12_shared_memory: Leaks, Held, Held => shared_memory;
    i13_message_queue: Leaks, Held, Held => message_queue;
    i14_keyrings: Leaks, Held, Held => keyrings;
    i30_sockets_of_the_host: Leaks, Held, Held => sockets_of_the_host;
}

/// With the host's network around, so that nothing but the sandbox's own rules stand between.
fn abstract_socket(room: &Room) -> bool {
    let room = room.with(&["--net", "open"]);
    let name = room.mark();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    room.attempt(&["abstract", &name]);
    listener.accept().is_ok()
}

fn open_to_all(room: &Room, name: &str) {
    fs::set_permissions(room.path(name), fs::Permissions::from_mode(0o777)).unwrap();
}

fn socket_outside(room: &Room) -> bool {
    let room = room.with(&["--net", "open"]);
    let listener = UnixListener::bind(room.path("outside/socket")).unwrap();
    open_to_all(&room, "outside/socket");
    listener.set_nonblocking(true).unwrap();
    room.attempt_on("unix-stream", "outside/socket");
    listener.accept().is_ok()
}

fn datagram_socket_outside(room: &Room) -> bool {
    let room = room.with(&["--net", "open"]);
    let socket = UnixDatagram::bind(room.path("outside/socket")).unwrap();
    open_to_all(&room, "outside/socket");
    socket.set_nonblocking(true).unwrap();
    room.attempt_on("unix-datagram", "outside/socket");
    room.attempt_on("unix-datagram-pair", "outside/socket");
    socket.recv(&mut [0; 8]).is_ok()
}

fn shared_memory(room: &Room) -> bool {
    let made = room.attempt_outside(&["make-shared-memory"]);
    let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let attached = room.attempt(&["shared-memory", &id]);
    assert!(room.attempt_outside(&["remove-shared-memory", &id]).status.success());
    attached
}

fn message_queue(room: &Room) -> bool {
    let name = room.mark();
    assert!(room.attempt_outside(&["make-message-queue", &name]).status.success());
    let opened = room.attempt(&["message-queue", &name]);
    assert!(room.attempt_outside(&["remove-message-queue", &name]).status.success());
    opened
}

fn keyrings(room: &Room) -> bool {
    let name = room.mark();
    assert!(room.attempt_outside(&["make-key", &name]).status.success(), "the kernel has no keyrings");
    let read = room.attempt(&["read-key", &name]);
    assert!(room.attempt_outside(&["remove-key", &name]).status.success());
    read || room.attempt(&["add-key", "sandbox-test"])
}

fn sockets_of_the_host(room: &Room) -> bool {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!(":{:04X}", listener.local_addr().unwrap().port());
    let listed =
        room.shell("cat /proc/net/tcp /proc/self/net/tcp /proc/$$/net/tcp /proc/$$/task/$$/net/tcp; true");
    String::from_utf8_lossy(&listed.stdout).contains(&port)
}

/// A socket in the scope is the session's own, at full.
#[test]
fn a_socket_inside_works_at_full() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who);
        let listener = UnixListener::bind(room.path("scope/socket")).unwrap();
        open_to_all(&room, "scope/socket");
        listener.set_nonblocking(true).unwrap();
        assert!(room.attempt_on("unix-stream", "scope/socket"), "{who:?}");
        listener.accept().unwrap();
    }
}
