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
    let mut context = with_room(context, Some(&wish));
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

/// The bridge that the settings ask for, of a host that serves.
pub(super) fn configured(context: &Context) -> Outcome<Option<Wish>> {
    let settings = &context.config.bridge;
    if settings.config.as_str().is_empty() {
        return Ok(None);
    }
    let grounds = Grounds {
        scope: bridge::directories("bridge.sandbox_scope", &settings.sandbox_scope)?,
        allowed: bridge::directories("bridge.allow_root", &settings.allow_root)?,
        allow_read: bridge::directories("bridge.allow_read", &settings.allow_read)?,
        hidden: Vec::new(),
        level: None,
        net: None,
    };
    if grounds.scope.is_empty() && !settings.session_isolation {
        return Err(Failure::usage("bridge.sandbox_scope is empty, and all clients share one server")
            .hint("name the server's directory, or set bridge.session_isolation = true"));
    }
    let servers = bridge::read(&settings.config, &[])?;
    Ok(Some(Wish {
        secrets: secrets(&servers, Some(&settings.config)),
        servers,
        listen: settings.listen.clone(),
        isolation: settings.session_isolation,
        grounds,
        token_file: Some(context.paths.data.join(TOKEN_FILE)),
        hosts: Vec::new(),
        origins: Vec::new(),
        url: None,
        issuers: Vec::new(),
        sessions: settings.sessions,
        restart: Restart::OnCrash,
        check: false,
    }))
}

/// Every server at work is a run of a session that is active: they take no places from the other runs.
pub(super) fn with_room(context: &Context, wish: Option<&Wish>) -> Context {
    let mut context = context.clone();
    if let Some(wish) = wish {
        widen(&mut context.config, wish.sessions);
    }
    context
}

fn widen(config: &mut Config, sessions: u32) {
    let Config { host, limits, .. } = config;
    host.runs_at_once += sessions;
    limits.active_sessions += sessions;
    limits.active_per_principal = limits.active_per_principal.map(|own| own + sessions);
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
    if args.no_auth && args.session_isolation && args.allow_root.is_empty() && scope.is_empty() && !args.check
    {
        // Every program on this machine reaches it, also one that is confined and may use the network.
        let why = "with --no-auth, anybody on this machine could have a server in any directory of this user";
        return Err(Failure::usage(why).hint(
            "name with --allow-root or --sandbox-scope what is open to everybody, or leave out --no-auth",
        ));
    }
    let token_file = args.token_file.clone().unwrap_or_else(|| context.paths.data.join(TOKEN_FILE));
    let allowed = if args.no_auth && args.allow_root.is_empty() { &scope } else { &args.allow_root };
    let servers = servers(context, args)?;
    Ok(Wish {
        secrets: secrets(&servers, args.config.as_ref()),
        servers,
        listen: args.listen.clone(),
        isolation: args.session_isolation,
        grounds: Grounds {
            scope: bridge::directories("--sandbox-scope", &scope)?,
            allowed: bridge::directories("--allow-root", allowed)?,
            allow_read: bridge::directories("--allow-read", &args.allow_read)?,
            hidden: Vec::new(),
            level: args.sandbox,
            net: args.net,
        },
        token_file: (!args.no_auth).then_some(token_file),
        hosts: args.host.clone(),
        origins: args.origin.clone(),
        url: args.url.as_deref().map(|url| origin("--url", url)).transpose()?,
        issuers: args.issuer.iter().map(|url| issuer(url)).collect::<Outcome<_>>()?,
        sessions: args.sessions,
        restart: match args.restart {
            args::bridge::Restart::Never => Restart::Never,
            args::bridge::Restart::OnCrash => Restart::OnCrash,
        },
        check: args.check,
    })
}

/// The file of these servers, where it may hold what only one of them is to know: variables and arguments of theirs, or which
/// others there are.
fn secrets(servers: &Servers, file: Option<&Utf8PathBuf>) -> Option<Utf8PathBuf> {
    let mut all = servers.values();
    let has_own = servers.len() > 1 || all.any(|server| !server.env.is_empty() || server.argv.len() > 1);
    file.filter(|_| has_own).cloned()
}

/// A scheme, a host and perhaps a port: what stands before every path here.
fn origin(flag: &str, url: &str) -> Outcome<String> {
    let url = url.strip_suffix('/').unwrap_or(url);
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-.:[]".contains(character);
    if host.is_empty() || !host.chars().all(is_plain) {
        return Err(Failure::usage(format!("{flag} {url:?}: it is no URL of a host"))
            .hint("give a scheme and a host, such as https://example.com"));
    }
    Ok(url.to_owned())
}

fn issuer(url: &str) -> Outcome<String> {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#?".contains(&byte));
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match host.filter(|host| is_plain && !host.is_empty() && !host.starts_with('/')) {
        Some(_) => Ok(url.to_owned()),
        None => Err(Failure::usage(format!("--issuer {url:?}: it is no URL of an authorization server"))
            .hint("give its URL without query and fragment, such as https://login.example.com")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_owner_may_have_is_had_beside_servers() {
        let mut config = Config::default();
        widen(&mut config, 4);
        assert_eq!(config.limits.active_per_principal, None);
        config.limits.active_per_principal = Some(3);
        widen(&mut config, 4);
        assert_eq!(config.limits.active_per_principal, Some(7));
    }

    #[test]
    fn a_file_of_servers_is_hidden_where_it_says_what_only_one_of_them_is_to_know() {
        let file = Utf8PathBuf::from("servers.json");
        let one = |name: &str, argv: &[&str], env: &[(&str, &str)]| {
            let own = |of: &&str| (*of).to_owned();
            let env = env.iter().map(|(name, value)| (own(name), own(value))).collect();
            bridge::one(name, argv.iter().map(own).collect(), env).unwrap()
        };
        let mut two = one("one", &["a"], &[]);
        assert_eq!(secrets(&two, Some(&file)), None, "there is nothing in it");
        two.extend(one("two", &["b"], &[]));
        for servers in [two, one("s", &["a", "--api-key=k"], &[]), one("s", &["a"], &[("KEY", "k")])] {
            assert_eq!(secrets(&servers, Some(&file)).as_ref(), Some(&file));
            assert_eq!(secrets(&servers, None), None, "they are of the command line");
        }
    }

    #[test]
    fn urls_are_whole() {
        assert_eq!(origin("--url", "https://example.com/").unwrap(), "https://example.com");
        assert_eq!(origin("--url", "http://[::1]:8808").unwrap(), "http://[::1]:8808");
        for wrong in ["", "example.com", "https://", "https://a/b", "https://a b", "ftp://a", "https://a?x"] {
            assert!(origin("--url", wrong).is_err(), "{wrong}");
        }
        assert_eq!(issuer("https://login.example.com/tenant").unwrap(), "https://login.example.com/tenant");
        for wrong in ["", "login", "https://", "https:///x", "https://a b", "https://a?x", "https://a#x"] {
            assert!(issuer(wrong).is_err(), "{wrong}");
        }
    }
}
