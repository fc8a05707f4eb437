//! Families as people see them: each session below the one that started it.

use std::collections::{HashMap, HashSet};

use session_core::SessionId;
use session_core::ports::{Listing, Page, RunStore as _, SessionFilter, SessionStore as _};
use session_core::session::SessionSummary;
use session_store::SqlStore;

use crate::failure::{Failure, Outcome};

/// The most sessions that are shown of all families together.
const SESSIONS_MAX: usize = 10_000;

/// A session in its family.
#[derive(Debug)]
pub struct Node {
    /// The session.
    pub item: SessionSummary,
    /// What stands before its name: the lines that lead to it.
    pub lines: String,
}

/// The families of the sessions of this page, each whole, in the order of the page; parents before their children, and of
/// those the oldest first.
pub async fn families(store: &SqlStore, filter: &SessionFilter, page: &Page) -> Outcome<Vec<Node>> {
    let mut roots: Vec<SessionSummary> = Vec::new();
    let mut known = HashSet::new();
    let mut page = *page;
    let limit = page.limit as usize;
    loop {
        let Listing { items, next } = store.list(filter, &page).await?;
        for item in items {
            if roots.len() == limit {
                break;
            }
            let root = root(store, item, &mut known).await?;
            roots.extend(root);
        }
        match next {
            Some(cursor) if roots.len() < limit => page = page.after(cursor),
            Some(_) | None => break,
        }
    }
    let mut sessions = roots.clone();
    let mut next = 0;
    while let Some(above) = sessions.get(next).map(|item| item.session.id) {
        next += 1;
        let below = children(store, above, filter.live).await?;
        sessions.extend(below);
        if sessions.len() > SESSIONS_MAX {
            return Err(Failure::usage(format!("these families have more than {SESSIONS_MAX} sessions"))
                .hint("show fewer of them: --limit"));
        }
    }
    Ok(forest(sessions))
}

/// The first of a session's family, unless one of that was seen before.
async fn root(
    store: &SqlStore,
    mut item: SessionSummary,
    known: &mut HashSet<SessionId>,
) -> Outcome<Option<SessionSummary>> {
    loop {
        if !known.insert(item.session.id) {
            return Ok(None);
        }
        let Some(parent) = item.session.parent else { return Ok(Some(item)) };
        let Some(session) = store.session(parent).await? else { return Ok(Some(item)) };
        let last_run = store.runs(parent, 1).await?.pop();
        item = SessionSummary { session, last_run };
    }
}

async fn children(store: &SqlStore, of: SessionId, live: bool) -> Outcome<Vec<SessionSummary>> {
    let filter = SessionFilter { parent: Some(of), live, ..SessionFilter::default() };
    let (mut children, mut page) = (Vec::new(), Page::first(Page::MAX));
    loop {
        let listing = store.list(&filter, &page).await?;
        children.extend(listing.items);
        match listing.next {
            Some(cursor) if children.len() <= SESSIONS_MAX => page = page.after(cursor),
            Some(_) | None => return Ok(children),
        }
    }
}

fn forest(sessions: Vec<SessionSummary>) -> Vec<Node> {
    let kin: Vec<_> = sessions.iter().map(|item| (item.session.id, item.session.parent)).collect();
    let mut sessions: Vec<_> = sessions.into_iter().map(Some).collect();
    let placed = order(&kin).into_iter();
    placed.filter_map(|(place, lines)| Some(Node { item: sessions.get_mut(place)?.take()?, lines })).collect()
}

/// The places of sessions, each behind its parent, with the lines that lead to it. Those whose parent is not among them come
/// in their order; children, which are given newest first, oldest first.
fn order(sessions: &[(SessionId, Option<SessionId>)]) -> Vec<(usize, String)> {
    let there: HashSet<_> = sessions.iter().map(|(id, _)| *id).collect();
    let mut below: HashMap<Option<SessionId>, Vec<usize>> = HashMap::new();
    for (place, (_, parent)) in sessions.iter().enumerate() {
        below.entry(parent.filter(|parent| there.contains(parent))).or_default().push(place);
    }
    // What is still to be placed, the next one last, and what stands before the lines of its children.
    let roots = below.remove(&None).unwrap_or_default();
    let mut open: Vec<_> =
        roots.into_iter().rev().map(|place| (place, String::new(), String::new())).collect();
    let mut placed = Vec::with_capacity(sessions.len());
    while let Some((place, lines, before)) = open.pop() {
        let children = sessions.get(place).and_then(|(id, _)| below.remove(&Some(*id))).unwrap_or_default();
        for (from_last, child) in children.into_iter().enumerate() {
            let (branch, on) = if from_last == 0 { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            open.push((child, format!("{before}{branch}"), format!("{before}{on}")));
        }
        placed.push((place, lines));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: u32) -> SessionId {
        format!("ses_{digit:032x}").parse().unwrap()
    }

    fn drawn(sessions: &[(u32, Option<u32>)]) -> String {
        let kin: Vec<_> = sessions.iter().map(|(of, parent)| (id(*of), parent.map(id))).collect();
        let line = |(place, lines): (usize, String)| format!("{lines}{}\n", sessions[place].0);
        order(&kin).into_iter().map(line).collect()
    }

    #[test]
    fn a_family_is_drawn_below_its_first() {
        let sessions = [
            (1, None),
            (2, None),
            (13, Some(1)),
            (12, Some(1)),
            (11, Some(1)),
            (121, Some(12)),
            (131, Some(13)),
        ];
        assert_eq!(drawn(&sessions), "1\n├─ 11\n├─ 12\n│  └─ 121\n└─ 13\n   └─ 131\n2\n");
        assert_eq!(drawn(&[(5, Some(4))]), "5\n", "its parent is not there");
        assert_eq!(drawn(&[]), "");
    }

    #[test]
    fn a_deep_family_is_drawn_whole() {
        let sessions: Vec<_> = (1..3_000).map(|of| (of, (of > 1).then(|| of - 1))).collect();
        assert_eq!(drawn(&sessions).lines().count(), sessions.len());
    }
}
