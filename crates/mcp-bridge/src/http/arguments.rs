//! Which arguments of which tools come in headers: asked of the server once, and again where a request does not fit. One question
//! is on its way at a time, and a server that does not answer it keeps one call waiting, not each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use session_core::names::Principal;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::modern::refused;
use super::reply::Failure;
use super::session::Client;
use super::{Shell, Target};
use crate::answers::{AnswerError, Era};
use crate::board::{From, Next};
use crate::bridge::{Bridge, Entry, Unposted};
use crate::conversation::Reply;
use crate::envelope::Message;
use crate::host::ServerName;
use crate::inquiry::Inquiry;
use crate::modern::{self, ModernError};
use crate::params::InHeaders;

/// The most pages of a list of tools.
const PAGES_MAX: usize = 32;
/// The most lists that are remembered.
const LISTS_MAX: usize = 1_024;
/// For a tool that it does not name, or where there was none, a list is not asked for again so soon.
const FRESH: Duration = Duration::from_mins(1);
/// A list that was asked for so short a time ago is what the server has.
const JUST_NOW: Duration = Duration::from_secs(2);
/// Tries to reach a session that ends and begins again meanwhile.
const TRIES: usize = 3;
/// Instead of a header that comes twice or is no text: it is the same as no argument.
const NO_TEXT: &str = "\u{0}";
/// How the headers of arguments begin.
const PARAM: &str = "mcp-param-";

/// The tools of each server, as each principal sees them.
#[derive(Default)]
pub(crate) struct Lists(Mutex<HashMap<(Principal, ServerName), List>>);

/// What is known of the tools of a server, and what is asked.
#[derive(Clone, Default)]
struct List {
    known: Known,
    /// The question that is on its way.
    asking: Arc<Inquiry<Option<Arc<Tools>>>>,
}

/// What is known of the tools of a server.
#[derive(Clone, Default)]
struct Known {
    /// The last list that came, and since when.
    list: Option<(Instant, Arc<Tools>)>,
    /// When one was asked for that did not come, if that was later.
    silent: Option<Instant>,
}

type Tools = BTreeMap<String, InHeaders>;

/// What is to be done about a call.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is passed on.
    Pass,
    /// The same; and the server is asked for its tools beside it.
    PassAndAsk,
    /// The server is asked first.
    Ask,
    /// It is wrong.
    Refuse(ModernError),
    /// Whether it is wrong cannot be said.
    Unknown,
}

impl Lists {
    fn all(&self) -> MutexGuard<'_, HashMap<(Principal, ServerName), List>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &(Principal, ServerName)) -> List {
        let mut lists = self.all();
        if lists.len() >= LISTS_MAX && !lists.contains_key(key) {
            lists.clear();
        }
        lists.entry(key.clone()).or_default().clone()
    }

    fn learn(&self, key: (Principal, ServerName), tools: Option<Arc<Tools>>) {
        let mut lists = self.all();
        let list = lists.entry(key).or_default();
        list.known.learn(tools, Instant::now());
        // The next question is another one.
        list.asking = Arc::default();
    }
}

impl Known {
    /// A list has come, or has not: then the one that came before says what it said.
    fn learn(&mut self, tools: Option<Arc<Tools>>, now: Instant) {
        match tools {
            Some(tools) => *self = Self { list: Some((now, tools)), silent: None },
            None => self.silent = Some(now),
        }
    }

    /// What is to be done about a call. A list that is remembered may be old: nothing is refused because of it alone.
    fn verdict(&self, now: Instant, name: &str, arguments: &str, headers: &HeaderMap) -> Verdict {
        let is_silent = self.silent.is_some_and(|at| now.saturating_duration_since(at) < FRESH);
        // Something before the bridge may have acted on these, and they may say something else than the arguments.
        let is_marked = headers.keys().any(|header| header.as_str().starts_with(PARAM));
        let Some((since, tools)) = &self.list else {
            return match (self.silent.is_some(), is_silent, is_marked) {
                (_, true, true) => Verdict::Unknown,
                (_, true, false) => Verdict::Pass,
                (false, false, _) | (true, false, true) => Verdict::Ask,
                (true, false, false) => Verdict::PassAndAsk,
            };
        };
        let age = now.saturating_duration_since(*since);
        match tools.get(name) {
            Some(tool) => match check(tool, arguments, headers) {
                Ok(()) => Verdict::Pass,
                // It was asked just now: it is the call that is wrong.
                Err(error) if age < JUST_NOW => Verdict::Refuse(error),
                Err(_) if is_silent => Verdict::Unknown,
                Err(_) => Verdict::Ask,
            },
            None if age < FRESH => Verdict::Pass,
            None if is_silent && is_marked => Verdict::Unknown,
            None if is_silent => Verdict::Pass,
            None if tools.values().all(InHeaders::is_empty) => Verdict::PassAndAsk,
            None => Verdict::Ask,
        }
    }
}

impl Client<'_> {
    /// Refuses a call whose headers say something else than its arguments.
    pub(super) async fn check_arguments(
        &self,
        call: &Message,
        headers: &HeaderMap,
        era: &Era,
    ) -> Result<(), Failure> {
        let name = call.param("name").and_then(|name| serde_json::from_str::<String>(name).ok());
        let (Some(name), arguments) = (name, call.param("arguments").unwrap_or("{}")) else { return Ok(()) };
        let key = (self.principal.clone(), self.target.server.clone());
        let List { mut known, asking } = self.shell.lists.get(&key);
        let mut found = known.verdict(Instant::now(), &name, arguments, headers);
        let (tasks, find_out) = (&self.shell.bridge.tasks, || Ok(self.find_out(key, era)));
        if found == Verdict::PassAndAsk {
            let _begun = asking.begin(tasks, find_out);
        } else if found == Verdict::Ask {
            let tools = asking.answer(tasks, find_out).await.ok().flatten();
            let now = Instant::now();
            known.learn(tools, now);
            found = known.verdict(now, &name, arguments, headers);
        }
        match found {
            Verdict::Pass | Verdict::PassAndAsk | Verdict::Ask => Ok(()),
            Verdict::Refuse(error) => Err(refused(&error)),
            Verdict::Unknown => Err(Failure::busy(
                "the server does not say just now which arguments of its tools come in headers: this call may lack some",
            )),
        }
    }

    /// Asks for the server's tools, and remembers them.
    fn find_out(
        &self,
        key: (Principal, ServerName),
        era: &Era,
    ) -> impl Future<Output = Result<Option<Arc<Tools>>, AnswerError>> + Send + use<> {
        let (shell, principal) = (Arc::clone(self.shell), self.principal.clone());
        let (target, era) = (self.target.clone(), era.clone());
        async move {
            let tools = tokio::select! {
                () = shell.bridge.drain.cancelled() => None,
                tools = tools(&shell, &target, &principal, &era) => tools.map(Arc::new),
            };
            shell.lists.learn(key, tools.clone());
            Ok(tools)
        }
    }
}

/// The server's tools; nothing where it does not say.
async fn tools(shell: &Shell, target: &Target, principal: &Principal, era: &Era) -> Option<Tools> {
    let bridge = &shell.bridge;
    let limit = bridge.settings.times.wait;
    for _ in 0..TRIES {
        let entry = bridge.visit(&target.server, principal, target.name.as_deref(), era).await.ok()?;
        let listed = timeout(limit, list(bridge, &entry)).await;
        entry.depart();
        match listed {
            Ok(Listed::Tools(tools)) => return Some(tools),
            Ok(Listed::Again) => entry.done().await,
            Ok(Listed::Nothing) | Err(_) => return None,
        }
    }
    None
}

/// What became of a list.
enum Listed {
    Tools(Tools),
    /// Its session ends and begins again.
    Again,
    /// What does not come whole is no list.
    Nothing,
}

async fn list(bridge: &Bridge, entry: &Entry) -> Listed {
    let (mut tools, mut cursor) = (Tools::new(), None);
    for _ in 0..PAGES_MAX {
        let asked = modern::list_tools(cursor.as_deref());
        let Ok(asked) = Message::parse(asked.into_bytes()) else { return Listed::Nothing };
        let replied = match entry.post(asked.into(), bridge.settings.times.wait).await {
            Ok(replied) => replied,
            Err(Unposted::Ended(_)) => return Listed::Again,
            Err(Unposted::Deaf) => return Listed::Nothing,
        };
        let line = match whole(entry, replied).await {
            Whole::Line(line) => line,
            Whole::Again => return Listed::Again,
            Whole::Nothing => return Listed::Nothing,
        };
        let Ok(answer) = Message::parse(line.into_bytes()) else { return Listed::Nothing };
        // A server that has no tools to list says so with an error.
        let (page, next) = InHeaders::of_list(answer.result().unwrap_or("{}"));
        tools.extend(page);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    Listed::Tools(tools)
}

/// What became of a request.
enum Whole {
    Line(String),
    Again,
    Nothing,
}

/// The answer to a request, also where it comes as a stream.
async fn whole(entry: &Entry, replied: oneshot::Receiver<Reply>) -> Whole {
    let stream = match replied.await {
        Ok(Reply::Answer(line)) => return Whole::Line(line),
        Ok(Reply::Stream(stream)) => stream,
        Ok(Reply::Again(_)) => return Whole::Again,
        Ok(
            Reply::Accepted
            | Reply::Refused(_)
            | Reply::Full
            | Reply::NotStarted(_)
            | Reply::Over(_)
            | Reply::Draining,
        )
        | Err(_) => return Whole::Nothing,
    };
    let mut bell = entry.board.listen();
    let mut seat = entry.board.sit(From::Unread(stream));
    loop {
        match entry.board.next(&mut seat) {
            Next::Event { line, last: true, .. } => {
                return String::from_utf8(line.into()).map_or(Whole::Nothing, Whole::Line);
            }
            Next::Event { .. } => {}
            Next::Ended => return Whole::Nothing,
            Next::Nothing => {
                if bell.changed().await.is_err() {
                    return Whole::Nothing;
                }
            }
        }
    }
}

fn check(tool: &InHeaders, arguments: &str, headers: &HeaderMap) -> Result<(), ModernError> {
    tool.check(arguments, |name| {
        let mut given = headers.get_all(name).iter();
        let text = given.next().map(|value| value.to_str().unwrap_or(NO_TEXT));
        if given.next().is_some() { Some(NO_TEXT) } else { text }
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_call_waits_for_a_list_only_where_it_must() {
        let (then, mut marked) = (Instant::now(), HeaderMap::new());
        marked.insert("mcp-param-who", HeaderValue::from_static("ada"));
        let of = |known: Option<Option<Tools>>, age: Duration, name: &str, headers: &HeaderMap| {
            let mut all = Known::default();
            if let Some(tools) = known {
                all.learn(tools.map(Arc::new), then);
            }
            all.verdict(then + age, name, "{}", headers)
        };
        let (soon, later, plain) = (JUST_NOW / 2, FRESH, HeaderMap::new());
        let schema = serde_json::json!({"properties": {"who": {"type": "string", "x-mcp-header": "Who"}}});
        let tools: Tools = [("marked".to_owned(), InHeaders::of_schema(&schema))].into();
        let bare: Tools = [("bare".to_owned(), InHeaders::default())].into();
        assert_eq!(of(None, soon, "marked", &plain), Verdict::Ask);
        for (age, headers, expected) in [
            (soon, &plain, Verdict::Pass),
            (later, &plain, Verdict::PassAndAsk),
            (soon, &marked, Verdict::Unknown),
            (later, &marked, Verdict::Ask),
        ] {
            assert_eq!(of(Some(None), age, "marked", headers), expected, "it did not say");
        }
        assert_eq!(of(Some(Some(tools.clone())), soon, "marked", &plain), Verdict::Pass);
        let refused = of(Some(Some(tools.clone())), soon, "marked", &marked);
        assert!(matches!(refused, Verdict::Refuse(_)), "{refused:?}");
        assert_eq!(of(Some(Some(tools.clone())), JUST_NOW, "marked", &marked), Verdict::Ask);
        assert_eq!(of(Some(Some(tools.clone())), soon, "other", &marked), Verdict::Pass);
        assert_eq!(of(Some(Some(tools)), later, "other", &plain), Verdict::Ask);
        assert_eq!(of(Some(Some(bare)), later, "other", &plain), Verdict::PassAndAsk);
    }

    #[test]
    fn what_a_list_refused_is_not_passed_on_because_no_newer_one_comes() {
        let (then, plain) = (Instant::now(), HeaderMap::new());
        let schema = serde_json::json!({"properties": {"who": {"type": "string", "x-mcp-header": "Who"}}});
        let tools: Tools = [("marked".to_owned(), InHeaders::of_schema(&schema))].into();
        let mut known = Known::default();
        known.learn(Some(Arc::new(tools)), then);
        let of = |known: &Known, age, arguments: &str| known.verdict(then + age, "marked", arguments, &plain);
        assert_eq!(of(&known, FRESH, r#"{"who":"ada"}"#), Verdict::Ask);
        // The one call that asked, and the next ones.
        known.learn(None, then + FRESH);
        for age in [FRESH, FRESH + JUST_NOW] {
            assert_eq!(of(&known, age, r#"{"who":"ada"}"#), Verdict::Unknown);
            assert_eq!(of(&known, age, "{}"), Verdict::Pass);
            assert_eq!(known.verdict(then + age, "other", "{}", &plain), Verdict::Pass);
        }
        assert_eq!(of(&known, FRESH * 2, r#"{"who":"ada"}"#), Verdict::Ask);
    }
}
