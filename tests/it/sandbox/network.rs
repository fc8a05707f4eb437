//! What a session reaches: everything, nothing, itself, or what is listed, through the host's proxy.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};

use serde_json::json;
use session_tests::home::{Home, Who};

use super::ground::{Ground, skipped};

/// A server of the host that answers each request with its path, and keeps them.
struct Server {
    port: u16,
    serving: JoinHandle<Vec<String>>,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = thread::spawn(move || {
            let mut asked = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let path =
                    head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("nothing").to_owned();
                let answer = format!("answer to {path}\n");
                let length = answer.len();
                // Whoever only connected does not wait for an answer.
                let _gone = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                );
                if path == "/end" {
                    break;
                }
                asked.push(path);
            }
            asked
        });
        Self { port, serving }
    }

    /// All that was asked for.
    fn end(self) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET /end HTTP/1.1\r\n\r\n").unwrap();
        self.serving.join().unwrap()
    }
}

/// Attempts to leave without the proxy, as lines that print what got out.
fn direct(ground: &Ground, port: u16, udp: u16) -> String {
    let attempt = ground.path("readable/attempt");
    let tried =
        ["tcp", "mptcp", "fast-open", "tcp6", "ring-connect"].map(|way| format!("{attempt} {way} {port}"));
    let tried = tried.join(" >/dev/null && echo OUT\n");
    format!(
        "{tried} >/dev/null && echo OUT
{attempt} udp {udp} > /dev/null
curl -sS -m 5 --noproxy '*' http://127.0.0.1:{port}/direct 2>/dev/null\n"
    )
}

#[test]
fn what_is_listed_is_reached_and_nothing_else() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let (server, other) = (Server::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        other.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_nonblocking(true).unwrap();
        let (port, wrong) = (server.port, other.local_addr().unwrap().port());
        let script = format!(
            "curl -sS -m 20 http://127.0.0.1:{port}/plain
curl -sS -m 20 -p http://127.0.0.1:{port}/tunnel
/usr/bin/python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://127.0.0.1:{port}/python\").read().decode(), end=\"\")'
curl -sS -m 20 http://127.0.0.1:{wrong}/wrong
curl -sS -m 20 -p http://127.0.0.1:{wrong}/wrong 2>&1
curl -sS -m 20 https://example.com/ 2>&1
{}echo over",
            direct(&ground, port, udp.local_addr().unwrap().port())
        );
        let ran = ground.session(&[&format!("--net-allow=127.0.0.1:{port}")], &script).completed();
        let said = &ran.log.stdout;
        for path in ["plain", "tunnel", "python"] {
            assert!(said.contains(&format!("answer to /{path}\n")), "{who:?} {path}: {ran:?}");
        }
        let sentence = format!("127.0.0.1:{wrong} is not on this session's list of endpoints");
        assert!(said.contains(&sentence) && said.contains("403"), "{said}");
        assert!(!said.contains("OUT") && !said.contains("answer to /direct"), "{who:?}: {said}");
        assert_eq!(server.end(), ["/plain", "/tunnel", "/python"], "{who:?}");
        assert!(other.accept().is_err() && udp.recv(&mut [0; 8]).is_err(), "{who:?}");
        let result = ground.events(&ran.id, "result").remove(0);
        let denied: Vec<_> = result["denied"].as_array().unwrap().iter().collect();
        let wrong = format!("127.0.0.1:{wrong}");
        let mut told: Vec<_> =
            denied.iter().map(|denied| (denied["endpoint"].as_str().unwrap(), &denied["times"])).collect();
        told.sort_by_key(|(endpoint, _)| *endpoint);
        assert_eq!(told, [(wrong.as_str(), &json!(2)), ("example.com:443", &json!(1))], "{result:#}");
        assert!(
            denied.iter().all(|denied| denied["why"].as_str().unwrap().contains("--net-allow")),
            "{result:#}"
        );
        let shown = ground.home.run(&["inspect", &ran.id]).ok().stdout;
        assert!(shown.contains(&format!("network: 127.0.0.1:{port} and itself")), "{shown}");
    }
}

#[test]
fn open_is_open_none_is_nothing_and_loopback_is_its_own() {
    if skipped() {
        return;
    }
    let own = "/usr/bin/python3 -c 'import socket
s = socket.create_server((\"127.0.0.1\", 0)); c = socket.create_connection(s.getsockname())
s.accept()[0].send(b\"own\"); print(c.recv(9).decode())' 2>/dev/null";
    for who in Who::all() {
        let ground = Ground::new(who);
        for (options, reaches_host, has_own) in [
            (&["--sandbox=full", "--net=open"] as &[&str], true, true),
            (&["--sandbox=floor", "--net=open"], true, true),
            (&["--sandbox=full", "--net=loopback"], false, true),
            (&["--sandbox=full", "--net=none"], false, false),
            (&["--sandbox=floor", "--net=none"], false, false),
        ] {
            let server = Server::new();
            let script =
                format!("curl -sS -m 5 http://127.0.0.1:{}/host 2>/dev/null; {own}; true", server.port);
            let ran = ground.session(options, &script).completed();
            let said = &ran.log.stdout;
            assert_eq!(said.contains("answer to /host"), reaches_host, "{who:?} {options:?}: {said}");
            assert_eq!(said.contains("own\n"), has_own, "{who:?} {options:?}: {said}");
            assert_eq!(server.end() == ["/host"], reaches_host, "{who:?} {options:?}");
        }
    }
}

/// The proxy is the host's: it is gone with it, and comes back with the next one, on the same list.
#[test]
fn a_proxy_comes_back_with_the_next_host() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let home =
            Home::of(who).with("ROOMETTE_HOST_ON_HOST_LOSS", "adopt").with("ROOMETTE_HOST_LINGER", "60s");
        let ground = Ground::in_home(home, who);
        let server = Server::new();
        let port = server.port;
        // A new host's proxy takes a moment to be there.
        let script = format!(
            "take() {{ curl -sS -f -m 20 http://127.0.0.1:{port}/$1 2>/dev/null; }}
until [ -e first ]; do sleep 0.02; done; take first; touch done-first
until [ -e second ]; do sleep 0.02; done; take second || echo no second; touch done-second
until [ -e third ]; do sleep 0.02; done; until take third; do sleep 0.02; done
curl -sS -f -m 20 http://127.0.0.1:1/ || echo denied; touch done-third"
        );
        let allow = format!("--net-allow=127.0.0.1:{port}");
        let session = ground.home.run(&["run", "--detach", &allow, "--", "sh", "-c", &script]).ok();
        let session = session.stdout.trim().to_owned();
        ground.home.until(|| ground.home.inspect(&session)["status"] == "running");
        let work = ground.home.session(&session).join("work");
        let take = |name: &str| {
            fs::write(work.join(name), "").unwrap();
            ground.home.until(|| work.join(format!("done-{name}")).exists());
        };
        take("first");
        ground.home.kill_host();
        take("second");
        ground.home.run(&["recover"]).ok();
        ground.home.until(|| ground.home.inspect(&session)["last_run"]["epoch"] == 2);
        take("third");
        ground.home.run(&["wait", &session]).ok();
        let said = ground.home.run(&["logs", &session]).ok().stdout;
        assert!(said.contains("answer to /first") && said.contains("answer to /third"), "{who:?}: {said}");
        assert!(said.contains("no second"), "{who:?}: {said}");
        assert_eq!(server.end(), ["/first", "/third"], "{who:?}");
        let result = ground.events(&session, "result").remove(0);
        assert_eq!(result["denied"][0]["endpoint"], "127.0.0.1:1", "{result:#}");
    }
}
