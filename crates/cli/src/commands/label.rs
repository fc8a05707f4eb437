//! `roomette label`.

use crate::args::LabelArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::host::link::Link;
use crate::host::protocol::Request;
use crate::select;

/// Gives a session another label.
pub async fn execute(context: &Context, args: LabelArgs) -> Outcome<()> {
    args.label.as_deref().map(select::label).transpose()?;
    let sessions = select::several(context, &[args.session]).await?;
    let mut link = Link::attach(context, "label").await?;
    for session in sessions {
        link.ask(Request::Label { session, label: args.label.clone() }).await?;
    }
    link.close().await;
    Ok(())
}
