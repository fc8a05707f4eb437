//! What the operator sets of a bridge: how long things may take, and how many there may be.

use std::time::Duration;

use crate::replay::Kept;
use crate::wire::MESSAGE_MAX;

/// Settings of a bridge. All servers of it have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Each client session has a process of its own. Otherwise all clients of a server share one.
    pub isolation: bool,
    /// What becomes of a server process that ends by itself.
    pub restart: Restart,
    /// How long things may take.
    pub times: Times,
    /// How many there may be.
    pub caps: Caps,
    /// What is kept for readers that come back, for each session.
    pub kept: Kept,
}

impl Default for Settings {
    /// Isolated, restarted after a crash.
    fn default() -> Self {
        Self {
            isolation: true,
            restart: Restart::OnCrash,
            times: Times::default(),
            caps: Caps::default(),
            kept: Kept::default(),
        }
    }
}

/// What becomes of a server process that ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Its session hears of it from then on.
    Never,
    /// It is started again, after a pause that grows, until it has gone three times in a row without an answer.
    OnCrash,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Until a request is answered, from when the server got it or from when it last told of its progress. Until a client has
    /// answered what it was asked. Until a server has read something of what waits for it.
    pub call: Duration,
    /// Until a request is answered, whatever the server tells of its progress.
    pub whole_call: Duration,
    /// Until a request that its client has cancelled is over.
    pub cancelled: Duration,
    /// Until a message reaches a server that is not there: its scope is not known, or it is being started.
    pub wait: Duration,
    /// Until there is room for a server process, where as many are at work as may be.
    pub room: Duration,
    /// A session that nobody has used for so long gives way to one that waits for room.
    pub rest: Duration,
    /// Until the client has said which directories it opens.
    pub roots: Duration,
    /// Until a server that was started answers the handshake.
    pub handshake: Duration,
    /// Until an answer that stands alone is sent as a stream, so that the client sees that somebody works on it.
    pub patience: Duration,
    /// Without a message of the client, or of the server to a client that reads it, a server process ends; the next message
    /// brings it back.
    pub idle: Duration,
    /// So long after its client went away, a session without a process is looked up again when somebody comes with its id.
    pub forget: Duration,
    /// A client that began a session and did not go on with it.
    pub opening: Duration,
    /// Between two signs of life on a stream.
    pub heartbeat: Duration,
    /// Until the body of a request is there.
    pub body: Duration,
}

/// A client that says nothing for so long is away, also where its server is there for longer.
const AWAY: Duration = Duration::from_mins(15);

impl Times {
    /// After so long without a message, nobody counts on the client any more: what it may come back for is let go, and it makes
    /// room in memory for another.
    pub(crate) fn away(&self) -> Duration {
        self.idle.min(AWAY)
    }
}

impl Default for Times {
    /// 10 minutes a call, or 4 hours with progress, and one second after it was cancelled; a minute to wait, for a handshake and for a
    /// client that opens; 45 s for room, from who rested for 10 s; 30 s for roots and bodies; 2 s of patience; 15 minutes idle, 5 more until it is forgotten; a sign of life every 15 s.
    fn default() -> Self {
        Self {
            call: Duration::from_mins(10),
            whole_call: Duration::from_hours(4),
            cancelled: Duration::from_secs(1),
            wait: Duration::from_mins(1),
            room: Duration::from_secs(45),
            rest: Duration::from_secs(10),
            roots: Duration::from_secs(30),
            handshake: Duration::from_mins(1),
            patience: Duration::from_secs(2),
            idle: Duration::from_mins(15),
            forget: Duration::from_mins(5),
            opening: Duration::from_mins(1),
            heartbeat: Duration::from_secs(15),
            body: Duration::from_secs(30),
        }
    }
}

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Sessions in memory, of all clients.
    pub sessions: usize,
    /// Sessions in memory of one principal.
    pub sessions_per_principal: usize,
    /// Bytes of a message, in either direction.
    pub message: usize,
    /// Requests over HTTP that are worked on at once, streams not counted. Of these, of streams, of requests that wait for their
    /// clients and of bytes that wait, one principal has half at the most.
    pub requests: usize,
    /// Streams that are read at once.
    pub streams: usize,
    /// Server processes that are there at once; half of them for one principal, unless it is the bridge's owner.
    pub processes: usize,
    /// Processes that are being started at once; half of them for one principal.
    pub starts: usize,
    /// Answers to `initialize` that are remembered.
    pub answers: usize,
    /// Bytes of messages of clients that wait to be passed on, or for their server to read them.
    pub waiting: usize,
    /// Bytes that are kept for readers that come back, for all sessions; half of them for one principal's.
    pub kept: usize,
}

impl Default for Caps {
    /// 1024 sessions, 256 of one principal; 32 MiB a message; 1024 requests and 4096 streams; 64 processes, of which 32
    /// start at once; 64 answers; 512 MiB that wait, and as many that are kept.
    fn default() -> Self {
        Self {
            sessions: 1_024,
            sessions_per_principal: 256,
            message: MESSAGE_MAX,
            requests: 1_024,
            streams: 4_096,
            processes: 64,
            starts: 32,
            answers: 64,
            waiting: 512 * 1024 * 1024,
            kept: 512 * 1024 * 1024,
        }
    }
}
