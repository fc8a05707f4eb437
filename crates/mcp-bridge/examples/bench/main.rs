//! What the bridge costs, beside a floor: the least program that passes bodies to one process for each session and back.
//!
//! `bench [ROUNDS] [ROOMETTE]` prints medians of interleaved rounds, and how many times the floor each is. Where the built
//! program is named, `roomette bridge --session-isolation` is measured too: each session confined by the kernel, recorded,
//! and under a keeper of its own.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a program for the command line, which starts its own processes"
)]

mod client;
mod memory;
mod served;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use client::{Figures, Place, median};

const CHILD: &str = "--child";
const SERVE: &str = "--serve";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some(CHILD) => echo(),
        Some(SERVE) => runtime().block_on(served::serve(&arguments[1])),
        rounds => {
            let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
            runtime().block_on(measure(rounds, arguments.get(1).map(Path::new)));
        }
    }
}

/// The server: it answers with what it was asked.
fn echo() {
    let (stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in stdin.lines() {
        let line = line.unwrap();
        let Some(id) = line.split(r#""id":"#).nth(1).and_then(|rest| rest.split([',', '}']).next()) else {
            continue;
        };
        let result = match line.split(r#""arguments":"#).nth(1) {
            Some(arguments) => &arguments[..arguments.len() - 2],
            None => r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#,
        };
        writeln!(stdout, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).unwrap();
        stdout.flush().unwrap();
    }
}

fn start() -> tokio::process::Child {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

/// Somebody who serves, until this is dropped.
struct Server {
    process: std::process::Child,
    place: Place,
    home: Option<PathBuf>,
}

impl Server {
    fn of(what: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut process =
            command.args([SERVE, what]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let place = Place::of(&url, process.id());
        Self { process, place, home: None }
    }

    fn roomette(program: &Path) -> Self {
        let server = std::env::current_exe().unwrap();
        let directory = server.parent().unwrap();
        let home = std::env::temp_dir().join(format!("roomette-bench-{}", std::process::id()));
        let mut command = Command::new(program);
        command.arg("--json").arg("--home").arg(&home).args(["bridge", "--session-isolation"]);
        command.args(["--listen", "127.0.0.1:0", "--sessions", "200", "--name", "echo", "--allow-read"]);
        command.arg(directory).arg("--").arg(&server).arg(CHILD);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let url = said.split('"').find(|part| part.starts_with("http://")).unwrap();
        let token = fs::read_to_string(home.join("bridge.token")).unwrap();
        let place = Place { token: Some(token.trim().to_owned()), ..Place::of(url, process.id()) };
        Self { process, place, home: Some(home) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its stdin, where it waits for that.
        drop(self.process.stdin.take());
        if self.home.is_some() {
            Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        }
        self.process.wait().unwrap();
        if let Some(home) = &self.home {
            fs::remove_dir_all(home).unwrap();
        }
    }
}

/// A server without anything between: how long it takes to begin, and a call, in milliseconds.
fn direct() -> (f64, f64) {
    let began = Instant::now();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut process = command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) =
        (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
    let mut ask = |line: &str| {
        stdin.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        stdout.read_line(&mut answer).unwrap();
    };
    ask("{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\"}\n");
    let opened = began.elapsed().as_secs_f64() * 1e3;
    let mut calls = Vec::new();
    for _ in 0..2_000 {
        let began = Instant::now();
        ask("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"arguments\":{}}}\n");
        calls.push(began.elapsed().as_secs_f64() * 1e3);
    }
    drop(stdin);
    process.wait().unwrap();
    (opened, median(&mut calls))
}

async fn measure(rounds: usize, roomette: Option<&Path>) {
    let (mut opened, mut calls): (Vec<_>, Vec<_>) = (0..rounds.max(3)).map(|_| direct()).unzip();
    let (opened, call) = (median(&mut opened), median(&mut calls));
    println!("direct stdio: spawn and initialize {opened:.2} ms, call {call:.4} ms");
    let mut servers = vec![Server::of(served::FLOOR), Server::of(served::BRIDGE)];
    servers.extend(roomette.map(Server::roomette));
    let mut weights = Vec::new();
    for server in &servers {
        weights.push(vec![client::weigh(&server.place).await]);
    }
    let mut figures: Vec<Vec<Figures>> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (server, figures) in servers.iter().zip(&mut figures) {
            figures.push(client::round(&server.place).await);
        }
    }
    println!("{:36}{:>12}{:>12}{:>7}{:>18}{:>7}", "", "floor", "bridge", "", "roomette bridge", "");
    print(&weights);
    print(&figures);
}

/// Of each server the middle one of its rounds.
fn print(figures: &[Vec<Figures>]) {
    for (index, (name, _)) in figures[0][0].iter().enumerate() {
        let of =
            |rounds: &Vec<Figures>| median(&mut rounds.iter().map(|one| one[index].1).collect::<Vec<_>>());
        let mut shown = figures.iter().map(of);
        let floor = shown.next().unwrap();
        let bridge = shown.next().unwrap();
        print!("{name:36}{floor:12.3}{bridge:12.3}{:7.2}", bridge / floor);
        match shown.next() {
            Some(product) => println!("{product:18.3}{:7.2}", product / floor),
            None => println!(),
        }
    }
}
