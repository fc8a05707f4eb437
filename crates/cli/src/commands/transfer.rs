//! `roomette export` and `roomette import`, also of a legacy coordinator's database.

use std::fs;
use std::io::{self, Read as _};

use camino::Utf8Path;
use session_core::SessionRef;
use session_core::ports::SessionStore as _;

use crate::args::ImportArgs;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Link;
use crate::host::protocol::{LINE_MAX, LegacySession, LegacyWire, Reply, Request};
use crate::{environment, output, select, transfer};

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
pub async fn import(context: &Context, args: ImportArgs) -> Outcome<()> {
    let ImportArgs { file, legacy, source, hostname, agent, dry_run } = args;
    if let Some(file) = legacy {
        let file = file.canonicalize_utf8().map_err(|error| {
            Failure::caused(Kind::Usage, format!("the database {file} cannot be read"), &error)
        })?;
        let base_env = environment::base(context, &[])?.given(false);
        let wire = LegacyWire { file, source, hostname, executor: agent, base_env, dry_run };
        return import_legacy(context, wire).await;
    }
    let text = read(&file.unwrap_or_else(|| "-".into()))?;
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

/// Makes sessions of those of a legacy coordinator's database, and says what became of each.
async fn import_legacy(context: &Context, wire: LegacyWire) -> Outcome<()> {
    let dry_run = wire.dry_run;
    let mut link = Link::attach(context, "import").await?;
    let reply = link.ask(Request::ImportLegacy(wire)).await;
    link.close().await;
    let Reply::LegacyImported(sessions) = reply? else { return Err(Reply::unexpected()) };
    if context.json {
        sessions.iter().try_for_each(output::json)?;
    } else {
        for session in &sessions {
            legacy_line(session, dry_run)?;
        }
    }
    let refused = sessions.iter().filter(|session| session.reason.is_some()).count();
    if refused > 0 {
        let message = format!("{refused} of {} sessions cannot be taken", sessions.len());
        return Err(Failure::new(Kind::Error, message)
            .hint("the others were; what is mended there, the next import takes"));
    }
    Ok(())
}

fn legacy_line(session: &LegacySession, dry_run: bool) -> Outcome<()> {
    let name = output::harmless(session.name.as_deref().unwrap_or(&session.executor_session_id), 60);
    let told = match (&session.reason, session.session, session.result.as_str()) {
        (Some(reason), _, _) => format!("refused: {}", output::harmless(reason, 200)),
        (None, Some(id), "known") => format!("{id}  there already"),
        // The ids come with the first import.
        (None, _, _) if dry_run => "would be imported".into(),
        (None, Some(id), _) => id.to_string(),
        (None, None, result) => result.to_owned(),
    };
    output::line(&format!("{name}  {told}"))?;
    for note in &session.notes {
        output::say(&format!("{name}: {}", output::harmless(note, 300)));
    }
    Ok(())
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
