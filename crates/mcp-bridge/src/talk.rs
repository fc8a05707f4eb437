//! One client session, from its handshake to its end, as a value: what came goes in, what is to be done comes out. The
//! server process behind it is started only inside its scope, may go away, and is brought back with the same handshake,
//! without its client noticing more than one slow call. Where one process works for several clients, they have one scope,
//! which was set for all of them, and one handshake, which is the bridge's own.

use std::collections::VecDeque;

use crate::envelope::{Kind, Message, member};
use crate::gate::{Gate, Happened, Refusal, Scope, Then};
use crate::id::MessageId;
use crate::roots;
use crate::router::{ClientId, FromClient, FromServer, Router, Stream, error_line, has_capability};

#[path = "talk/levels.rs"]
mod levels;
#[path = "talk/steps.rs"]
mod steps;
#[path = "talk/subscriptions.rs"]
mod subscriptions;

pub use self::steps::{Effect, Input, NotStarted, Posted};
use self::subscriptions::Subscriptions;

/// One message that a client has posted, until it is known what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PostId(pub u64);

/// The most messages that wait for a server to be there.
pub const WAITING_MAX: usize = 64;
/// With more bytes than these, no further message waits.
pub const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// How often in a row a server may go away before it has answered anything.
pub const FAILED_STARTS_MAX: u32 = 3;

/// JSON-RPC's code for what went wrong on this side.
const SERVER_ERROR: i32 = -32_000;
/// JSON-RPC's code for a method that there is not.
const NO_METHOD: i32 = -32_601;
/// How much of what a client says of its error is told.
const SAID_MAX: usize = 200;
/// The number under which the server gets the client's `initialize`: the router never gives it.
const HANDSHAKE: i128 = 0;

/// Where the server stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// Not there; the next message brings it.
    Absent,
    /// On its way.
    Starting,
    /// There, and the handshake is replayed to it.
    Shaking,
    /// Working.
    Ready,
    /// Not there, and not to be brought back.
    Lost,
}

/// One client session, or the clients of one server process.
#[derive(Debug)]
pub struct Talk {
    /// The one client that there is; `None` where there are several.
    only: Option<ClientId>,
    /// Nothing where the server wants no handshake.
    initialize: Option<Message>,
    initialized: Option<Message>,
    gate: Gate,
    server: Server,
    router: Router,
    waiting: VecDeque<Waiting>,
    subscriptions: Subscriptions,
    failed_starts: u32,
    lost: String,
}

/// A message that waits for the server.
#[derive(Debug)]
struct Waiting {
    post: PostId,
    client: ClientId,
    message: Message,
    /// The number that it has already, because its stream carries a question.
    number: Option<u64>,
}

impl Talk {
    /// A session that begins with this request, which was answered from what the server answers to it.
    #[must_use]
    pub fn begin(client: ClientId, initialize: Message) -> Self {
        let has_roots = initialize.params().is_some_and(|params| has_capability(params, "roots"));
        Self {
            only: Some(client),
            initialize: Some(initialize),
            initialized: None,
            gate: Gate::new(has_roots),
            server: Server::Absent,
            router: Router::of(client),
            waiting: VecDeque::new(),
            subscriptions: Subscriptions::default(),
            failed_starts: 0,
            lost: String::new(),
        }
    }

    /// A session whose scope was locked before this process began.
    #[must_use]
    pub fn again(client: ClientId, initialize: Message, initialized: Message, scope: Scope) -> Self {
        let mut talk = Self::begin(client, initialize);
        talk.initialized = Some(initialized);
        talk.gate = Gate::Locked(scope);
        talk
    }

    /// Several clients of one process, which begins with this handshake and works in what the operator set.
    #[must_use]
    pub fn shared(initialize: Message, initialized: Message, scope: Scope) -> Self {
        Self {
            only: None,
            router: Router::default(),
            ..Self::again(ClientId(0), initialize, initialized, scope)
        }
    }

    /// Several clients of one process that wants no handshake: each of its requests stands for itself.
    #[must_use]
    pub fn plain(scope: Scope) -> Self {
        Self {
            only: None,
            initialize: None,
            initialized: None,
            gate: Gate::Locked(scope),
            server: Server::Absent,
            router: Router::default(),
            waiting: VecDeque::new(),
            subscriptions: Subscriptions::default(),
            failed_starts: 0,
            lost: String::new(),
        }
    }

    /// What messages wait for, as a sentence.
    #[must_use]
    pub fn waits_for(&self) -> &'static str {
        self.gate.waits_for().unwrap_or("the server is being started")
    }

    /// The scope is what it is for good.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.gate.scope().is_some()
    }

    /// Several clients share one server.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.only.is_none()
    }

    /// The server wants no handshake: each request stands for itself.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.initialize.is_none()
    }

    /// From here on the clients are not all one principal's.
    pub fn mix(&mut self) {
        self.router.mix();
    }

    /// Numbers of messages begin after this one, so that those of an earlier process are not ours.
    pub fn begin_after(&mut self, number: u64) {
        self.router.begin_after(number);
    }

    /// The server is there, or on its way.
    #[must_use]
    pub fn has_server(&self) -> bool {
        matches!(self.server, Server::Starting | Server::Shaking | Server::Ready)
    }

    /// What the server is told after the handshake, once the client has said it.
    #[must_use]
    pub fn initialized(&self) -> Option<&Message> {
        self.initialized.as_ref()
    }

    /// How often in a row the server has gone away without an answer.
    #[must_use]
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts
    }

    /// Why there will be no server any more, if that is so.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        (self.server == Server::Lost).then_some(self.lost.as_str())
    }

    /// No client waits for anything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.router.is_idle() && self.waiting.is_empty()
    }

    /// A client has been asked this, and has not answered.
    #[must_use]
    pub fn is_asked(&self, number: u64) -> bool {
        self.router.is_asked(number)
    }

    /// What happened, and what is to be done.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Post(post, client, message) => self.post(post, client, message, &mut effects),
            Input::Forget(post) => self.waiting.retain(|waiting| waiting.post != post),
            Input::Line(message) => self.line(&message, &mut effects),
            Input::Started => {
                if self.server == Server::Starting {
                    self.server = Server::Shaking;
                    match &self.initialize {
                        Some(initialize) => {
                            effects.push(Effect::Write(initialize.with_id(&HANDSHAKE.to_string())));
                        }
                        None => self.shaken("", &mut effects),
                    }
                }
            }
            Input::Gone { why, restart, lasted } => {
                if lasted {
                    self.failed_starts = 0;
                }
                self.gone(&why, restart, &mut effects);
            }
            Input::Unshaken(why) => self.unshaken(&why, &mut effects),
            Input::Retry => self.retry(),
            Input::NotStarted(why) => self.not_started(&why, &mut effects),
            Input::ScopeRefused { code, message } => self.refuse_scope(code, message, &mut effects),
            Input::Wake => self.bring(&mut effects),
            Input::Over(code) => self.refuse(Refusal::Ended(code), &mut effects),
            Input::Suspended => self.suspended(&mut effects),
            Input::Leave(client) => self.leave(client, &mut effects),
            Input::WaitedTooLong(post) => self.waited_too_long(post, &mut effects),
            Input::RootsTimedOut => self.gate_on(Happened::TimedOut, &mut effects),
            Input::Carry(post) => self.carry(post, &mut effects),
            Input::CallTimedOut(number) => {
                let why = "the server took too long to answer";
                self.give_up(number, -32_001, why, true, &mut effects);
            }
            Input::CallCancelled(number) => {
                self.give_up(number, SERVER_ERROR, "cancelled", false, &mut effects);
            }
            Input::Unreadable(number, why) => {
                let why = format!("what the server answered cannot be passed on: {why}");
                self.give_up(number, -32_603, &why, false, &mut effects);
            }
            Input::QuestionTimedOut(number) => self.expire(number, &mut effects),
            Input::Suspend => {
                if self.is_idle() && self.has_server() {
                    self.server = Server::Absent;
                    // Whoever was asked something has not answered for as long as nobody said anything.
                    self.router.forget_asked();
                    effects.push(Effect::Stop);
                }
            }
        }
        effects
    }

    fn post(&mut self, post: PostId, client: ClientId, message: Message, effects: &mut Vec<Effect>) {
        if let Gate::Refused(refusal) = &self.gate {
            effects.push(Effect::Posted(post, Posted::Over(refusal.clone())));
            return;
        }
        if message.kind() == Kind::Request && message.method() == Some("ping") && self.server != Server::Ready
        {
            self.pong(post, client, &message, effects);
            return;
        }
        if self.only.is_none() {
            // The server has had one handshake, and its scope is not the clients' to change.
            let is_ours = message.kind() == Kind::Notification
                && matches!(
                    message.method(),
                    Some("notifications/initialized" | "notifications/roots/list_changed")
                );
            if is_ours {
                effects.push(Effect::Posted(post, Posted::Accepted));
            } else {
                self.deliver(post, client, message, effects);
            }
            return;
        }
        match (message.kind(), message.method()) {
            (Kind::Notification, Some("notifications/initialized")) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                if self.initialized.is_none() {
                    self.initialized = Some(message);
                    let id = MessageId::Integer(self.router.reserve().into());
                    self.gate_on(Happened::Initialized(id), effects);
                }
                return;
            }
            (Kind::Notification, Some("notifications/roots/list_changed")) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                self.gate_on(Happened::Changed, effects);
                return;
            }
            (Kind::Success | Kind::Error, _) if self.is_of_gate(&message) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                self.gate_on(answer(&message), effects);
                return;
            }
            (Kind::Request | Kind::Notification | Kind::Success | Kind::Error, _) => {}
        }
        self.deliver(post, client, message, effects);
    }

    /// To the server, now or when it is there.
    fn deliver(&mut self, post: PostId, client: ClientId, message: Message, effects: &mut Vec<Effect>) {
        match self.server {
            Server::Ready => self.forward(&Waiting { post, client, message, number: None }, effects),
            Server::Lost => self.refuse_lost(&Waiting { post, client, message, number: None }, effects),
            Server::Absent | Server::Starting | Server::Shaking => {
                let bytes: usize = self.waiting.iter().map(|waiting| waiting.message.text().len()).sum();
                if self.waiting.len() >= WAITING_MAX || bytes >= WAITING_BYTES {
                    effects.push(Effect::Posted(post, Posted::Full));
                    return;
                }
                self.waiting.push_back(Waiting { post, client, message, number: None });
                self.bring(effects);
            }
        }
    }

    fn forward(&mut self, waiting: &Waiting, effects: &mut Vec<Effect>) {
        if self.answer_here(waiting, effects) {
            return;
        }
        let Waiting { client, message, number, .. } = waiting;
        let posted = match self.router.from_client_as(*client, message, *number) {
            FromClient::Forward { line, request } => {
                effects.push(Effect::Write(line));
                match request {
                    Some(number) => {
                        self.subscriptions.heard(*client, message);
                        effects.push(Effect::AwaitCall(number));
                        Posted::Stream(Stream::Request(number))
                    }
                    None => Posted::Accepted,
                }
            }
            FromClient::Cancel { line, request } => {
                effects.push(Effect::Write(line));
                effects.push(Effect::AwaitCancelled(request));
                Posted::Accepted
            }
            FromClient::Late => Posted::Accepted,
            FromClient::Refused(refused) => Posted::Refused(refused),
        };
        tell(waiting, posted, effects);
    }

    fn line(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        let is_handshake = self.server == Server::Shaking
            && matches!(message.kind(), Kind::Success | Kind::Error)
            && message.id() == Some(&MessageId::Integer(HANDSHAKE));
        if is_handshake {
            self.answered(message, effects);
            return;
        }
        if matches!(message.kind(), Kind::Success | Kind::Error) {
            self.failed_starts = 0;
            if self.subscriptions.answered(message) {
                return;
            }
        }
        if self.updated(message, effects) {
            return;
        }
        match self.router.from_server(message) {
            FromServer::ToClient { client, stream, line, last } => {
                effects.push(Effect::Send { client, stream, line, last });
            }
            FromServer::Ask { client, stream, line, number } => {
                effects.push(Effect::Ask { client, stream, line, number });
            }
            FromServer::ToAll(line) => effects.push(match self.only {
                Some(client) => Effect::Send { client, stream: Stream::General, line, last: false },
                None => Effect::SendAll(line),
            }),
            FromServer::Back(line) => effects.push(Effect::Write(line)),
            FromServer::Stray => effects.push(Effect::Stray),
        }
    }

    /// The question for the roots comes on the stream of a request that waits for the answer to it.
    fn carry(&mut self, post: PostId, effects: &mut Vec<Effect>) {
        let Gate::Asked(id) = &self.gate else { return };
        let line = ask_roots(id);
        let found = self.waiting.iter_mut().find(|waiting| waiting.post == post);
        let Some(waiting) = found.filter(|waiting| waiting.message.kind() == Kind::Request) else { return };
        if waiting.number.is_none() {
            let number = self.router.reserve();
            waiting.number = Some(number);
            effects.push(Effect::Begin(post, number));
            let (client, stream) = (waiting.client, Stream::Request(number));
            effects.push(Effect::Send { client, stream, line, last: false });
        }
    }

    fn is_of_gate(&self, message: &Message) -> bool {
        matches!(&self.gate, Gate::Asked(asked) if Some(asked) == message.id())
    }

    fn gate_on(&mut self, happened: Happened, effects: &mut Vec<Effect>) {
        let gate = std::mem::replace(&mut self.gate, Gate::Opening { has_roots: false });
        let (gate, then) = gate.on(happened);
        self.gate = gate;
        match then {
            Then::Nothing | Then::Pass => {}
            Then::Ask(id) => {
                let (client, line) = (self.only.unwrap_or(ClientId(0)), ask_roots(&id));
                effects.push(Effect::Send { client, stream: Stream::General, line, last: false });
                effects.push(Effect::AwaitRoots);
            }
            Then::Start => self.bring(effects),
            Then::End => self.end(effects),
        }
    }

    fn end(&mut self, effects: &mut Vec<Effect>) {
        let Gate::Refused(refusal) = &self.gate else { return };
        let refusal = refusal.clone();
        self.fail(&refusal.to_string(), effects);
        for waiting in std::mem::take(&mut self.waiting) {
            tell(&waiting, Posted::Over(refusal.clone()), effects);
        }
        if self.has_server() {
            effects.push(Effect::Stop);
        }
        self.server = Server::Lost;
        effects.push(Effect::End(refusal));
    }
}

/// Tells who posted a message what became of it: as the answer on its stream, where that has begun.
fn tell(waiting: &Waiting, posted: Posted, effects: &mut Vec<Effect>) {
    let Some(number) = waiting.number else {
        effects.push(Effect::Posted(waiting.post, posted));
        return;
    };
    let stream = Stream::Request(number);
    effects.push(Effect::Posted(waiting.post, Posted::Stream(stream)));
    let why = match posted {
        Posted::Stream(_) | Posted::Accepted => return,
        Posted::Refused(refused) => refused.to_string(),
        Posted::NotStarted(why) => why.why,
        Posted::Over(refusal) => refusal.to_string(),
        Posted::Full => "too many messages wait for the server".to_owned(),
    };
    let line = error_line(waiting.message.id_text().unwrap_or("null"), SERVER_ERROR, &why);
    effects.push(Effect::Send { client: waiting.client, stream, line, last: true });
}

/// The question for a client's directories.
fn ask_roots(id: &MessageId) -> String {
    let MessageId::Integer(id) = id else { return String::new() };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#)
}

/// What a client's answer to `roots/list` says.
fn answer(message: &Message) -> Happened {
    let id = message.id().cloned().unwrap_or(MessageId::Integer(HANDSHAKE));
    match message.result() {
        Some(result) => Happened::Answered(id, roots::read(result)),
        // It says that it can name directories, and then that it cannot: it names none.
        None if error_code(message) == Some(NO_METHOD) => Happened::Answered(id, Ok(Vec::new())),
        None => {
            let said = message.error().and_then(|error| member(error, "message"));
            let said = said.and_then(|text| serde_json::from_str::<String>(text).ok()).unwrap_or_default();
            let said: String = said.chars().take(SAID_MAX).collect();
            Happened::Declined(id, format!("it answered with an error: {said:?}"))
        }
    }
}

fn error_code(message: &Message) -> Option<i32> {
    member(message.error()?, "code")?.parse().ok()
}

#[path = "talk/server.rs"]
mod server;

#[cfg(test)]
#[path = "talk/tests.rs"]
mod tests;
