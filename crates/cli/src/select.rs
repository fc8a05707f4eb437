//! From what a person typed to a session.

use session_core::names::Label;
use session_core::ports::SessionStore as _;
use session_core::{Id as _, SessionId, SessionRef};
use session_store::SqlStore;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::view;

/// How many candidates an ambiguous name lists.
const CANDIDATES: u32 = 6;

/// The session that is meant; an error if there is none, or more than one.
pub async fn one(store: &SqlStore, text: &str) -> Outcome<SessionId> {
    let name: SessionRef = text.parse()?;
    let found = store.find(&name, CANDIDATES).await?;
    match found.as_slice() {
        [] => Err(unknown(text)),
        [id] => Ok(*id),
        several => {
            let list: Vec<_> = several.iter().map(|id| view::short(&id.to_string()).to_owned()).collect();
            let more = if several.len() == CANDIDATES as usize { " …" } else { "" };
            Err(Failure::usage(format!("{text:?} may be several sessions: {}{more}", list.join(" ")))
                .hint("give more digits of the id"))
        }
    }
}

/// The sessions that are meant, each once.
pub async fn several(context: &Context, texts: &[String]) -> Outcome<Vec<SessionId>> {
    // What cannot be a session at all is said before anything is opened.
    for text in texts {
        text.parse::<SessionRef>()?;
    }
    let Some(store) = context.read_store().await? else {
        return Err(texts
            .first()
            .map_or_else(|| Failure::usage("no session is named"), |text| unknown(text)));
    };
    let mut sessions = Vec::with_capacity(texts.len());
    for text in texts {
        let id = one(&store, text).await?;
        if !sessions.contains(&id) {
            sessions.push(id);
        }
    }
    store.close().await;
    Ok(sessions)
}

/// There is no such session.
pub fn unknown(text: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("there is no session {text:?}"))
        .hint("`roomette ps --all` lists the sessions")
}

/// A label by which a session can be found again.
pub fn label(text: &str) -> Outcome<Label> {
    let label = Label::new(text).map_err(|error| Failure::of(Kind::Usage, &error))?;
    let like_an_id = text.starts_with(&format!("{}_", SessionId::PREFIX));
    match text.parse::<SessionRef>() {
        Ok(_) if !like_an_id => Ok(label),
        Ok(_) | Err(_) => {
            Err(Failure::usage(format!("the label {text:?} would be taken for an id, or for a path"))
                .hint("choose one without an id's prefix and without `..`"))
        }
    }
}
