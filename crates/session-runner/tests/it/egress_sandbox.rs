//! The proxy of a session from inside a real one.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use sandbox::{Network, Policy, Support};
use session_runner::egress::{Egress, SystemResolver};

use crate::fixture::{LAUNCHER, PATH, Place, block_on, this_program};

/// What a person left out by name, parted by commas.
const SKIP: &str = "ROOMETTE_TEST_SKIP";

#[expect(
    clippy::disallowed_methods,
    reason = "whoever runs the tests says by the environment what is left out"
)]
fn skipped() -> bool {
    std::env::var(SKIP).is_ok_and(|names| names.split(',').any(|name| name.trim() == "sandbox"))
}

fn launcher() -> Command {
    let mut command = this_program();
    command.arg(LAUNCHER).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// Tries the proxy in each way that programs have, and the way without it.
const SCRIPT: &str = r#"
import http.client, socket, sys, urllib.request
port = int(sys.argv[1])
print(urllib.request.urlopen(f"http://127.0.0.1:{port}/plain").read().decode())
tunnel = http.client.HTTPConnection("127.0.0.1", 3128)
tunnel.set_tunnel("127.0.0.1", port)
tunnel.request("GET", "/tunnel")
print(tunnel.getresponse().read().decode())
try:
    urllib.request.urlopen("https://example.com/")
except OSError as error:
    print(error)
try:
    socket.create_connection(("127.0.0.1", port))
except OSError as error:
    print(type(error).__name__)
"#;

/// Answers two requests with their first lines.
fn server() -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                bytes.push(byte[0]);
            }
            let line = String::from_utf8(bytes).unwrap().lines().next().unwrap().to_owned();
            let length = line.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{line}")
                .unwrap();
        }
    });
    (port, serving)
}

pub(crate) fn a_session_reaches_what_is_listed_and_nothing_else() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let scope = place.path.join("scope");
    std::fs::create_dir(&scope).unwrap();
    let (port, serving) = server();
    let output = block_on(async {
        let allow = BTreeSet::from([format!("127.0.0.1:{port}").parse().unwrap()]);
        let resolver = Arc::new(SystemResolver::new());
        let egress = Egress::listen(&place.path.join("egress"), allow, resolver, drop).await.unwrap();
        let policy = Policy::new(&scope)
            .allow_write(&scope)
            .with_network(Network::Proxy { socket: egress.socket().to_owned() })
            .with_variable("PATH", PATH);
        let argv = ["/usr/bin/python3", "-c", SCRIPT, &port.to_string()].map(str::to_owned);
        let session = tokio::task::spawn_blocking(move || {
            let level = Support::probe(launcher).unwrap().choose(&policy).unwrap();
            let confined = policy.seal().unwrap().launch(launcher(), level, &argv, None).unwrap();
            confined.child.wait_with_output().unwrap()
        });
        let output = session.await.unwrap();
        let denials = egress.close().await;
        let denied: Vec<_> =
            denials.each.iter().map(|(denied, times)| (denied.host.as_str(), denied.port, *times)).collect();
        assert_eq!(denied, [("example.com", 443, 1)]);
        output
    });
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [plain, tunnel, denied, direct] = lines.as_slice() else { panic!("{said}") };
    assert_eq!((*plain, *tunnel), ("GET /plain HTTP/1.1", "GET /tunnel HTTP/1.1"));
    assert!(denied.contains("403 example.com:443 is not on this session's list of endpoints"), "{denied}");
    assert_eq!(*direct, "ConnectionRefusedError", "the session's loopback is its own");
    serving.join().unwrap();
}
