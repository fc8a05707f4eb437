//! `roomette logs`: what a session's tasks wrote; their stdout to stdout, their stderr to stderr.

use std::io::{self, Write as _};

use session_core::ports::RunStore as _;
use session_core::run::Run;
use session_core::{RunId, SessionRef};
use session_runner::process::{LivingKeeper, living_keeper};
use session_runner::workspace::SessionDir;
use session_runner::workspace::log::{LogFollower, LogReader, LogRecord, Start, Stream};

use crate::args::LogsArgs;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Connection;
use crate::host::protocol::{Reply, Request};
use crate::{output, select};

/// Shows the log, and goes on as more is written if told to.
pub async fn execute(context: &Context, args: LogsArgs) -> Outcome<()> {
    args.session.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(&args.session)) };
    let id = select::one(&store, &args.session).await?;
    // Connected before the run is looked at: its end is told, whenever it comes.
    let connection = if args.follow { Connection::open(context).await? } else { None };
    let last = store.runs(id, 1).await?.pop();
    store.close().await;
    let directory = context.layout().session(id);
    say_what_is_missing(context, &directory, args.tail.is_some());
    let start = args.tail.map_or(Start::Beginning, Start::Last);
    let printer = Printer { json: context.json, timestamps: args.timestamps, states: args.states };
    if let Some(run) = last.filter(|run| args.follow && !run.state.phase().is_ended()) {
        return follow(&directory, &run, start, &printer, connection).await;
    }
    let reader = LogReader::open(&directory.log(), start).map_err(|error| unreadable(&directory, &error))?;
    for record in reader {
        printer.print(&record.map_err(|error| unreadable(&directory, &error))?)?;
    }
    Ok(())
}

/// A log that has as many files as are kept has lost its beginning, and one that was removed is no empty one.
fn say_what_is_missing(context: &Context, directory: &SessionDir, only_the_end: bool) {
    let oldest = context.config.log.files.saturating_sub(1);
    if !directory.root().as_std_path().exists() && directory.output_dir().as_std_path().exists() {
        output::say("the log is gone: the workspace was removed");
    } else if !only_the_end
        && oldest > 0
        && directory.root().join(format!("log.{oldest}")).as_std_path().exists()
    {
        output::say("the beginning may be missing: only log.files files of log.max_bytes are kept");
    }
}

/// Shows what is there and what comes, until the run is over.
async fn follow(
    directory: &SessionDir,
    run: &Run,
    start: Start,
    printer: &Printer,
    connection: Option<Connection>,
) -> Outcome<()> {
    let mut end = Box::pin(End::of(directory, run.id, connection).await?);
    let mut follower: Option<LogFollower> = None;
    let mut over = false;
    loop {
        if follower.is_none() && directory.root().as_std_path().is_dir() {
            let opened = LogFollower::open(&directory.log(), start);
            follower = Some(opened.map_err(|error| unreadable(directory, &error))?);
        }
        let Some(following) = follower.as_mut() else {
            // Before the workspace is made there is nothing to read.
            if over {
                return Ok(());
            }
            over = end.next().await?;
            continue;
        };
        let records = if over {
            following.available()
        } else {
            tokio::select! {
                records = following.next() => records,
                ended = end.next() => {
                    over = ended?;
                    continue;
                }
            }
        };
        let records = records.map_err(|error| unreadable(directory, &error))?;
        if records.is_empty() {
            return Ok(());
        }
        records.iter().try_for_each(|record| printer.print(record))?;
    }
}

/// What tells that a run is over: its host, or, without one, its keeper.
enum End {
    Host(Box<Connection>, SessionDir, RunId),
    Keeper(Option<LivingKeeper>),
}

impl End {
    async fn of(directory: &SessionDir, run: RunId, connection: Option<Connection>) -> Outcome<Self> {
        if let Some(mut connection) = connection
            && connection.ask(&Request::Follow { runs: vec![run] }).await? != Reply::Over
        {
            return Ok(Self::Host(Box::new(connection), directory.clone(), run));
        }
        Self::keeper(directory, run)
    }

    fn keeper(directory: &SessionDir, run: RunId) -> Outcome<Self> {
        let keeper = living_keeper(&directory.keeper_state(), run);
        keeper.map(Self::Keeper).map_err(|error| unreadable(directory, &error))
    }

    /// Whether it is over; `false` after any other change.
    async fn next(&mut self) -> Outcome<bool> {
        match self {
            Self::Host(connection, directory, run) => match connection.next().await {
                Ok(reply) => Ok(reply == Reply::Over),
                Err(failure) if failure.kind == Kind::Unreachable => {
                    *self = Self::keeper(directory, *run)?;
                    Ok(false)
                }
                Err(failure) => Err(failure),
            },
            Self::Keeper(Some(keeper)) => {
                let waited = keeper.wait().await;
                waited.map_err(|error| Failure::caused(Kind::Error, "the run cannot be watched", &error))?;
                Ok(true)
            }
            Self::Keeper(None) => Ok(true),
        }
    }
}

fn unreadable(directory: &SessionDir, error: &io::Error) -> Failure {
    Failure::caused(Kind::Error, format!("the log {} cannot be read", directory.log()), error)
}

/// How records are shown.
struct Printer {
    json: bool,
    timestamps: bool,
    states: bool,
}

impl Printer {
    fn print(&self, record: &LogRecord) -> Outcome<()> {
        if record.stream == Stream::State && !self.states {
            return Ok(());
        }
        if self.json {
            let text = String::from_utf8_lossy(&record.bytes);
            return output::json(&serde_json::json!({
                "at": record.at, "stream": record.stream.as_str(), "text": text, "partial": !record.ends_line,
            }));
        }
        let mut line = Vec::with_capacity(record.bytes.len() + 40);
        if self.timestamps {
            line.extend_from_slice(format!("{} ", record.at).as_bytes());
        }
        line.extend_from_slice(&record.bytes);
        if record.ends_line || self.timestamps {
            line.push(b'\n');
        }
        match record.stream {
            Stream::Stdout => output::write(|out| out.write_all(&line)),
            // When stderr is gone there is nobody to tell.
            Stream::Stderr | Stream::State => {
                let _gone = io::stderr().lock().write_all(&line);
                Ok(())
            }
        }
    }
}
