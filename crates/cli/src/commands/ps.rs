//! `roomette ps`: the sessions, newest first, or as families.

mod tree;

use jiff::Timestamp;
use serde::Serialize;
use session_core::SessionId;
use session_core::names::Label;
use session_core::ports::{Cursor, Listing, Page, SessionFilter, SessionStore as _};
use session_core::session::SessionSummary;

use self::tree::Node;
use crate::args::PsArgs;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::view::{SessionView, binding};
use crate::{output, view};

const HEAD: [&str; 9] = ["SESSION", "LABEL", "STATUS", "STATE", "EXIT", "TIME", "IDLE", "BUDGET", "COMMAND"];

/// One page, as scripts read it.
#[derive(Serialize)]
struct PageView {
    sessions: Vec<SessionView>,
    /// What `--after` takes for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Lists sessions.
pub async fn execute(context: &Context, args: PsArgs) -> Outcome<()> {
    let label = args.label.as_deref().map(Label::new).transpose();
    let filter = SessionFilter {
        label: label.map_err(|error| Failure::of(Kind::Usage, &error))?,
        busy: args.busy,
        live: !args.all,
        ..SessionFilter::default()
    };
    let mut page = Page::first(args.limit);
    page.after = args.after.as_deref().map(parse_cursor).transpose()?;
    if args.tree {
        return families(context, &args, &filter, &page).await;
    }
    let listing = match context.read_store().await? {
        Some(store) => {
            let listing = store.list(&filter, &page).await?;
            store.close().await;
            listing
        }
        None => Listing { items: Vec::new(), next: None },
    };
    let next = listing.next.map(|cursor| format!("{}:{}", cursor.created_at.as_millisecond(), cursor.id));
    if context.json {
        let layout = context.layout();
        let directory =
            |summary: &SessionSummary| Some(layout.session(summary.session.id).root().to_string());
        let sessions = listing.items.iter().map(|item| SessionView::new(item, directory(item))).collect();
        return output::json(&PageView { sessions, next });
    }
    if args.quiet {
        return listing.items.iter().try_for_each(|item| output::line(&item.session.id.to_string()));
    }
    if listing.items.is_empty() {
        say_that_there_are_none();
        return Ok(());
    }
    print(&listing, context.env.now())?;
    if let Some(next) = next {
        output::say(&format!("there are more: add --after {next}"));
    }
    Ok(())
}

fn say_that_there_are_none() {
    output::say(
        "no sessions; `roomette run -- PROGRAM…` makes one, `roomette ps --all` shows what ended for good",
    );
}

/// The same as families: for scripts a list in which each stands behind its parent.
async fn families(context: &Context, args: &PsArgs, filter: &SessionFilter, page: &Page) -> Outcome<()> {
    let nodes = match context.read_store().await? {
        Some(store) => {
            let nodes = tree::families(&store, filter, page).await?;
            store.close().await;
            nodes
        }
        None => Vec::new(),
    };
    if context.json {
        let layout = context.layout();
        let view = |node: &Node| {
            let directory = layout.session(node.item.session.id).root().to_string();
            SessionView::new(&node.item, Some(directory))
        };
        return output::json(&PageView { sessions: nodes.iter().map(view).collect(), next: None });
    }
    if args.quiet {
        return nodes.iter().try_for_each(|node| output::line(&node.item.session.id.to_string()));
    }
    if nodes.is_empty() {
        say_that_there_are_none();
        return Ok(());
    }
    let now = context.env.now();
    let mut table = output::table(&HEAD);
    for Node { item, lines } in &nodes {
        let mut row = row(item, now);
        if let Some(name) = row.first_mut() {
            name.insert_str(0, lines);
        }
        table.add_row(row);
    }
    output::print(&table)
}

fn print(listing: &Listing, now: Timestamp) -> Outcome<()> {
    // Most sessions have no parent: then there is no column of dashes.
    let families = listing.items.iter().any(|item| item.session.parent.is_some());
    let mut head = HEAD.to_vec();
    if families {
        head.insert(1, "PARENT");
    }
    let mut table = output::table(&head);
    for item in &listing.items {
        let mut row = row(item, now);
        if families {
            let parent = item.session.parent.map(|parent| view::short(&parent.to_string()).to_owned());
            row.insert(1, parent.unwrap_or_else(|| "-".into()));
        }
        table.add_row(row);
    }
    output::print(&table)
}

fn row(item: &SessionSummary, now: Timestamp) -> Vec<String> {
    let session = &item.session;
    let run = item.last_run.as_ref();
    let ended = run.and_then(|run| run.ended());
    let exit = ended.and_then(|(_, ending)| ending.exit).map_or_else(
        || "-".into(),
        |exit| match exit {
            session_core::run::Exit::Code(code) => code.to_string(),
            session_core::run::Exit::Signal(signal) => format!("signal {signal}"),
        },
    );
    let elapsed = view::elapsed(run.and_then(|run| run.started_at), ended.map(|(at, _)| at), now);
    let command = run.map(|run| output::harmless(&binding::doing(run), 48)).unwrap_or_default();
    vec![
        view::short(&session.id.to_string()).into(),
        session.label.as_ref().map(|label| output::harmless(label.as_str(), 24)).unwrap_or_default(),
        item.status().into(),
        session.state.name().into(),
        exit,
        elapsed.map_or_else(|| "-".into(), view::duration),
        view::idle(item, now).map_or_else(|| "-".into(), view::duration),
        view::budget_bar(session).unwrap_or_else(|| "-".into()),
        command,
    ]
}

fn parse_cursor(text: &str) -> Outcome<Cursor> {
    let parts = text.split_once(':').and_then(|(at, id)| {
        let created_at = Timestamp::from_millisecond(at.parse().ok()?).ok()?;
        Some(Cursor { created_at, id: id.parse::<SessionId>().ok()? })
    });
    parts.ok_or_else(|| {
        Failure::usage(format!("--after {text:?} is no place in a list; the page before says it"))
    })
}
