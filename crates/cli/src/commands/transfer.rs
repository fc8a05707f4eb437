//! `roomette export` and `roomette import`.

use std::fs;
use std::io::{self, Read as _};

use camino::Utf8Path;
use session_core::SessionRef;
use session_core::ports::SessionStore as _;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Link;
use crate::host::protocol::{LINE_MAX, Reply, Request};
use crate::{output, select, transfer};

/// Writes a session and its event log to stdout.
pub async fn export(context: &Context, text: &str) -> Outcome<()> {
    text.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(text)) };
    let id = select::one(&store, text).await?;
    let Some(session) = store.session(id).await? else { return Err(select::unknown(text)) };
    let mut out = io::BufWriter::new(io::stdout());
    transfer::export(&store, &session, &mut out, context.env.now()).await?;
    store.close().await;
    io::Write::flush(&mut out)
        .map_err(|error| Failure::caused(Kind::Error, "the export cannot be written", &error))
}

/// Makes a session of an export, and prints its id.
pub async fn import(context: &Context, file: &Utf8Path) -> Outcome<()> {
    let text = read(file)?;
    let lines = text.lines().map(ToOwned::to_owned).collect();
    let mut link = Link::attach(context, "import").await?;
    let reply = link.ask(Request::Import { lines }).await;
    link.close().await;
    let Reply::Imported(id) = reply? else { return Err(Reply::unexpected()) };
    if context.json {
        output::json(&serde_json::json!({ "session": id }))
    } else {
        output::line(&id.to_string())
    }
}

fn read(file: &Utf8Path) -> Outcome<String> {
    let failed =
        |error: io::Error| Failure::caused(Kind::Usage, format!("the export {file} cannot be read"), &error);
    // The whole import is one transaction and one request, so it has a largest size.
    let longest = LINE_MAX as u64 / 2;
    let mut text = String::new();
    let read = if file == "-" {
        io::stdin().take(longest + 1).read_to_string(&mut text)
    } else {
        fs::File::open(file).map_err(failed)?.take(longest + 1).read_to_string(&mut text)
    };
    if read.map_err(failed)? as u64 > longest {
        return Err(Failure::usage(format!("the export {file} is larger than {longest} bytes")));
    }
    Ok(text)
}
