//! What becomes of a program's output, however much there is and wherever it cannot go.

use std::fs;

use session_runner::process::{Exit, RunReport};
use session_runner::workspace::log::{LogFollower, LogRotation, PIECE_BYTES, Start, Stream};

use crate::fixture::{Place, block_on, end, own, run, start};

pub(crate) fn a_gigabyte_is_quick_and_bounded_on_disk() {
    let place = Place::new();
    let mut spec = place.spec(&[]);
    spec.argv = own(&["lines", "1000"]);
    let began = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let end = run(&spec);
    let took = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec - began.tv_sec;
    assert_eq!((end.exit, end.output.stdout_bytes, end.log_errors), (Some(Exit::Code(0)), 1_000_000_000, 0));
    let sizes: Vec<u64> = ["log", "log.1", "log.2", "log.3", "log.4"]
        .iter()
        .filter_map(|name| fs::metadata(place.path.join(name)).ok())
        .map(|metadata| metadata.len())
        .collect();
    assert_eq!(sizes.len(), 4);
    assert!(sizes.iter().all(|size| *size <= LogRotation::default().max_bytes), "{sizes:?}");
    // Three full files, each short of a line that did not fit, and one that may just have begun.
    assert!(sizes.iter().sum::<u64>() > 47 << 20, "{sizes:?}");
    let last = format!("{:099}", 9_999);
    assert!(place.stdout().ends_with(&format!("{last}\n")));
    assert_eq!(end.output.last_line, Some(last));
    assert!(took < 60, "it took {took} s");
}

pub(crate) fn a_line_of_100_megabytes_is_whole() {
    let place = Place::new();
    let mut spec = place.spec(&[]);
    spec.argv = own(&["long-line", "100000000"]);
    spec.rotation.max_bytes = 200 << 20;
    let end = run(&spec);
    assert_eq!((end.exit, end.log_errors), (Some(Exit::Code(0)), 0));
    let records: Vec<_> =
        place.records().into_iter().filter(|record| record.stream == Stream::Stdout).collect();
    assert!(records.iter().all(|record| record.bytes.len() <= PIECE_BYTES));
    assert_eq!(records.iter().filter(|record| record.ends_line).count(), 1);
    assert_eq!(records.iter().map(|record| record.bytes.len()).sum::<usize>(), 100_000_000);
    assert!(records.iter().flat_map(|record| &record.bytes).all(|byte| *byte == b'x'));
}

pub(crate) fn binary_bytes_are_verbatim() {
    let place = Place::new();
    let mut spec = place.spec(&[]);
    spec.argv = own(&["bytes", "1000"]);
    assert_eq!(run(&spec).exit, Some(Exit::Code(0)));
    let mut expect = (0..=255).collect::<Vec<u8>>().repeat(1000);
    expect.push(b'\n');
    assert!(place.output(Stream::Stdout) == expect, "not verbatim");
}

pub(crate) fn a_full_disk_is_counted_and_does_not_stop_the_run() {
    for log in ["/dev/full", "/no/such/directory/log"] {
        let place = Place::new();
        let mut spec = place.spec(&[]);
        spec.argv = own(&["lines", "10"]);
        spec.log = log.into();
        let end = run(&spec);
        assert_eq!((end.exit, end.output.stdout_bytes), (Some(Exit::Code(0)), 10_000_000), "{log}");
        assert!(end.log_errors > 0, "{log}");
        assert!(end.log_error.as_deref().is_some_and(|error| error.starts_with(log)), "{end:?}");
    }
}

pub(crate) fn a_prompt_is_shown_before_its_line_ends() {
    let place = Place::new();
    let spec = place.script("printf 'name? '; exec sleep 1000");
    block_on(async {
        let mut run = start(&spec).await;
        let mut follower = LogFollower::open(&spec.log, Start::Beginning).unwrap();
        let prompt = loop {
            let records = follower.next().await.unwrap();
            if let Some(prompt) = records.into_iter().find(|record| record.stream == Stream::Stdout) {
                break prompt;
            }
        };
        assert_eq!((prompt.bytes.as_slice(), prompt.ends_line), (&b"name? "[..], false));
        run.control().kill().unwrap();
        end(&mut run).await;
        let rest = follower.available().unwrap();
        let closed = rest.iter().find(|record| record.stream == Stream::Stdout).unwrap();
        assert_eq!((closed.bytes.as_slice(), closed.ends_line), (&b""[..], true));
        assert_eq!(place.stdout(), "name? \n");
    });
}

pub(crate) fn a_host_that_does_not_read_slows_nothing() {
    let place = Place::new();
    // Long lines, so that reports of them would fill the pipe soon.
    let spec = place.script("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; echo last; exit 6");
    block_on(async {
        let mut run = start(&spec).await;
        // Not one report is read until the program is gone.
        crate::fixture::until_ended(run.child());
        let end = loop {
            match run.next_report().await.unwrap() {
                Some(RunReport::Progress(_)) => {}
                Some(RunReport::Ended(end)) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end.exit, Some(Exit::Code(6)));
        assert_eq!(end.output.last_line.as_deref(), Some("last"));
    });
}
