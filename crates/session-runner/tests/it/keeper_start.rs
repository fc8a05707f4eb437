//! What a program is started with, and what cannot be started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use session_runner::process::protocol::SpecError;
use session_runner::process::{
    Exit, KeeperProgram, KeeperSpec, KeeperState, ProcessIdentity, RunOutcome, Setting, SpawnError,
    SpawnFailure, SpawnFailureKind, Supervised, recover_keeper,
};
use session_runner::workspace::log::Stream;

use crate::fixture::{Place, block_on, keeper_program, other_host, own, program, run};

pub(crate) fn argv_travels_verbatim() {
    let place = Place::new();
    let hard =
        ["", " ", "'\"`", "$(touch x) ${HOME}", "a\nb\r\tc", "\\", "--", "é\u{1f600}", "*", "\u{1}\u{7f}"];
    let mut spec = place.spec(&[]);
    spec.argv = own(&["print-arguments"]);
    spec.argv.extend(hard.map(String::from));
    assert_eq!(run(&spec).exit, Some(Exit::Code(0)));
    assert_eq!(serde_json::from_str::<Vec<String>>(&place.stdout()).unwrap(), hard);
    assert!(!place.path.join("x").exists());
}

pub(crate) fn the_environment_is_what_was_given() {
    let place = Place::new();
    let mut spec = place.spec(&["/usr/bin/env", "-0"]);
    let env =
        vec![("A".into(), "1".into()), ("B".into(), "two\nlines = 'x'".into()), ("C".into(), String::new())];
    spec.setting = Setting::Open { env, cwd: place.path.clone() };
    assert_eq!(run(&spec).exit, Some(Exit::Code(0)));
    // The log ends the line that the program has not ended.
    assert_eq!(place.output(Stream::Stdout), b"A=1\0B=two\nlines = 'x'\0C=\0\n");
}

pub(crate) fn no_descriptor_is_inherited() {
    let place = Place::new();
    let spec = place.script(
        "readlink /proc/$$/fd/* > program; ls /proc/$$/fd > numbers; \
         { readlink /proc/$PPID/fd/* > keeper; tr '\\0' '\\n' > keeper-env < /proc/$PPID/environ; } 2>/dev/null; \
         echo done; exec sleep 1000",
    );
    let held = place.path.join("held");
    fs::write(&held, "").unwrap();
    let mut leaky = program("sh");
    leaky.args(["-c", "exec 9<\"$1\" 8>&2; shift; exec \"$@\"", "sh", held.as_str(), &own(&[])[0]]);
    let (mut host, keeper) = other_host(leaky, &place, &spec, "done");
    let seen = |name: &str| fs::read_to_string(place.path.join(name)).unwrap();
    // A shell has its script or its own copy of a descriptor at 10 and above, if anything.
    assert!(!seen("program").contains("held"), "{}", seen("program"));
    assert!(!seen("keeper").contains("held"), "{}", seen("keeper"));
    assert_eq!(seen("keeper-env"), "", "the keeper's environment is empty");
    // Nobody but root may look into a keeper at all.
    assert_eq!(seen("keeper").is_empty(), !rustix::process::getuid().is_root());
    assert_eq!(
        seen("numbers").lines().filter(|number| number.parse::<u32>().is_ok_and(|n| n < 10)).count(),
        3
    );
    host.kill();
    crate::fixture::until_ended(&keeper);
}

pub(crate) fn what_cannot_be_started_says_why() {
    let place = Place::new();
    let script = place.path.join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o600)).unwrap();
    let start_in =
        |cwd| KeeperSpec { setting: Setting::Open { env: Vec::new(), cwd }, ..place.spec(&["true"]) };
    let missing = start_in(place.path.join("gone"));
    let file = start_in(script.clone());
    let huge = "x".repeat(1 << 20);
    for (spec, kind, words) in [
        (place.spec(&["no-such-program"]), SpawnFailureKind::NotFound, "\"no-such-program\": no such file"),
        (place.spec(&["/no/such/program"]), SpawnFailureKind::NotFound, "/no/such/program"),
        (place.spec(&[script.as_str()]), SpawnFailureKind::Permission, "permission denied"),
        (place.spec(&["true", &huge]), SpawnFailureKind::TooLong, "argument list too long"),
        (missing, SpawnFailureKind::WorkingDirectory, "gone: no such file"),
        (file, SpawnFailureKind::WorkingDirectory, "not a directory"),
    ] {
        let failure = failure(&spec);
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(words), "{failure:?}");
        let recorded = recover_keeper(&spec.state_file, spec.run).unwrap();
        assert_eq!(recorded, KeeperState::Ended(RunOutcome::SpawnFailed(failure)));
    }
}

pub(crate) fn what_no_process_can_hold_is_refused_before_anything_is_made() {
    let place = Place::new();
    let good = place.spec(&["true"]);
    let with_argv =
        |argv: &[&str]| KeeperSpec { argv: argv.iter().map(|a| (*a).into()).collect(), ..good.clone() };
    let with = |setting| KeeperSpec { setting, ..good.clone() };
    let with_env = |name: &str, value: &str| {
        with(Setting::Open { env: vec![(name.into(), value.into())], cwd: place.path.clone() })
    };
    for (spec, expect) in [
        (with_argv(&[]), SpecError::NoProgram),
        (with_argv(&[""]), SpecError::NoProgram),
        (with_argv(&["true", "a\0b"]), SpecError::Nul("argv[1]".into())),
        (with_env("A", "\0"), SpecError::Nul("env A".into())),
        (with_env("A=B", "x"), SpecError::VariableName("A=B".into())),
        (with_env("", "x"), SpecError::VariableName(String::new())),
        (
            with(Setting::Open { env: Vec::new(), cwd: "here".into() }),
            SpecError::Relative { field: "cwd", path: "here".into() },
        ),
    ] {
        match block_on(Supervised::start(&keeper_program(), &spec)) {
            Err(SpawnError::Spec(error)) => assert_eq!(error, expect),
            other => panic!("expected {expect:?}, got {other:?}"),
        }
    }
    assert_eq!(fs::read_dir(&place.path).unwrap().count(), 0);
}

pub(crate) fn without_a_record_nothing_is_started() {
    let place = Place::new();
    let mut spec = place.script("touch started");
    spec.state_file = place.path.join("gone/keeper.json");
    let failure = failure(&spec);
    assert_eq!(failure.kind, SpawnFailureKind::StateFile, "{failure:?}");
    assert!(failure.message.contains("gone/keeper.json"), "{failure:?}");
    assert!(!place.path.join("started").exists());
    assert_eq!(recover_keeper(&spec.state_file, spec.run).unwrap(), KeeperState::Never);
}

pub(crate) fn a_keeper_that_is_none_is_an_error() {
    let place = Place::new();
    let spec = place.spec(&["true"]);
    let missing = KeeperProgram { path: "/no/such/keeper".into(), arguments: Vec::new(), stderr: None };
    let error = block_on(Supervised::start(&missing, &spec)).unwrap_err();
    assert!(matches!(error, SpawnError::Keeper { .. }), "{error:?}");
    for mute in ["true", "cat"] {
        let path = format!("/bin/{mute}").into();
        let error =
            block_on(Supervised::start(&KeeperProgram { path, ..missing.clone() }, &spec)).unwrap_err();
        assert!(matches!(error, SpawnError::Lost { run, .. } if run == spec.run), "{mute}: {error:?}");
    }
}

pub(crate) fn what_a_keeper_that_fails_has_started_ends() {
    // The one says what no keeper says, the other nothing more.
    for (last, words) in [("echo nonsense", "what no keeper says"), ("exec >/dev/null", "it has ended")] {
        let place = Place::new();
        let spec = place.spec(&["true"]);
        let (run, pids) = (spec.run, place.path.join("pids"));
        let script = format!(
            "sleep 1000 >/dev/null & echo $! > {pids}; ROOMETTE_RUN_ID={run} setsid sleep 1000 >/dev/null & \
             echo $! >> {pids}; echo $$ >> {pids}; {last}; wait"
        );
        let keeper =
            KeeperProgram { path: "/bin/sh".into(), arguments: vec!["-c".into(), script], stderr: None };
        match block_on(Supervised::start(&keeper, &spec)) {
            Err(SpawnError::Lost { message, .. }) => assert!(message.contains(words), "{message}"),
            other => panic!("expected a lost keeper, got {other:?}"),
        }
        let pids: Vec<i32> =
            fs::read_to_string(&pids).unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 3);
        for pid in pids {
            let process = ProcessIdentity::of(pid).unwrap();
            assert!(process.is_none_or(|process| !process.is_alive().unwrap()), "{last}: {pid} lives on");
        }
    }
}

fn failure(spec: &KeeperSpec) -> SpawnFailure {
    match block_on(Supervised::start(&keeper_program(), spec)) {
        Err(SpawnError::Program(failure)) => failure,
        other => panic!("expected a failure of the program, got {other:?}"),
    }
}
