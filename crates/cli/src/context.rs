//! What every command needs: where things lie, the settings, the outside world.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use camino::{Utf8Path, Utf8PathBuf};
use session_core::Env;
use session_core::names::Principal;
use session_runner::Launcher;
use session_runner::private;
use session_runner::workspace::{Git, HostEnvironment, Layout};
use session_store::{Durability, OpenError, OpenOptions, SqlStore, StoreUrl};

use crate::config::{self, Config, Layer, Sources, Synchronous, Trust};
use crate::failure::{Failure, Kind, Outcome};
use crate::paths::Paths;
use crate::system;

/// What every command needs.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where things lie.
    pub paths: Paths,
    /// The settings.
    pub config: Config,
    /// Where each setting came from.
    pub origins: BTreeMap<String, Layer>,
    /// Time and ids.
    pub env: Env,
    /// Whether output is JSON.
    pub json: bool,
    /// The caller's environment, as far as it is text.
    pub environment: Vec<(String, String)>,
}

/// This program as the launcher of sandboxes: one for all, so that what the machine offers is found out once.
pub fn launcher() -> Arc<Launcher> {
    static LAUNCHER: LazyLock<Arc<Launcher>> =
        LazyLock::new(|| Arc::new(Launcher::new("/proc/self/exe", vec![crate::LAUNCHER.into()])));
    Arc::clone(&LAUNCHER)
}

impl Context {
    /// From the flags and the environment of this process.
    #[expect(clippy::disallowed_methods, reason = "the composition root reads the environment, once")]
    pub fn new(home: Option<&Utf8Path>, store: Option<&str>, json: bool) -> Outcome<Self> {
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => environment.push((name, value)),
                (Ok(name), Err(_)) if name.starts_with("ROOMETTE_") => {
                    return Err(Failure::usage(format!("${name} is not UTF-8")));
                }
                // Nothing of ours: it is not passed on.
                (Ok(_) | Err(_), _) => {}
            }
        }
        let variable =
            |name: &str| environment.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
        let paths = Paths::find(home, variable)?;
        let project =
            current_directory().ok().map(|directory| (directory.join(PROJECT_FILE), Trust::Foreign));
        let sources = Sources {
            files: [(paths.config.clone(), Trust::Own)].into_iter().chain(project).collect(),
            environment: environment.clone(),
            flags: store.iter().map(|&url| ("store", "store.url", url.into())).collect(),
        };
        let (config, origins) = config::load(&sources)?;
        Ok(Self { paths, config, origins, env: Env::system(), json, environment })
    }

    /// The directories of sessions.
    pub fn layout(&self) -> Layout {
        Layout::new(&self.paths.data)
    }

    /// git, with the allowed part of the caller's environment, and a sandbox for trees that sessions have left.
    pub fn git(&self) -> Git {
        Git::new(&self.host_environment()).with_launcher(launcher())
    }

    /// The allowed part of the caller's environment.
    pub fn host_environment(&self) -> HostEnvironment {
        HostEnvironment::new(self.environment.iter().cloned())
    }

    /// Where sessions, runs and events are kept.
    pub fn store_url(&self) -> Outcome<StoreUrl> {
        let url = match self.config.store.url.as_str() {
            "" => format!("sqlite:{}", self.paths.database()),
            url => url.into(),
        };
        url.parse().map_err(|error| Failure::of(Kind::Usage, &error))
    }

    /// The store, for reading and writing; only the holder of the host lock opens it so.
    pub async fn open_store(&self) -> Outcome<SqlStore> {
        let durability = match self.config.store.synchronous {
            Synchronous::Full => Durability::Full,
            Synchronous::Normal => Durability::Normal,
        };
        let options = OpenOptions::default().durability(durability);
        let url = self.store_url()?;
        if let StoreUrl::Sqlite(path) = &url {
            keep_private(path);
        }
        Ok(SqlStore::open(&url, options).await?)
    }

    /// The store, for reading beside a living host; `None` when nothing was ever stored.
    pub async fn read_store(&self) -> Outcome<Option<SqlStore>> {
        let url = self.store_url()?;
        match SqlStore::open_reader(&url).await {
            Ok(store) => Ok(Some(store)),
            Err(OpenError::NoSchema(_) | OpenError::FileMissing(_) | OpenError::DirectoryMissing(_)) => {
                Ok(None)
            }
            Err(error @ OpenError::SchemaOlder { .. }) => Err(Failure::of(Kind::Conflict, &error)
                .hint("`roomette recover` brings it up to date, when no older host holds it any more")),
            Err(error) => Err(unreadable(&url, error.into())),
        }
    }

    /// Whose sessions this process makes: the local user.
    pub fn principal(&self) -> Outcome<Principal> {
        let named = system::USER_VARIABLES.into_iter().find_map(|name| self.variable(name));
        let name = named.filter(|name| !name.is_empty()).map_or_else(system::nameless_user, Into::into);
        Principal::new(&name).map_err(|error| Failure::of(Kind::Usage, &error))
    }

    /// A variable of the caller's environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Reading, too, needs a directory that can be written: SQLite keeps what readers and writer share beside the file.
fn unreadable(url: &StoreUrl, failure: Failure) -> Failure {
    let StoreUrl::Sqlite(path) = url else { return failure };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory.map(|parent| (parent, system::may_write(parent))) {
        Some((parent, Err(error))) => failure.hint(format!(
            "{} cannot be written ({error}), and SQLite needs that even to read; a copy of the directory can be read",
            parent.display()
        )),
        Some((_, Ok(()))) | None => failure,
    }
}

/// Makes a database that only its owner can read: it holds what tasks were given, keys among it. SQLite gives the
/// files beside it the same mode.
fn keep_private(path: &std::path::Path) {
    let opened = private::options().read(true).append(true).create(true).open(path);
    let kept = opened.and_then(|file| private::close_file(&file));
    // What is wrong with the path is said, and better, when the store is opened.
    if let Err(error) = kept {
        tracing::debug!(path = %path.display(), %error, "the database could not be made private");
    }
}

/// A project's own settings, in its directory.
const PROJECT_FILE: &str = ".roomette.toml";

/// The directory that the command was called in.
pub fn current_directory() -> Outcome<Utf8PathBuf> {
    let directory = std::env::current_dir().map_err(|error| {
        Failure::caused(Kind::Usage, "the current directory is gone or out of reach", &error)
    })?;
    Utf8PathBuf::from_path_buf(directory)
        .map_err(|path| Failure::usage(format!("the current directory {} is not UTF-8", path.display())))
}
