//! Processes: a trivial program through workspace and keeper, and the start of the command.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use session_core::SandboxSpec;
use session_core::affinity::Place;
use session_core::ports::RunStore as _;
use session_core::{Env, WorkspaceKind};
use session_runner::process::{
    CgroupPreference, Exit, KeeperProgram, KeeperSpec, OnHostLoss, RunReport, Setting, Supervised,
    TreeLimits, Wiring,
};
use session_runner::workspace::log::LogRotation;
use session_runner::workspace::{Git, HostEnvironment, Layout, WorkspaceRequest, prepare};
use session_tests::home::Home;
use session_tests::program::roomette;
use tokio::time::Instant;

use crate::files;
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, timed};
use crate::world;

const PROGRAM: &str = "/bin/true";
const SPAWNS: usize = 60;
const STARTS: usize = 40;
/// How many sessions the command lists.
const SESSIONS: usize = 50;
const GRACE_MS: u64 = 10_000;

pub(crate) async fn spawn(bench: &mut Bench) -> Outcome {
    let directory = files::directory()?;
    let root = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path())?).map_err(|_| "not UTF-8")?;
    let keeper = KeeperProgram { path: roomette(), arguments: vec!["__keeper".into()], stderr: None };
    let spawns = bench.sized(SPAWNS);
    let env = Env::system();
    let named =
        Named { path: "spawn of /bin/true, workspace and keeper", floor: "std's spawn + directories" };
    let plain = root.join("floor");
    let floor = async |_| {
        timed(spawns, |_| {
            let id = env.session_id().to_string();
            let session = plain.join("sessions").join(&id);
            let output = plain.join("output").join(&id);
            for directory in [&session.join("work"), &session.join("tmp"), &output] {
                DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            std::os::unix::fs::symlink(format!("../../output/{id}"), session.join("output"))?;
            run(&mut command(Utf8Path::new(PROGRAM), &session))
        })
    };
    let layout = Layout::new(root.join("ours"));
    let git = Git::new(&HostEnvironment::default());
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..spawns {
            run_kept(&layout, &git, &keeper, &env).await?;
        }
        each(begun.elapsed(), spawns)
    };
    bench.compare(named, Shown::Time, Target::AtMost(1.3), floor, ours).await?;
    Ok(())
}

async fn run_kept(layout: &Layout, git: &Git, keeper: &KeeperProgram, env: &Env) -> Outcome {
    let session = env.session_id();
    let request = WorkspaceRequest {
        session,
        kind: WorkspaceKind::Scratch,
        project: None,
        base: None,
        sandbox: SandboxSpec::default(),
        settlement: None,
    };
    let workspace = prepare(layout, git, &request)?;
    let spec = KeeperSpec {
        session,
        run: env.run_id(),
        argv: vec![PROGRAM.into()],
        setting: Setting::Open { env: Vec::new(), cwd: workspace.cwd },
        limits: TreeLimits::default(),
        watch: Vec::new(),
        log: workspace.dir.log(),
        rotation: LogRotation::default(),
        state_file: workspace.dir.keeper_state(),
        timeout_ms: None,
        grace_ms: GRACE_MS,
        on_host_loss: OnHostLoss::End,
        cgroup: CgroupPreference::Auto,
        wiring: Wiring::Logged,
    };
    let mut supervised = Supervised::start(keeper, &spec).await?;
    loop {
        match supervised.next_report().await? {
            Some(RunReport::Ended(end)) => {
                ensure!(end.exit == Some(Exit::Code(0)), "{PROGRAM} ended as {end:?}");
                return Ok(());
            }
            Some(RunReport::Progress(_)) => {}
            other => return Err(format!("{PROGRAM} did not end: {other:?}").into()),
        }
    }
}

pub(crate) async fn cli(bench: &mut Bench) -> Outcome {
    let home = Home::new();
    fs::create_dir_all(home.data())?;
    let store = files::open(home.data().join("roomette.db").as_std_path()).await?;
    let env = Env::system();
    let runs = (0..SESSIONS).map(|_| world::new_run(&env, Place::Anywhere)).collect::<Outcome<Vec<_>>>()?;
    store.enqueue(runs, None, env.now()).await?;
    store.close().await;
    let listed = home.run(&["ps"]).ok();
    ensure!(listed.lines().len() >= SESSIONS, "ps shows {} lines", listed.lines().len());
    let starts = bench.sized(STARTS);
    let named = Named { path: "roomette ps, 50 sessions, cold", floor: "roomette --version" };
    let start = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        timed(starts, |_| run(&mut command))
    };
    let floor = async |_| start(&["--version"]);
    bench.compare(named, Shown::Time, Target::Milliseconds(15.0), floor, async |_| start(&["ps"])).await?;
    Ok(())
}

fn run(command: &mut Command) -> Outcome {
    let status = command.status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "std's own spawn is the floor")]
fn command(program: &Utf8Path, directory: &Utf8Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(directory).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
