//! Which arguments of which tools come in headers: asked of the server once, and again where a request does not fit.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use session_core::names::Principal;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::modern::refused;
use super::reply::Failure;
use super::session::Client;
use crate::answers::Era;
use crate::board::{From, Next};
use crate::bridge::Entry;
use crate::conversation::Reply;
use crate::envelope::Message;
use crate::host::ServerName;
use crate::modern::{self, ModernError};
use crate::params::InHeaders;

/// The most pages of a list of tools.
const PAGES_MAX: usize = 32;
/// The most lists that are remembered.
const LISTS_MAX: usize = 1_024;
/// For a tool that it does not name, a list is not asked for again so soon.
const FRESH: Duration = Duration::from_mins(1);
/// A list that was asked for so short a time ago is what the server has.
const JUST_NOW: Duration = Duration::from_secs(2);
/// Instead of a header that comes twice or is no text: it is the same as no argument.
const NO_TEXT: &str = "\u{0}";

/// The tools of each server, as each principal sees them.
#[derive(Default)]
pub(crate) struct Lists(Mutex<HashMap<(Principal, ServerName), Remembered>>);

/// Since when, and which.
type Remembered = (Instant, Arc<Tools>);

type Tools = BTreeMap<String, InHeaders>;

impl Client<'_> {
    /// Refuses a call whose headers say something else than its arguments. A list that is remembered may be old: nothing is
    /// refused because of it alone.
    pub(super) async fn check_arguments(
        &self,
        call: &Message,
        headers: &HeaderMap,
        era: &Era,
    ) -> Result<(), Failure> {
        let name = call.param("name").and_then(|name| serde_json::from_str::<String>(name).ok());
        let (Some(name), arguments) = (name, call.param("arguments").unwrap_or("{}")) else { return Ok(()) };
        let key = (self.principal.clone(), self.target.server.clone());
        let lists = &self.shell.lists.0;
        let remembered = lists.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let now = Instant::now();
        if let Some((since, tools)) = remembered {
            match tools.get(&name) {
                Some(tool) => match check(tool, arguments, headers) {
                    Ok(()) => return Ok(()),
                    // It was asked just now: it is the call that is wrong.
                    Err(error) if now - since < JUST_NOW => return Err(refused(&error)),
                    Err(_) => {}
                },
                None if now - since < FRESH => return Ok(()),
                None => {}
            }
        }
        let Some(tools) = self.tools(era).await else { return Ok(()) };
        let checked = tools.get(&name).map_or(Ok(()), |tool| check(tool, arguments, headers));
        let mut lists = lists.lock().unwrap_or_else(PoisonError::into_inner);
        if lists.len() >= LISTS_MAX {
            lists.clear();
        }
        lists.insert(key, (now, Arc::new(tools)));
        checked.map_err(|error| refused(&error))
    }

    /// The server's tools; nothing where it does not say.
    async fn tools(&self, era: &Era) -> Option<Tools> {
        let (bridge, name) = (&self.shell.bridge, self.target.name.as_deref());
        let entry = bridge.visit(&self.target.server, self.principal, name, era).await.ok()?;
        let (mut tools, mut cursor) = (Tools::new(), None);
        for _ in 0..PAGES_MAX {
            let asked = Message::parse(modern::list_tools(cursor.as_deref()).into_bytes()).ok()?;
            let limit = bridge.settings.times.wait;
            let replied = entry.post(asked.into(), limit).await.ok()?;
            // What does not come whole is no list: the next call asks again.
            let Ok(Some(line)) = timeout(limit, whole(&entry, replied)).await else {
                entry.depart();
                return None;
            };
            let answer = Message::parse(line.into_bytes()).ok()?;
            let (page, next) = InHeaders::of_list(answer.result().unwrap_or("{}"));
            tools.extend(page);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        entry.depart();
        Some(tools)
    }
}

/// The answer to a request, also where it comes as a stream.
async fn whole(entry: &Entry, replied: oneshot::Receiver<Reply>) -> Option<String> {
    let stream = match replied.await.ok()? {
        Reply::Answer(line) => return Some(line),
        Reply::Stream(stream) => stream,
        Reply::Accepted
        | Reply::Refused(_)
        | Reply::Full
        | Reply::NotStarted(_)
        | Reply::Over(_)
        | Reply::Again(_)
        | Reply::Draining => return None,
    };
    let mut bell = entry.board.listen();
    let mut seat = entry.board.sit(From::Unread(stream));
    loop {
        match entry.board.next(&mut seat) {
            Next::Event { line, last: true, .. } => return String::from_utf8(line.into()).ok(),
            Next::Event { .. } => {}
            Next::Ended => return None,
            Next::Nothing => bell.changed().await.ok()?,
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
