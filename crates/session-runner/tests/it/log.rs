//! The log: written, rotated, read and followed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use jiff::{SignedDuration, Timestamp};
use session_runner::workspace::log::{
    LogFollower, LogReader, LogRecord, LogRotation, LogWriter, PIECE_BYTES, Start, Stream,
};

use crate::fixture::{Place, block_on};

fn at(seconds: i64) -> Timestamp {
    "2026-11-21T04:31:00.123Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn writer(place: &Place, max_bytes: u64, files: u32) -> LogWriter {
    LogWriter::open(&place.path.join("log"), LogRotation { max_bytes, files }).unwrap()
}

fn write(writer: &mut LogWriter, text: &str) {
    writer.write(at(0), Stream::Stdout, text.as_bytes()).unwrap();
}

fn texts(records: impl IntoIterator<Item = LogRecord>) -> Vec<String> {
    records.into_iter().map(|record| String::from_utf8(record.bytes).unwrap()).collect()
}

fn last(place: &Place, lines: usize) -> Vec<String> {
    texts(LogReader::open(&place.path.join("log"), Start::Last(lines)).unwrap().map(Result::unwrap))
}

pub(crate) fn records_come_back_as_they_were_written() {
    let place = Place::new();
    let mut log = writer(&place, 1 << 20, 4);
    log.state(at(0), "started\nand on one line").unwrap();
    log.write(at(1), Stream::Stdout, b"one\ntwo").unwrap();
    log.write(at(2), Stream::Stderr, b"\xff\0\x1b[1m\r\n\n").unwrap();
    log.write(at(3), Stream::Stdout, b" and a half\n").unwrap();
    let endless = vec![b'x'; PIECE_BYTES * 2 + 5];
    log.write(at(4), Stream::Stdout, &endless).unwrap();
    log.flush(at(5)).unwrap();
    log.finish(at(6)).unwrap();
    log.finish(at(7)).unwrap();
    let record = |seconds, stream, ends_line, bytes: &[u8]| LogRecord {
        at: at(seconds),
        stream,
        ends_line,
        bytes: bytes.into(),
    };
    let expect = [
        record(0, Stream::State, true, b"started and on one line"),
        record(1, Stream::Stdout, true, b"one"),
        record(2, Stream::Stderr, true, b"\xff\0\x1b[1m\r"),
        record(2, Stream::Stderr, true, b""),
        record(3, Stream::Stdout, true, b"two and a half"),
        record(4, Stream::Stdout, false, &endless[..PIECE_BYTES]),
        record(4, Stream::Stdout, false, &endless[..PIECE_BYTES]),
        record(5, Stream::Stdout, false, b"xxxxx"),
        record(6, Stream::Stdout, true, b""),
    ];
    assert_eq!(place.records(), expect);
    assert_eq!(fs::metadata(place.path.join("log")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(LogReader::open(&place.path.join("none"), Start::Beginning).unwrap().count(), 0);
}

pub(crate) fn rotation_bounds_the_log() {
    let place = Place::new();
    let mut log = writer(&place, 1000, 3);
    for number in 0..1000 {
        write(&mut log, &format!("{number}\n"));
    }
    let mut names: Vec<String> = fs::read_dir(&place.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["log", "log.1", "log.2"]);
    for name in names {
        let metadata = fs::metadata(place.path.join(&name)).unwrap();
        assert!(metadata.len() <= 1000, "{name}");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    let numbers: Vec<u32> = texts(place.records()).iter().map(|text| text.parse().unwrap()).collect();
    assert!(numbers.len() > 50 && numbers.is_sorted() && numbers.ends_with(&[998, 999]), "{numbers:?}");
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    // A single file is cut instead.
    let single = Place::new();
    let mut log = writer(&single, 1000, 1);
    (0..1000).for_each(|number| write(&mut log, &format!("{number}\n")));
    assert_eq!(fs::read_dir(&single.path).unwrap().count(), 1);
    assert_eq!(last(&single, 1), ["999"]);
}

pub(crate) fn the_last_lines_are_found_across_files() {
    let place = Place::new();
    let mut log = writer(&place, 400, 4);
    for number in 0..100 {
        write(&mut log, &format!("{number}\n"));
    }
    assert_eq!(last(&place, 0), Vec::<String>::new());
    assert_eq!(last(&place, 3), ["97", "98", "99"]);
    let across: Vec<String> = (75..100).map(|number| number.to_string()).collect();
    assert_eq!(last(&place, 25), across);
    let all = texts(place.records());
    assert_eq!(last(&place, 10_000), all);
    // The pieces of a line count as one, and what is not ended yet is shown as well.
    let place = Place::new();
    let mut log = writer(&place, 1 << 20, 4);
    write(&mut log, &format!("before\n{}\nunfinished", "x".repeat(PIECE_BYTES + 1)));
    log.flush(at(0)).unwrap();
    assert_eq!(last(&place, 1).iter().map(String::len).collect::<Vec<_>>(), [PIECE_BYTES, 1, 10]);
}

pub(crate) fn torn_lines_are_closed_and_skipped() {
    let place = Place::new();
    let path = place.path.join("log");
    write(&mut writer(&place, 1 << 20, 4), "one\n");
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"2026-11-21T04:31:00.123Z stdo")
        .unwrap();
    let mut reader = LogReader::open(&path, Start::Beginning).unwrap();
    assert_eq!(texts(reader.by_ref().map(Result::unwrap)), ["one"]);
    assert_eq!(reader.skipped(), 1);
    write(&mut writer(&place, 1 << 20, 4), "two\n");
    let mut reader = LogReader::open(&path, Start::Beginning).unwrap();
    assert_eq!(texts(reader.by_ref().map(Result::unwrap)), ["one", "two"]);
    assert_eq!(reader.skipped(), 1);
}

pub(crate) fn a_follower_loses_nothing_over_rotations() {
    for start in [Start::Beginning, Start::Last(2)] {
        let place = Place::new();
        let mut log = writer(&place, 400, 4);
        (0..15).for_each(|number| write(&mut log, &format!("{number}\n")));
        block_on(async {
            let mut follower = LogFollower::open(&place.path.join("log"), start).unwrap();
            let first = if start == Start::Beginning { 0 } else { 13 };
            let mut seen = texts(follower.next().await.unwrap());
            let mut next = 15;
            // Up to three files at a time are filled between two looks.
            for burst in (1..=25).cycle().take(100) {
                for _ in 0..burst {
                    write(&mut log, &format!("{next}\n"));
                    next += 1;
                }
                while seen.last().is_none_or(|last| *last != (next - 1).to_string()) {
                    seen.extend(texts(follower.next().await.unwrap()));
                }
            }
            let expect: Vec<String> = (first..next).map(|number| number.to_string()).collect();
            assert_eq!(seen, expect);
            assert!(!follower.lost_records());
            assert_eq!(follower.available().unwrap(), []);
        });
    }
}

pub(crate) fn a_follower_that_is_outrun_says_so() {
    let place = Place::new();
    let mut log = writer(&place, 400, 2);
    write(&mut log, "first\n");
    block_on(async {
        let mut follower = LogFollower::open(&place.path.join("log"), Start::Beginning).unwrap();
        assert_eq!(texts(follower.next().await.unwrap()), ["first"]);
        (0..1000).for_each(|number| write(&mut log, &format!("{number}\n")));
        let seen = texts(follower.next().await.unwrap());
        assert_eq!(seen.last().map(String::as_str), Some("999"));
        assert!(follower.lost_records());
        // What it held open it read to the end; then it went on with the oldest that is still there.
        assert!(seen.starts_with(&["0".into(), "1".into()]), "{seen:?}");
        assert!(seen.len() < 100 && seen.ends_with(&texts(place.records())), "{seen:?}");
    });
}

pub(crate) fn a_follower_waits_for_a_log_that_is_not_there_yet() {
    let place = Place::new();
    block_on(async {
        let mut follower = LogFollower::open(&place.path.join("log"), Start::Last(10)).unwrap();
        assert_eq!(follower.available().unwrap(), []);
        let path = place.path.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut log = LogWriter::open(&path.join("log"), LogRotation::default()).unwrap();
            // Half a record at first, which nobody must see.
            let mut file = fs::OpenOptions::new().append(true).open(path.join("log")).unwrap();
            file.write_all(b"2026-11-21T04:31:00.123Z stdout F hel").unwrap();
            file.write_all(b"lo\n").unwrap();
            write(&mut log, "world\n");
        });
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(texts(follower.next().await.unwrap()));
        }
        assert_eq!(seen, ["hello", "world"]);
        writing.await.unwrap();
    });
}

pub(crate) fn a_link_in_the_place_of_the_log_is_not_followed() {
    let place = Place::new();
    let victim = place.path.join("victim");
    fs::write(&victim, "precious\n").unwrap();
    std::os::unix::fs::symlink(&victim, place.path.join("log")).unwrap();
    LogWriter::open(&place.path.join("log"), LogRotation::default()).unwrap_err();
    LogReader::open(&place.path.join("log"), Start::Beginning).unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious\n");
}
