//! `roomette bridge`: stdio MCP servers over HTTP, each client session in a room of its own.

use camino::Utf8PathBuf;
use mcp_bridge::settings::Restart;

use crate::args::{self, BridgeArgs};
use crate::config::Config;
use crate::context::{Context, current_directory};
use crate::environment;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::bridge::{self, Grounds, Servers, Wish};
use crate::host::server::{self, Duties, Stay};
use crate::paths::Paths;

/// The token of a bridge, where nothing was said of it.
const TOKEN_FILE: &str = "bridge.token";

/// Serves until told to end.
pub async fn execute(context: &Context, args: &BridgeArgs) -> Outcome<()> {
    let wish = wish(context, args)?;
    let mut context = context.clone();
    // Every server at work is a run of a session that is active.
    let Config { host, limits, .. } = &mut context.config;
    host.runs_at_once = host.runs_at_once.max(args.sessions);
    limits.active_sessions = limits.active_sessions.max(args.sessions);
    if !args.check {
        return serve(&context, &wish).await;
    }
    // In a house of its own, of which nothing is left: another host may be at work meanwhile.
    let failed = |error: &std::io::Error| {
        Failure::caused(Kind::Error, "a directory to check in cannot be made", error)
    };
    let house = tempfile::tempdir().map_err(|error| failed(&error))?;
    let data = Utf8PathBuf::from_path_buf(house.path().to_owned())
        .map_err(|path| Failure::usage(format!("{} is not UTF-8", path.display())))?;
    let data = data.canonicalize_utf8().map_err(|error| failed(&error))?;
    context.paths = Paths { data, ..context.paths };
    context.config.store.url = String::new();
    serve(&context, &wish).await
}

async fn serve(context: &Context, wish: &Wish) -> Outcome<()> {
    let duties = Duties { api: None, bridge: Some(wish) };
    Box::pin(server::serve(context, Stay::UntilTold, duties, || Ok(()))).await
}

fn wish(context: &Context, args: &BridgeArgs) -> Outcome<Wish> {
    let mut scope = args.sandbox_scope.clone();
    if scope.is_empty() && !args.session_isolation && !args.check {
        scope.push(current_directory()?);
    }
    let token_file = args.token_file.clone().unwrap_or_else(|| context.paths.data.join(TOKEN_FILE));
    Ok(Wish {
        servers: servers(context, args)?,
        listen: args.listen.clone(),
        isolation: args.session_isolation,
        grounds: Grounds {
            scope: bridge::directories("--sandbox-scope", &scope)?,
            allowed: bridge::directories("--allow-root", &args.allow_root)?,
            allow_read: bridge::readable("--allow-read", &args.allow_read)?,
            level: args.sandbox,
            net: args.net,
        },
        token_file: (!args.no_auth).then_some(token_file),
        hosts: args.host.clone(),
        origins: args.origin.clone(),
        restart: match args.restart {
            args::bridge::Restart::Never => Restart::Never,
            args::bridge::Restart::OnCrash => Restart::OnCrash,
        },
        check: args.check,
    })
}

fn servers(context: &Context, args: &BridgeArgs) -> Outcome<Servers> {
    let env = environment::named(context, &args.env)?;
    if let Some(file) = &args.config {
        return bridge::read(file, &env);
    }
    let mut command = args.argv.clone();
    // Named by its path, it is that of the directory where it was given.
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = current_directory()?.join(&*program).into_string();
    }
    bridge::one(&args.name, command, env)
}
