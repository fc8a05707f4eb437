//! Many attempts at once, from every kind of thread and child, and many sessions one after the other.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use sandbox::{Level, SealedPolicy};

use crate::launches::{launcher, policy};
use crate::room::{Guard, Room, Victim, Who, said, skipped};

/// Sessions one after the other, at each level and for each user in turn.
const SESSIONS: usize = 200;

/// What there is outside to be reached, and what has become of it.
struct Outside {
    victim: Victim,
    local: UnixListener,
    far: TcpListener,
}

/// What can be seen outside of the attempts that were made inside.
const EFFECTS: [&str; 6] = [
    "the secret changed",
    "a file was made",
    "a signal came",
    "an abstract socket",
    "a port",
    "the secret was copied",
];

impl Outside {
    fn of(room: &Room) -> Self {
        fs::create_dir(room.path("scope/mine")).unwrap();
        room.give("scope/mine");
        let local = UnixListener::bind_addr(&SocketAddr::from_abstract_name(room.mark()).unwrap()).unwrap();
        local.set_nonblocking(true).unwrap();
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        far.set_nonblocking(true).unwrap();
        Self { victim: room.victim(), local, far }
    }

    fn port(&self) -> String {
        self.far.local_addr().unwrap().port().to_string()
    }

    fn effects(self, room: &Room) -> Vec<&'static str> {
        self.victim.end();
        let entries =
            |name: &str| fs::read_dir(room.path(name)).unwrap().map(|entry| entry.unwrap().file_name());
        let known = ["secret", "signals"];
        let seen = [
            fs::read(room.path("outside/secret")).ok().as_deref() != Some(b"secret"),
            entries("outside").any(|name| !known.iter().any(|known| name == *known)),
            room.path("outside/signals").exists(),
            self.local.accept().is_ok(),
            self.far.accept().is_ok(),
            entries("scope/mine").count() > 0,
        ];
        EFFECTS.into_iter().zip(seen).filter_map(|(effect, seen)| seen.then_some(effect)).collect()
    }
}

/// 32 threads and 32 children of one session, which all begin at the same moment.
fn crowd(guard: Guard, expected: &[&str]) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(guard, who);
        let outside = Outside::of(&room);
        room.put("crowd", include_str!("crowd.c"), "readable/crowd");
        let (place, mine, program) =
            (room.text("outside"), room.text("scope/mine"), room.text("readable/crowd"));
        let argv = [&program, &place, &outside.victim.pid(), &room.mark(), &outside.port(), &mine];
        let output = room.inside(&argv.map(String::as_str)).output().unwrap();
        // Otherwise not all of them have made their attempts.
        assert_eq!(output.status.code(), Some(0), "{who:?} at {guard:?}: {}", said(&output));
        assert_eq!(outside.effects(&room), expected, "{who:?} at {guard:?}");
    }
}

#[test]
fn a_crowd_gets_out_at_off() {
    crowd(Guard::Off, &EFFECTS);
}

#[test]
fn a_crowd_is_held_at_floor() {
    crowd(Guard::Floor, &[]);
}

#[test]
fn a_crowd_is_held_at_full() {
    crowd(Guard::Full, &[]);
}

/// What one session after the other tries: the words of an attempt.
fn attempts(room: &Room, outside: &Outside) -> Vec<Vec<String>> {
    let (secret, new, mine) =
        (room.text("outside/secret"), room.text("outside/new"), room.text("scope/mine/secret"));
    let (pid, mark, port) = (outside.victim.pid(), room.mark(), outside.port());
    let words: [&[&str]; 16] = [
        &["append", &secret],
        &["open-and-cut", &secret],
        &["truncate", &secret],
        &["unlink", &secret],
        &["rename", &secret, &mine],
        &["link", &secret, &mine],
        &["create", &new],
        &["mkdir", &new],
        &["symlink", &new],
        &["read", &secret],
        &["kill", &pid],
        &["pidfd-signal", &pid],
        &["abstract", &mark],
        &["tcp", &port],
        &["fast-open", &port],
        &["ring-connect", &port],
    ];
    words.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect()
}

struct Serial {
    room: Room,
    outside: Outside,
    attempts: Vec<Vec<String>>,
    sealed: SealedPolicy,
}

impl Serial {
    fn new(who: Who) -> Self {
        let room = Room::new(Guard::Full, who);
        let outside = Outside::of(&room);
        let attempts = attempts(&room, &outside);
        let sealed = policy(&room).allow_read(room.text("readable")).seal().unwrap();
        Self { room, outside, attempts, sealed }
    }

    fn attempt(&self, number: usize, level: Level) {
        let words = &self.attempts[number % self.attempts.len()];
        let mut argv = vec![self.room.text("readable/attempt")];
        argv.extend(words.iter().cloned());
        let confined = self.sealed.launch(self.room.as_user(launcher()), level, &argv, None).unwrap();
        let output = confined.child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(1),
            "session {number} at {level}, {words:?}: {}",
            said(&output)
        );
    }
}

/// A race that is lost once in a hundred times would show here.
#[test]
fn two_hundred_sessions_in_a_row_are_held() {
    if skipped() {
        return;
    }
    let series: Vec<_> = Who::all().into_iter().map(Serial::new).collect();
    for number in 0..SESSIONS {
        let level = if number % 2 == 0 { Level::Full } else { Level::Floor };
        let series = &series[number / 2 % series.len()];
        // Each pair of levels makes the same attempt, and every user comes to each.
        series.attempt(number / 4, level);
    }
    for Serial { room, outside, .. } in series {
        assert_eq!(outside.effects(&room), [] as [&str; 0], "{:?}", room.who);
    }
}
