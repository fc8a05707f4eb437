//! How a command reaches the host: it talks to the one that is there, starts one, or is the host itself for a moment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use session_runner::private;

use super::lines::Lines;
use super::lock::{self, HostLock};
use super::operations::Operations;
use super::protocol::{Greeting, LINE_MAX, PROTOCOL, Reply, Request};
use super::socket;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};

/// For how long a host that is just leaving is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What it means that no host is there.
pub const NO_HOST: &str = "none is up; the next run starts one";

/// A connection to the host of the data directory.
#[derive(Debug)]
pub struct Connection {
    lines: Lines,
    host: Greeting,
}

impl Connection {
    /// Connects to the host; `None` when there is none.
    pub async fn open(context: &Context) -> Outcome<Option<Self>> {
        let path = context.paths.socket();
        let failed = |error: &std::io::Error| {
            Failure::caused(Kind::Unreachable, format!("the host at {path} does not answer"), error)
        };
        let Some(stream) = socket::connect(&path).await.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        let mut lines = Lines::new(stream, LINE_MAX);
        let Ok(greeting) = tokio::time::timeout(PATIENCE, lines.read::<Greeting>()).await else {
            let failure = Failure::new(Kind::Unreachable, format!("the host at {path} does not answer"));
            let lock = context.paths.lock();
            return Err(failure.hint(format!("{lock} names its process; is it stopped, or hanging?")));
        };
        // A host that is just leaving closes without a greeting: then there is none.
        let Some(host) = greeting.ok().flatten() else { return Ok(None) };
        let Greeting { roomette, protocol, pid, .. } = &host;
        let this = env!("CARGO_PKG_VERSION");
        let other = match (roomette == this, *protocol == PROTOCOL) {
            (true, true) => None,
            (false, _) => Some(format!("the host (process {pid}) is roomette {roomette}, this is {this}")),
            (true, false) => Some(format!("the host (process {pid}) is another build of roomette {this}")),
        };
        if let Some(message) = other {
            return Err(Failure::new(Kind::Conflict, message)
                .hint("wait until it has finished, or end it with `kill` and start again"));
        }
        let ours = context.store_url()?.to_string();
        if host.store != ours {
            let message = format!(
                "the host (process {}) of {} writes the store {}, this command names {ours}",
                host.pid, context.paths.data, host.store
            );
            return Err(Failure::new(Kind::Conflict, message)
                .hint("wait until it has finished, or use another data directory (--home)"));
        }
        Ok(Some(Self { lines, host }))
    }

    /// The host's process.
    pub fn process(&self) -> u32 {
        self.host.pid
    }

    /// Whether new sessions may be executed on other machines.
    pub fn has_fleet(&self) -> bool {
        self.host.fleet
    }

    /// Asks, and takes the first reply.
    pub async fn ask(&mut self, request: &Request) -> Outcome<Reply> {
        self.send(request).await?;
        self.next().await
    }

    /// Asks, and leaves it to the caller to wait for replies.
    pub async fn send(&mut self, request: &Request) -> Outcome<()> {
        self.lines.write(request).await.map_err(|error| {
            if error.kind() == std::io::ErrorKind::InvalidInput {
                return Failure::caused(Kind::Usage, "this is too much for one request", &error)
                    .hint("split it into several commands");
            }
            self.gone(Some(&error))
        })
    }

    /// The next reply.
    pub async fn next(&mut self) -> Outcome<Reply> {
        match self.lines.read().await {
            Ok(Some(Reply::Failed(failure))) => Err(failure),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(self.gone(None)),
            Err(error) => Err(self.gone(Some(&error))),
        }
    }

    fn gone(&self, error: Option<&std::io::Error>) -> Failure {
        let message = format!("the host (process {}) went away", self.host.pid);
        let failure = match error {
            Some(error) => Failure::caused(Kind::Unreachable, message, error),
            None => Failure::new(Kind::Unreachable, message),
        };
        failure.hint("`roomette recover` says what became of its runs; `roomette resume` continues them")
    }
}

/// Whoever does what a command asks for.
#[derive(Debug)]
pub enum Link {
    /// The host of the data directory.
    There(Box<Connection>),
    /// This process: there is no host, and nothing runs.
    Here(Box<Operations>, HostLock),
}

impl Link {
    /// The host that is there, or this process in its place.
    pub async fn attach(context: &Context, purpose: &str) -> Outcome<Self> {
        if let Some(connection) = Connection::open(context).await? {
            return Ok(Self::There(Box::new(connection)));
        }
        context.paths.make_data()?;
        let starting = take_turn(context).await?;
        // Whoever was starting one meanwhile is up now.
        if let Some(connection) = Connection::open(context).await? {
            return Ok(Self::There(Box::new(connection)));
        }
        let lock = HostLock::acquire(&context.paths, purpose, context.env.now(), PATIENCE).await?;
        let mut operations = Operations::open(context).await?;
        let recovery = operations.recover().await?;
        if recovery.adopted.is_empty() {
            return Ok(Self::Here(Box::new(operations), lock));
        }
        // What lives on needs a host that stays.
        operations.close().await;
        drop(lock);
        start(context).await?;
        drop(starting);
        Ok(Self::There(Box::new(connected(context).await?)))
    }

    /// Asks whoever it is.
    pub async fn ask(&mut self, request: Request) -> Outcome<Reply> {
        match self {
            Self::There(connection) => connection.ask(&request).await,
            Self::Here(operations, _) => operations.handle(request).await,
        }
    }

    /// Leaves everything in order.
    pub async fn close(self) {
        match self {
            Self::There(_) => {}
            Self::Here(operations, lock) => {
                operations.close().await;
                drop(lock);
            }
        }
    }
}

/// Whether anything is started on this system: on Linux, by whatever sandbox the machine offers.
#[expect(clippy::unnecessary_wraps, reason = "other systems refuse")]
pub fn check_system() -> Outcome<()> {
    Ok(())
}

/// The host that is there, or a new one in the background.
pub async fn ensure_host(context: &Context) -> Outcome<Connection> {
    if let Some(connection) = Connection::open(context).await? {
        return Ok(connection);
    }
    context.paths.make_data()?;
    let starting = take_turn(context).await?;
    if let Some(connection) = Connection::open(context).await? {
        return Ok(connection);
    }
    start(context).await?;
    drop(starting);
    connected(context).await
}

/// The host that was just started.
async fn connected(context: &Context) -> Outcome<Connection> {
    Connection::open(context).await?.ok_or_else(|| {
        Failure::new(Kind::Unreachable, "the host that was started does not answer")
            .hint(format!("{} says why", context.paths.host_log()))
    })
}

/// Takes the lock under which hosts are started.
pub async fn take_turn(context: &Context) -> Outcome<std::fs::File> {
    let paths = context.paths.clone();
    let waiting = tokio::task::spawn_blocking(move || lock::starting(&paths));
    waiting.await.map_err(|error| Failure::caused(Kind::Error, "waiting for a host failed", &error))?
}

/// The path of this program, which also is the keeper and the host in the background.
fn program() -> Outcome<Utf8PathBuf> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::caused(Kind::Error, "the program's own path is unknown", &error))?;
    Utf8PathBuf::from_path_buf(path)
        .map_err(|path| Failure::usage(format!("the program's path {} is not UTF-8", path.display())))
}

/// Starts a host in the background and waits until it says that it is up, or why it is not.
async fn start(context: &Context) -> Outcome<()> {
    let path = context.paths.host_log();
    set_aside(&path);
    let log = private::options().append(true).create(true).open(&path);
    let log =
        log.map_err(|error| Failure::caused(Kind::Error, format!("{path} cannot be opened"), &error))?;
    let program = program()?;
    let mut command = background(&program, context);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let failed = |error: &std::io::Error| Failure::caused(Kind::Error, "a host cannot be started", error);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::new(Kind::Error, "no pipe to the host"));
    };
    // The caller's settings are the host's: not those of the directory it runs in, and no password in its arguments.
    let settings = serde_json::to_string(&context.config)
        .map_err(|error| Failure::caused(Kind::Error, "the settings cannot be passed on", &error))?;
    let line = tokio::task::spawn_blocking(move || {
        stdin.write_all(settings.as_bytes())?;
        drop(stdin);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map(|_| line)
    });
    let line =
        line.await.map_err(|error| Failure::caused(Kind::Error, "waiting for the host failed", &error))?;
    match serde_json::from_str(&line.map_err(|error| failed(&error))?) {
        Ok(Readiness::Up) => Ok(()),
        Ok(Readiness::Failed(failure)) => Err(failure),
        Err(_) => {
            Err(Failure::new(Kind::Error, "the host ended before it was up").hint(format!("{path} says why")))
        }
    }
}

/// How much the hosts before may have said in the file that is added to.
const HOST_LOG_MAX: u64 = 1024 * 1024;

/// A log that has grown large is put aside, in the place of the one before.
fn set_aside(path: &Utf8Path) {
    if std::fs::metadata(path).is_ok_and(|log| log.len() > HOST_LOG_MAX) {
        // If that fails the log goes on growing, which is no reason not to start.
        let _kept = std::fs::rename(path, format!("{path}.1"));
    }
}

/// What a host in the background says first, to whoever started it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// It listens.
    Up,
    /// It could not start.
    Failed(Failure),
}

#[expect(
    clippy::disallowed_methods,
    reason = "the host inherits the caller's environment: it is the same program"
)]
fn background(program: &Utf8Path, context: &Context) -> Command {
    let mut command = Command::new(program);
    command.arg("--home").arg(&context.paths.data).arg("serve").arg("--background");
    command.current_dir(&context.paths.data);
    command
}
