//! `roomette token`: who is let in by the HTTP API.

use session_api::tokens::TokenView;
use session_core::ids::TokenId;
use session_core::ports::TokenStore as _;
use session_core::token::{TokenRecord, Verbs};
use session_store::SqlStore;

use crate::args::TokenCommand;
use crate::args::serve::Expires;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link;
use crate::host::protocol::{IssueToken, Reply, Request};
use crate::output;

/// Does what the command says.
pub async fn execute(context: &Context, command: TokenCommand) -> Outcome<()> {
    match command {
        TokenCommand::Create { name, verbs, expires, principal } => {
            create(context, name, verbs, expires, principal).await
        }
        TokenCommand::Ls { all } => list(context, all).await,
        TokenCommand::Rm { token } => revoke(context, &token).await,
    }
}

async fn create(
    context: &Context,
    name: String,
    verbs: Verbs,
    expires: Expires,
    principal: Option<String>,
) -> Outcome<()> {
    let expires_at = match expires {
        Expires::Never => None,
        Expires::After(time) => Some(context.env.now().checked_add(time).map_err(|_| {
            Failure::usage("--expires: that is longer than time is counted").hint("say `--expires never`")
        })?),
    };
    let principal = principal.map_or_else(|| context.principal().map(|own| own.to_string()), Ok)?;
    let request = IssueToken { name, principal, verbs: verbs.to_string(), expires_at };
    let reply = link::ensure_host(context).await?.ask(&Request::IssueToken(request)).await?;
    let Reply::Issued(issued) = reply else { return Err(Reply::unexpected()) };
    if context.json {
        return output::json(&issued);
    }
    output::line(&issued.secret)?;
    let TokenView { id, principal, verbs, expires_at, .. } = issued.token;
    let until = expires_at.map_or_else(|| "it is revoked".into(), |at| at.to_string());
    output::say(&format!(
        "token {id} of {principal} for {} until {until}: keep it, it is shown this once",
        verbs.join(", ")
    ));
    Ok(())
}

async fn list(context: &Context, all: bool) -> Outcome<()> {
    let Some(store) = context.read_store().await? else { return Ok(()) };
    let found = tokens(&store).await;
    store.close().await;
    let now = context.env.now();
    let found: Vec<_> = found?.into_iter().filter(|token| all || token.is_valid(now)).collect();
    if context.json {
        return found.iter().try_for_each(|token| output::json(&TokenView::from(token)));
    }
    if found.is_empty() {
        output::say("no token lets anybody in; `roomette token create --name NAME` makes one");
        return Ok(());
    }
    let mut table = output::table(&["TOKEN", "NAME", "PRINCIPAL", "VERBS", "UNTIL"]);
    for token in &found {
        let until = match (token.revoked_at, token.expires_at) {
            (Some(at), _) => format!("revoked {at}"),
            (None, Some(at)) => at.to_string(),
            (None, None) => "-".into(),
        };
        let (name, principal) = (token.name.to_string(), token.principal.to_string());
        table.add_row([token.id.to_string(), name, principal, token.verbs.to_string(), until]);
    }
    output::print(&table)
}

async fn revoke(context: &Context, name: &str) -> Outcome<()> {
    let Some(store) = context.read_store().await? else { return Err(unknown(name)) };
    let found = find(&store, name).await;
    store.close().await;
    let request = Request::RevokeToken { token: found? };
    let Reply::Done = link::ensure_host(context).await?.ask(&request).await? else {
        return Err(Reply::unexpected());
    };
    Ok(())
}

/// The token of this id, or the only one whose id begins so.
async fn find(store: &SqlStore, name: &str) -> Outcome<TokenId> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let found = tokens(store).await?;
    let mut begins = found.iter().filter(|token| token.id.to_string().starts_with(name));
    match (begins.next(), begins.count()) {
        (Some(one), 0) => Ok(one.id),
        (None, _) => Err(unknown(name)),
        (Some(_), more) => Err(Failure::usage(format!("{name:?} may be any of {} tokens", more + 1))
            .hint("give more of its id; `roomette token ls --all` lists them")),
    }
}

/// All of them, newest first.
async fn tokens(store: &SqlStore) -> Outcome<Vec<TokenRecord>> {
    const PAGE: u32 = 1_000;
    let mut all: Vec<TokenRecord> = Vec::new();
    loop {
        let page = store.tokens(None, all.last().map(|last| last.id), PAGE).await?;
        let full = page.len() == PAGE as usize;
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("there is no token {name:?}"))
        .hint("`roomette token ls` lists those that count")
}
