//! Runs a program confined: `confine --rw DIR -- argv…`. What an embedder has to do is `run` below.
//!
//! `--level best|full|floor|off`, `--rw DIR`, `--ro DIR`, `--device PATH`, `--protect PATH`, `--git DIR`, `--cwd DIR`,
//! `--net open|none|loopback|SOCKET`, `--env NAME=VALUE`, `--limit NAME=NUMBER`, `--report FILE`, `--probe`,
//! `--trial DIR` (tries to break out of the level and says what held), `--repeat TIMES` (how long a launch takes), and for tests `--degrade landlock|userns`, which makes this process one
//! of a machine that lacks it.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};

use sandbox::trial::{self, Trial};
use sandbox::{Limits, Network, Policy, Support, Wanted};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// The hidden subcommand.
const LAUNCHER: &str = "__launch";
/// The hidden subcommand that tries to break out.
const TRIAL: &str = "__trial";
/// Nothing was started.
const NOT_STARTED: u8 = 125;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(LAUNCHER) {
        sandbox::launcher::main();
    }
    if std::env::args().nth(1).as_deref() == Some(TRIAL) {
        sandbox::trial::main();
    }
    run().unwrap_or_else(|error| {
        eprintln!("confine: {error}");
        ExitCode::from(NOT_STARTED)
    })
}

type Failure = Box<dyn std::error::Error>;

/// What the command line says.
struct Options {
    policy: Policy,
    off: bool,
    probe: bool,
    report: Option<String>,
    repeat: usize,
    trial: Option<String>,
    argv: Vec<String>,
}

fn run() -> Result<ExitCode, Failure> {
    let options = parse()?;
    if options.repeat > 0 {
        return measure(&options);
    }
    if let Some(directory) = options.trial {
        return trial(&options.policy, options.off, directory);
    }
    if options.off {
        return Err(unconfined(&options).exec().into());
    }
    let support = Support::probe(launcher)?;
    if options.probe {
        println!("{}", serde_json::to_string_pretty(&support)?);
        return Ok(ExitCode::SUCCESS);
    }
    let level = support.choose(&options.policy)?;
    let sealed = options.policy.seal()?;
    let stdin: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut confined = sealed.launch(launcher(), level, &options.argv, Some(stdin))?;
    if let Some(file) = options.report {
        std::fs::write(file, serde_json::to_string(&confined.report)?)?;
    }
    let status = confined.child.wait()?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Says what held, in one line of JSON.
fn trial(policy: &Policy, off: bool, directory: String) -> Result<ExitCode, Failure> {
    let level = Support::probe(launcher)?.choose(policy)?;
    let trial = Trial { directory: directory.into(), arguments: vec![TRIAL.to_owned()], level };
    let findings = if off { trial::control(&trial, launcher)? } else { trial::run(&trial, launcher)? };
    println!("{}", serde_json::to_string(&findings)?);
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "the host of this example is the example")]
fn launcher() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(LAUNCHER).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    command
}

/// The program with nothing but the environment set: the control of the tests.
#[expect(clippy::disallowed_methods, reason = "the host of this example is the example")]
fn unconfined(options: &Options) -> Command {
    let (program, arguments) =
        options.argv.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&options.policy.environment)
        .current_dir(&options.policy.directory);
    command
}

/// Runs the program many times, one after the other, and says how long it took from the start to the end.
#[expect(clippy::disallowed_methods, reason = "a measurement wants the clock")]
fn measure(options: &Options) -> Result<ExitCode, Failure> {
    let level = if options.off { None } else { Some(Support::probe(launcher)?.choose(&options.policy)?) };
    let sealed = options.policy.clone().seal()?;
    let mut microseconds = Vec::new();
    for _ in 0..options.repeat {
        let start = std::time::Instant::now();
        match level {
            Some(level) => sealed.launch(launcher(), level, &options.argv, None)?.child.wait()?,
            None => unconfined(options).stdin(Stdio::null()).spawn()?.wait()?,
        };
        microseconds.push(start.elapsed().as_micros());
    }
    microseconds.sort_unstable();
    let part =
        |percent: usize| microseconds.get(microseconds.len() * percent / 100).copied().unwrap_or_default();
    println!("median {} µs, nine of ten {} µs", part(50), part(90));
    Ok(ExitCode::SUCCESS)
}

fn parse() -> Result<Options, Failure> {
    let mut words = std::env::args().skip(1);
    let mut policy = Policy::new("/").with_variable("PATH", "/usr/local/bin:/usr/bin:/bin");
    let (mut off, mut probe, mut report, mut repeat, mut limits) = (false, false, None, 0, BTreeMap::new());
    let mut trial = None;
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        if word == "--probe" {
            probe = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        policy = match word.as_str() {
            "--rw" => policy.allow_write(value),
            "--ro" => policy.allow_read(value),
            "--device" => policy.allow_device(value),
            "--protect" => policy.protect([value.into()]),
            "--git" => policy.protect(sandbox::guard::git_paths(value.as_str().into())),
            "--cwd" => Policy { directory: value.into(), ..policy },
            "--net" => policy.with_network(match value.as_str() {
                "open" => Network::Open,
                "none" => Network::None,
                "loopback" => Network::Loopback,
                socket => Network::Proxy { socket: socket.into() },
            }),
            "--env" => {
                let (name, value) = value.split_once('=').ok_or("--env wants NAME=VALUE")?;
                policy.with_variable(name, value)
            }
            "--limit" => {
                let (name, number) = value.split_once('=').ok_or("--limit wants NAME=NUMBER")?;
                limits.insert(name.to_owned(), number.parse::<u64>()?);
                policy
            }
            "--level" => {
                off = value == "off";
                let level = if off { "floor" } else { &value };
                policy.with_level(serde_json::from_value::<Wanted>(level.into())?)
            }
            "--report" => {
                report = Some(value);
                policy
            }
            "--trial" => {
                trial = Some(value);
                policy
            }
            "--repeat" => {
                repeat = value.parse()?;
                policy
            }
            "--degrade" => {
                degrade(&value)?;
                policy
            }
            other => return Err(format!("unknown option {other}").into()),
        };
    }
    let limits: Limits = serde_json::from_value(serde_json::to_value(limits)?)?;
    Ok(Options {
        policy: policy.with_limits(limits),
        off,
        probe,
        report,
        repeat,
        trial,
        argv: words.collect(),
    })
}

/// From now on this process and its children live on a machine without it.
fn degrade(what: &str) -> Result<(), Failure> {
    let mut rules = BTreeMap::new();
    let error = match what {
        "landlock" => {
            for call in [
                libc::SYS_landlock_create_ruleset,
                libc::SYS_landlock_add_rule,
                libc::SYS_landlock_restrict_self,
            ] {
                rules.insert(call, vec![]);
            }
            libc::ENOSYS
        }
        "userns" => {
            let flag = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
            let condition =
                SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flag), flag)?;
            rules.insert(libc::SYS_unshare, vec![SeccompRule::new(vec![condition])?]);
            libc::EPERM
        }
        other => return Err(format!("unknown layer {other}").into()),
    };
    let action = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, std::env::consts::ARCH.try_into()?)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}
