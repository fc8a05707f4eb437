//! Bench: what a sandbox costs. Everything is done plain, at floor and at full in turn, in one run.
//!
//! `cargo bench -p sandbox [-- --quick]`; the table is the sandbox's in `docs/performance.md`.

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench wants the clock, starts programs, and prints a table"
)]

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Instant;

use sandbox::{Confined, Level, Network, Policy, SealedPolicy};
use tempfile::TempDir;

/// The hidden subcommands: the launcher, and what the program of some rows does inside.
const LAUNCHER: &str = "__launch";
const OPEN: &str = "__open";
const STAT: &str = "__stat";

/// How often a program is started, how often the work is done, and how many calls one program makes.
const SPAWNS: usize = 500;
const ROUNDS: usize = 15;
const CALLS: u32 = 200_000;
/// The spawns of hosts with little and with much memory are measured in so many turns.
const BLOCKS: usize = 10;
/// By how much `--quick` divides all of them.
const QUICK_DIVISOR: usize = 10;

/// The tree that is searched: this many directories with so many small files each.
const DIRECTORIES: usize = 200;
const FILES: usize = 100;
/// The repository, in directories of a hundred files.
const TRACKED_FILES: usize = 5000;
const RESIDENT_BYTES: usize = 1 << 30;

/// What a start at full may take: 5 ms where a plain start takes 0.62 ms.
const SPAWN_RATIO_MAX: f64 = 8.0;
/// What a host with much memory may cost more than one with little; less is noise.
const RESIDENT_RATIO_MAX: f64 = 1.1;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [LAUNCHER] => sandbox::launcher::main(),
        [what @ (OPEN | STAT), path, count] => calls(what, path, count),
        _ => run(&words),
    };
    done.map_or_else(
        |error| {
            println!("bench failed: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Floor,
    Full,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Floor, Way::Full];

/// What the last column promises.
enum Target {
    /// At full, as a multiple of plain.
    Ratio(f64),
    /// At full, as a multiple of this many seconds.
    RatioTo(f64, f64),
    None,
}

fn run(words: &[String]) -> Outcome {
    let quick = words.iter().any(|word| word == "--quick");
    if let Some(other) = words.iter().find(|word| !["--quick", "--bench"].contains(&word.as_str())) {
        return Err(format!("unknown argument {other}: --quick").into());
    }
    let sized = |count: usize| if quick { count.div_ceil(QUICK_DIVISOR) } else { count };
    let place = Place::new()?;
    let mut table = Table::default();

    spawn(&mut table, &place, sized(SPAWNS))?;
    let rounds = sized(ROUNDS);
    for (name, what) in [("open and close", OPEN), ("stat", STAT)] {
        let figures = compare(rounds, |way| place.time_of_call(way, what, sized(CALLS as usize)))?;
        table.row(&format!("{name}, 9 levels deep, one call"), Show::Nanoseconds, figures, &Target::None);
    }
    place.grow_tree()?;
    // Nothing is found, which grep says by its exit code.
    let figures = compare(rounds, |way| place.time(way, &["grep", "-r", "needle", "tree"], 1))?;
    table.row("grep over 20 000 files", Show::Milliseconds, figures, &Target::Ratio(1.2));
    place.grow_repository()?;
    let git = ["git", "-C", "repository", "status", "--short"];
    let figures = compare(rounds, |way| place.time(way, &git, 0))?;
    table.row("git status, 5000 files", Show::Milliseconds, figures, &Target::None);
    let script = "n=0; while [ $n -lt 100 ]; do /bin/true; n=$((n+1)); done";
    let figures = compare(rounds, |way| place.time(way, &["sh", "-c", script], 0))?;
    table.row("100 programs started inside", Show::Milliseconds, figures, &Target::None);
    table.print();
    Ok(())
}

/// A host with little memory and one with much, in turn, and a session with the host's network.
fn spawn(table: &mut Table, place: &Place, spawns: usize) -> Outcome {
    let open = place.with_network(Network::Open)?;
    let (mut little, mut much, mut reached) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..BLOCKS {
        let measure = |place: &Place, samples: &mut Samples| {
            samples.add(spawns.div_ceil(BLOCKS), |way| place.time(way, &["/bin/true"], 0))
        };
        measure(place, &mut little)?;
        measure(&open, &mut reached)?;
        let resident = black_box(vec![1_u8; RESIDENT_BYTES]);
        measure(place, &mut much)?;
        drop(black_box(resident));
    }
    let [little, much, reached] = [little, much, reached].map(Samples::medians);
    let most = Target::Ratio(SPAWN_RATIO_MAX);
    table.row("spawn of /bin/true, no network", Show::Milliseconds, little, &most);
    table.row("the same, the host's network", Show::Milliseconds, reached, &most);
    let beside = Target::RatioTo(RESIDENT_RATIO_MAX, little[2]);
    table.row("no network, 1 GiB in the host", Show::Milliseconds, much, &beside);
    Ok(())
}

/// Seconds, for each way.
#[derive(Default)]
struct Samples([Vec<f64>; 3]);

impl Samples {
    /// All ways in turn, so that whatever else the machine does is spread over them.
    fn add(&mut self, rounds: usize, mut measure: impl FnMut(Way) -> Outcome<f64>) -> Outcome {
        // The first of each fills caches and is not counted.
        for round in 0..=rounds {
            for (way, samples) in WAYS.into_iter().zip(&mut self.0) {
                let seconds = measure(way).map_err(|error| format!("{way:?}: {error}"))?;
                if round > 0 {
                    samples.push(seconds);
                }
            }
        }
        Ok(())
    }

    fn medians(self) -> [f64; 3] {
        self.0.map(|mut samples| {
            samples.sort_by(f64::total_cmp);
            samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
        })
    }
}

fn compare(rounds: usize, measure: impl FnMut(Way) -> Outcome<f64>) -> Outcome<[f64; 3]> {
    let mut samples = Samples::default();
    samples.add(rounds, measure)?;
    Ok(samples.medians())
}

/// A program, with all that it lives as long as.
enum Running {
    Plain(Child),
    Confined(Box<Confined>),
}

impl Running {
    fn child(&mut self) -> &mut Child {
        match self {
            Self::Plain(child) => child,
            Self::Confined(confined) => &mut confined.child,
        }
    }
}

/// Where the work is done: a directory that may be written, and one with this program in it that may be read.
struct Place {
    kept: Rc<TempDir>,
    base: PathBuf,
    program: String,
    sealed: SealedPolicy,
}

impl Place {
    fn new() -> Outcome<Self> {
        let directory = Rc::new(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?);
        let base = fs::canonicalize(directory.path())?;
        for name in ["scope", "readable"] {
            fs::create_dir(base.join(name))?;
        }
        let program = base.join("readable/overhead");
        fs::copy(std::env::current_exe()?, &program)?;
        let program = utf8(&program)?;
        let sealed = policy(&base, Network::None)?.seal()?;
        Ok(Self { kept: directory, base, program, sealed })
    }

    fn with_network(&self, network: Network) -> Outcome<Self> {
        let sealed = policy(&self.base, network)?.seal()?;
        Ok(Self {
            kept: Rc::clone(&self.kept),
            base: self.base.clone(),
            program: self.program.clone(),
            sealed,
        })
    }

    /// The command without a sandbox, with the same environment.
    fn plain(&self, argv: &[&str]) -> Outcome<Command> {
        let (program, arguments) = argv.split_first().ok_or("no program")?;
        let mut command = Command::new(program);
        let policy = self.sealed.policy();
        command.args(arguments).env_clear().envs(&policy.environment).current_dir(&policy.directory);
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn start(&self, way: Way, argv: &[&str], output: fn() -> Stdio) -> Outcome<Running> {
        let level = match way {
            Way::Plain => return Ok(Running::Plain(self.plain(argv)?.stdout(output()).spawn()?)),
            Way::Floor => Level::Floor,
            Way::Full => Level::Full,
        };
        let mut launcher = Command::new("/proc/self/exe");
        launcher.arg(LAUNCHER).stdout(output());
        let argv: Vec<_> = argv.iter().map(|word| (*word).to_owned()).collect();
        Ok(Running::Confined(Box::new(self.sealed.launch(launcher, level, &argv, None)?)))
    }

    /// From the start of the program to its end, in seconds.
    fn time(&self, way: Way, argv: &[&str], code: i32) -> Outcome<f64> {
        let begun = Instant::now();
        let status = self.start(way, argv, Stdio::null)?.child().wait()?;
        let seconds = begun.elapsed().as_secs_f64();
        ended(status, code)?;
        Ok(seconds)
    }

    /// What one call takes by the program's own clock, in seconds.
    fn time_of_call(&self, way: Way, what: &str, count: usize) -> Outcome<f64> {
        let deep = self.base.join("scope/1/2/3/4/5/6/7/8");
        fs::create_dir_all(&deep)?;
        fs::write(deep.join("file"), "")?;
        let argv = [&self.program, what, "1/2/3/4/5/6/7/8/file", &count.to_string()];
        let mut running = self.start(way, &argv, Stdio::piped)?;
        let mut text = String::new();
        running.child().stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
        ended(running.child().wait()?, 0)?;
        Ok(text.trim().parse()?)
    }

    fn grow_tree(&self) -> Outcome {
        for directory in 0..DIRECTORIES {
            let directory = self.base.join(format!("scope/tree/{directory}"));
            fs::create_dir_all(&directory)?;
            for file in 0..FILES {
                fs::write(directory.join(file.to_string()), "a line of hay, and another one\n".repeat(8))?;
            }
        }
        Ok(())
    }

    fn grow_repository(&self) -> Outcome {
        for file in 0..TRACKED_FILES {
            let directory = self.base.join(format!("scope/repository/{}", file / FILES));
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(file.to_string()), file.to_string())?;
        }
        let script = "cd repository && git init -q && git add . && \
                      git -c user.name=a -c user.email=a@b commit -qm all && git status --short";
        ended(self.plain(&["sh", "-c", script])?.status()?, 0)
    }
}

fn policy(base: &Path, network: Network) -> Outcome<Policy> {
    let (scope, readable) = (utf8(&base.join("scope"))?, utf8(&base.join("readable"))?);
    Ok(Policy::new(scope.as_str())
        .allow_write(scope.as_str())
        .allow_read(readable)
        .with_network(network)
        .with_variable("PATH", "/usr/local/bin:/usr/bin:/bin")
        .with_variable("HOME", scope))
}

fn utf8(path: &Path) -> Outcome<String> {
    Ok(path.to_str().ok_or("the build's directory has a name that is not UTF-8")?.to_owned())
}

fn ended(status: ExitStatus, code: i32) -> Outcome {
    if status.code() == Some(code) {
        Ok(())
    } else {
        Err(format!("it ended with {status}, and {code} was expected").into())
    }
}

/// Inside: makes the call many times, and prints what one takes in seconds.
fn calls(what: &str, path: &str, count: &str) -> Outcome {
    let count: u32 = count.parse()?;
    let begun = Instant::now();
    for _ in 0..count {
        match what {
            OPEN => drop(fs::File::open(path)?),
            _ => _ = black_box(fs::metadata(path)?),
        }
    }
    println!("{:e}", begun.elapsed().as_secs_f64() / f64::from(count));
    Ok(())
}

/// How the figures of a row are shown.
#[derive(Clone, Copy)]
enum Show {
    Milliseconds,
    Nanoseconds,
}

#[derive(Default)]
struct Table(Vec<[String; 7]>);

impl Table {
    fn row(&mut self, path: &str, show: Show, figures: [f64; 3], target: &Target) {
        let shown = figures.map(|seconds| match show {
            Show::Milliseconds => format!("{:.2} ms", seconds * 1e3),
            Show::Nanoseconds => format!("{:.0} ns", seconds * 1e9),
        });
        let [plain, floor, full] = figures;
        let (met, promise) = match *target {
            Target::Ratio(most) => (full / plain <= most, format!("full ≤ {most}")),
            Target::RatioTo(most, seconds) => (full / seconds <= most, format!("full ≤ {most} × without")),
            Target::None => (true, "–".to_owned()),
        };
        let judged = match (target, met) {
            (Target::None, _) => promise,
            (_, true) => format!("{promise} met"),
            (_, false) => format!("{promise} MISSED"),
        };
        let [first, second, third] = shown;
        let ratio = |ours: f64| format!("{:.2}", ours / plain);
        self.0.push([path.to_owned(), first, second, third, ratio(floor), ratio(full), judged]);
        println!("… {path}");
    }

    fn print(&self) {
        let heading = ["path", "plain", "floor", "full", "floor ÷ plain", "full ÷ plain", "target"];
        let rows: Vec<_> =
            std::iter::once(heading.map(str::to_owned)).chain(self.0.iter().cloned()).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..heading.len()).map(width).collect();
        for (index, row) in rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} "));
            println!("|{}|", cells.collect::<Vec<_>>().join("|"));
            if index == 0 {
                let lines = widths.iter().map(|width| "-".repeat(width + 2));
                println!("|{}|", lines.collect::<Vec<_>>().join("|"));
            }
        }
    }
}
