//! The proxy of a session: what is seen of it inside, and that it may come and go.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;

use sandbox::{Level, Network, Policy};

use crate::room::{Guard, Room, Who, confine_program, said, skipped};

/// Asks the proxy once for each line on stdin, and says what came back.
const ASK: &str = "import socket, sys
for line in sys.stdin:
    s = socket.create_connection(('127.0.0.1', 3128))
    try:
        s.send(line.encode())
        s.shutdown(socket.SHUT_WR)
        print('heard', s.recv(99).decode(), flush=True)
    except OSError:
        print('heard', flush=True)
    s.close()";

#[expect(clippy::disallowed_methods, reason = "the tests are the host")]
fn launcher() -> Command {
    let mut command = Command::new(confine_program());
    command.arg("__launch").stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

#[test]
fn a_proxy_that_comes_back_is_found_again() {
    if skipped() {
        return;
    }
    let room = Room::new(Guard::Full, Who::all()[0]);
    fs::create_dir(room.path("proxy")).unwrap();
    let socket = room.path("proxy/socket");
    let mut listener = Some(UnixListener::bind(&socket).unwrap());
    let sealed = Policy::new("/")
        .with_network(Network::Proxy { socket: room.text("proxy/socket").into() })
        .seal()
        .unwrap();
    let (read, mut questions) = std::io::pipe().unwrap();
    let argv = ["/usr/bin/python3", "-c", ASK].map(str::to_owned);
    let mut confined = sealed.launch(launcher(), Level::Full, &argv, Some(read.into())).unwrap();
    let mut answers = BufReader::new(confined.child.stdout.take().unwrap()).lines();
    let mut ask = || {
        questions.write_all(b"question\n").unwrap();
        answers.next().unwrap().unwrap()
    };
    for word in ["first", "second"] {
        thread::scope(|scope| {
            let listener = listener.as_ref().unwrap();
            scope.spawn(|| {
                let (mut connection, _) = listener.accept().unwrap();
                assert_eq!(connection.read(&mut [0; 99]).unwrap(), 9);
                connection.write_all(word.as_bytes()).unwrap();
            });
            assert_eq!(ask(), format!("heard {word}"));
        });
        // Away, and then back with a new socket under the same name.
        drop(listener.take());
        assert_eq!(ask().trim(), "heard");
        fs::remove_file(&socket).unwrap();
        assert_eq!(ask().trim(), "heard");
        listener = Some(UnixListener::bind(&socket).unwrap());
    }
    drop(questions);
    assert!(confined.child.wait().unwrap().success());
}

#[test]
fn nothing_but_the_socket_is_seen_and_nothing_is_put_beside_it() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(Guard::Full, who);
        fs::create_dir(room.path("proxy")).unwrap();
        room.give("proxy");
        let _listener = UnixListener::bind(room.path("proxy/socket")).unwrap();
        let room = room.with(&["--net", &room.text("proxy/socket")]);
        let script =
            "ls /run/sandbox; cd /run/sandbox; (echo x > new) 2>/dev/null; rm -f socket 2>/dev/null; ls";
        let output = room.shell(script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "socket\nsocket\n", "{who:?}: {}", said(&output));
        assert_eq!(fs::read_dir(room.path("proxy")).unwrap().count(), 1);
    }
}

/// A directory that takes the name of the one that was approved is not shown.
#[test]
fn a_swapped_directory_is_not_followed() {
    if skipped() {
        return;
    }
    let room = Room::new(Guard::Full, Who::all()[0]);
    fs::create_dir(room.path("proxy")).unwrap();
    let _listener = UnixListener::bind(room.path("proxy/socket")).unwrap();
    let network = Network::Proxy { socket: room.text("proxy/socket").into() };
    let sealed = Policy::new("/").with_network(network).seal().unwrap();
    fs::rename(room.path("proxy"), room.path("away")).unwrap();
    fs::rename(room.path("outside"), room.path("proxy")).unwrap();
    let refused = sealed.launch(launcher(), Level::Full, &["/bin/true".to_owned()], None).unwrap_err();
    assert!(refused.to_string().contains("is another directory"), "{refused}");
}

/// The launcher holds the roots open while it works, and the program's limit is not its own.
#[test]
fn few_open_files_and_many_roots() {
    if skipped() {
        return;
    }
    let room = Room::new(Guard::Full, Who::all()[0]);
    let mut policy = Policy::new("/").with_variable("PATH", "/usr/bin:/bin");
    for number in 0..40 {
        fs::create_dir(room.path(&format!("scope/{number}"))).unwrap();
        policy = policy.allow_write(room.text(&format!("scope/{number}")));
    }
    policy.limits.open_files = Some(sandbox::OPEN_FILES_MIN);
    let sealed = policy.seal().unwrap();
    for level in [Level::Floor, Level::Full] {
        let argv = ["sh", "-c", "ulimit -Hn"].map(str::to_owned);
        let output = sealed.launch(launcher(), level, &argv, None).unwrap().child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "16\n", "{level}");
    }
}
