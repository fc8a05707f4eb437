//! A program that holds a conversation with its host: over the wire, and into the log.

use sandbox::Level;
use session_runner::process::{EndCause, Ends, Exit, KeeperSpec, Supervised, Wiring};
use session_runner::workspace::log::Stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::fixture::{Place, block_on, end, own, start};

/// The same run in the open and at both levels of the sandbox.
fn everywhere(place: &Place, script: &str) -> [KeeperSpec; 3] {
    let work = |level| place.confined(level, script);
    let converses = |spec| KeeperSpec { wiring: Wiring::Carried, ..spec };
    [place.script(script), work(Level::Floor), work(Level::Full)].map(converses)
}

async fn started(spec: &KeeperSpec) -> (Supervised, UnixStream) {
    let mut run = start(spec).await;
    let wire = run.take_wire().expect("it converses");
    assert!(run.take_wire().is_none(), "there is one");
    (run, wire)
}

pub(crate) fn each_side_hears_the_other_and_its_end() {
    let script =
        "echo ready; while read -r line; do echo \"you said $line\"; done; echo aside >&2; echo over";
    for index in 0..3 {
        let place = Place::new();
        let spec = everywhere(&place, script)[index].clone();
        let (heard, end) = block_on(async {
            let (mut run, mut wire) = started(&spec).await;
            wire.write_all(b"one\ntwo \xff\n").await.unwrap();
            wire.shutdown().await.unwrap();
            let mut heard = Vec::new();
            wire.read_to_end(&mut heard).await.unwrap();
            (heard, end(&mut run).await)
        });
        let expected = b"ready\nyou said one\nyou said two \xff\nover\n";
        assert_eq!(heard.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(place.output(Stream::Stdout), expected, "the log has it as well");
        assert_eq!(place.output(Stream::Stderr), b"aside\n");
        assert_eq!((end.exit, end.cause, end.log_errors), (Some(Exit::Code(0)), EndCause::Exited, 0));
    }
}

pub(crate) fn a_hundred_megabytes_come_whole_and_whoever_is_slow_is_waited_for() {
    let place = Place::new();
    let mut spec = place.spec(&[]);
    (spec.argv, spec.wiring) = (own(&["lines", "100"]), Wiring::Carried);
    block_on(async {
        let (mut run, mut wire) = started(&spec).await;
        // Far more than all buffers on the way together: it cannot have ended.
        let mut first = vec![0; 1000];
        wire.read_exact(&mut first).await.unwrap();
        assert!(run.child().is_alive().unwrap());
        let rest = tokio::spawn(async move {
            let (mut bytes, mut buffer) = (first.len(), vec![0; 1 << 20]);
            loop {
                match wire.read(&mut buffer).await.unwrap() {
                    0 => return bytes,
                    read => bytes += read,
                }
            }
        });
        let end = end(&mut run).await;
        assert_eq!((end.exit, end.output.stdout_bytes), (Some(Exit::Code(0)), 100_000_000));
        assert_eq!(rest.await.unwrap(), 100_000_000);
    });
}

pub(crate) fn a_host_that_lets_go_of_the_wire_is_taken_for_silent() {
    let script = "read -r line || echo nothing follows; head -c 3000000 /dev/zero; echo; echo over";
    for index in 0..3 {
        let place = Place::new();
        let spec = everywhere(&place, script)[index].clone();
        let end = block_on(async {
            let (mut run, wire) = started(&spec).await;
            drop(wire);
            end(&mut run).await
        });
        assert_eq!((end.exit, end.cause), (Some(Exit::Code(0)), EndCause::Exited));
        let said = place.output(Stream::Stdout);
        assert!(said.starts_with(b"nothing follows\n") && said.ends_with(b"\nover\n"));
    }
}

pub(crate) fn a_host_that_never_reads_does_not_keep_a_run_that_is_stopped() {
    let place = Place::new();
    let spec = KeeperSpec { wiring: Wiring::Carried, ..place.script("exec yes") };
    let end = block_on(async {
        let (mut run, _wire) = started(&spec).await;
        assert!(run.control().stop(None).unwrap());
        end(&mut run).await
    });
    assert_eq!((end.exit, end.cause, end.survivors), (Some(Exit::Signal(15)), EndCause::Stopped, 0));
}

pub(crate) fn a_program_that_reads_nothing_does_not_hold_its_host_up_for_ever() {
    let place = Place::new();
    let spec = KeeperSpec { wiring: Wiring::Carried, ..place.script("exec <&-; echo closed; sleep 1000") };
    block_on(async {
        let (mut run, mut wire) = started(&spec).await;
        let mut heard = [0; 7];
        wire.read_exact(&mut heard).await.unwrap();
        // More than the buffers on the way take: it goes nowhere, and is taken nevertheless.
        wire.write_all(&vec![b'x'; 4 << 20]).await.unwrap();
        assert!(run.control().kill().unwrap());
        assert_eq!(end(&mut run).await.cause, EndCause::Killed);
    });
}

pub(crate) fn pipes_that_are_handed_out_are_seen_by_nobody_on_the_way() {
    let script = "read -r line; echo \"you said $line\"; echo aside >&2; head -c 50000000; echo over";
    for index in 0..3 {
        let place = Place::new();
        let spec = KeeperSpec { wiring: Wiring::HandedOut, ..everywhere(&place, script)[index].clone() };
        let (said, end) = block_on(async {
            let mut run = start(&spec).await;
            assert!(run.take_wire().is_none());
            let Ends { mut stdin, mut stdout } = run.take_ends().expect("they are handed out");
            assert!(run.take_ends().is_none(), "there is one of each");
            let mut said = Vec::new();
            let say = async {
                stdin.write_all(b"hello\n").await.unwrap();
                stdin.write_all(&vec![b'x'; 50_000_000]).await.unwrap();
                drop(stdin);
            };
            let (heard, ()) = tokio::join!(stdout.read_to_end(&mut said), say);
            assert!(heard.is_ok());
            (said, end(&mut run).await)
        });
        assert_eq!((end.exit, end.output.stdout_bytes), (Some(Exit::Code(0)), 0));
        assert!(said.starts_with(b"you said hello\nxxx") && said.ends_with(b"xxxover\n"));
        assert_eq!(said.len(), "you said hello\nover\n".len() + 50_000_000);
        assert_eq!(
            (place.output(Stream::Stdout), place.output(Stream::Stderr)),
            (vec![], b"aside\n".to_vec())
        );
    }
}

pub(crate) fn a_program_whose_pipes_nobody_keeps_reads_its_end() {
    let place = Place::new();
    let spec = KeeperSpec { wiring: Wiring::HandedOut, ..place.script("cat; echo closed >&2") };
    let end = block_on(async {
        let mut run = start(&spec).await;
        drop(run.take_ends());
        end(&mut run).await
    });
    assert_eq!((end.exit, end.cause), (Some(Exit::Code(0)), EndCause::Exited));
}
