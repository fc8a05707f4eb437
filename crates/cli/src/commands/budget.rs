//! `roomette budget`: what a session may use up, and what it has used.

use session_core::budget::{Resource, Usage};
use session_core::ports::SessionStore as _;
use session_core::{ManagedSession, SessionRef};

use crate::args::{AmountArgs, BudgetCommand, Unlimited};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::host::link::Link;
use crate::host::protocol::{BudgetChangeWire, BudgetWire, Request};
use crate::view::{AccountView, amount};
use crate::{output, select, view};

/// Shows or changes a budget.
pub async fn execute(context: &Context, command: BudgetCommand) -> Outcome<()> {
    let (session, change) = match command {
        BudgetCommand::Show(args) => return show(context, &args.session).await,
        BudgetCommand::TopUp { session, by } => {
            if [by.tokens, by.tool_calls, by.turns, by.cost].into_iter().flatten().all(|amount| amount == 0) {
                return Err(nothing_given("budget top-up SESSION --tokens 50000"));
            }
            (session, BudgetChangeWire::Add(wire(by)))
        }
        BudgetCommand::Set { session, to, no_limit } => {
            if to.is_empty() && no_limit.is_empty() {
                return Err(nothing_given("budget set SESSION --turns 10"));
            }
            let any = |what| no_limit.contains(&what);
            let (any_turns, any_cost) = (any(Unlimited::Turns), any(Unlimited::Cost));
            if (any_turns && to.turns.is_some()) || (any_cost && to.cost.is_some()) {
                return Err(Failure::usage("a resource is given a limit and none at the same time"));
            }
            (session, BudgetChangeWire::Set { to: wire(to), any_turns, any_cost })
        }
    };
    let sessions = select::several(context, std::slice::from_ref(&session)).await?;
    let by = context.principal()?.to_string();
    let mut link = Link::attach(context, "budget").await?;
    for &session in &sessions {
        let asked = link.ask(Request::Budget { session, change, by: by.clone() }).await;
        if let Err(failure) = asked {
            link.close().await;
            return Err(failure);
        }
    }
    link.close().await;
    show(context, &session).await
}

fn nothing_given(example: &str) -> Failure {
    Failure::usage("no amount is given").hint(format!("for example `roomette {example}`"))
}

fn wire(amounts: AmountArgs) -> BudgetWire {
    BudgetWire {
        tokens: amounts.tokens,
        tool_calls: amounts.tool_calls,
        turns: amounts.turns,
        cost_micros: amounts.cost,
    }
}

async fn show(context: &Context, text: &str) -> Outcome<()> {
    text.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(text)) };
    let id = select::one(&store, text).await?;
    let session = store.session(id).await?;
    store.close().await;
    let Some(session) = session else { return Err(select::unknown(text)) };
    if context.json {
        return output::json(&AccountView::new(&session));
    }
    let mut table = output::table(&["RESOURCE", "USED", "SET ASIDE", "FOR CHILDREN", "LIMIT", "LEFT"]);
    for &resource in Resource::ALL {
        table.add_row(row(&session, resource));
    }
    output::print(&table)
}

fn row(session: &ManagedSession, resource: Resource) -> Vec<String> {
    let of = |usage: Usage| usage.of(resource);
    let (used, reserved, allotted) = (of(session.usage), of(session.reserved), of(session.allotted));
    let limit = view::limit(session, resource);
    let left = limit.map(|_| session.account().left(resource));
    let none = || "no limit".to_owned();
    vec![
        resource.code().replace('_', " ").replace("cost micros", "cost"),
        amount(resource, used),
        amount(resource, reserved),
        amount(resource, allotted),
        limit.map_or_else(none, |limit| amount(resource, limit)),
        left.map_or_else(|| "-".into(), |left| amount(resource, left)),
    ]
}
