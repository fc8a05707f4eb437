//! Where a person's tools lie, when that is not where the system keeps its own: so that what runs outside runs inside.
//!
//! They are found once, when a session is made, from the `PATH` that it is given; they can be read and run, never changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};

/// Where the system keeps programs: every session has these.
const OF_SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Managers of toolchains: where each puts its programs, where it keeps what they need, and the variable by which they
/// find that when `HOME` is another one. All below the home directory.
const MANAGERS: [(&str, &str, &str); 6] = [
    (".cargo/bin", ".rustup", "RUSTUP_HOME"),
    (".pyenv/shims", ".pyenv", "PYENV_ROOT"),
    (".rbenv/shims", ".rbenv", "RBENV_ROOT"),
    (".asdf/shims", ".asdf", "ASDF_DATA_DIR"),
    (".volta/bin", ".volta", "VOLTA_HOME"),
    (".local/share/mise/shims", ".local/share/mise", "MISE_DATA_DIR"),
];

/// How many directories are shown for the sake of `PATH`, in its order: what comes first is found first.
const ROOTS_MAX: usize = 12;

/// Directories that hold more than programs: of them only the one with the programs is shown.
const HOLDING_MORE: [&str; 2] = [".cargo", ".local"];

/// What a session needs to run a person's tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toolchains {
    /// Real paths of directories to read and to run programs from.
    pub roots: BTreeSet<Utf8PathBuf>,
    /// Variables by which the tools find them.
    pub variables: BTreeMap<String, String>,
}

/// Finds them by the entries of `path`. `home` is the person's. `fits` says which real paths a session may be shown.
#[must_use]
pub fn toolchains(path: &str, home: Option<&Utf8Path>, fits: impl Fn(&Utf8Path) -> bool) -> Toolchains {
    let home = home.and_then(real);
    let mut found = Toolchains::default();
    for entry in path.split(':').map(Utf8Path::new).filter(|entry| entry.is_absolute()) {
        if found.roots.len() >= ROOTS_MAX {
            break;
        }
        let Some(entry) = real(entry) else { continue };
        if OF_SYSTEM.iter().any(|system| entry.starts_with(system)) {
            continue;
        }
        found.roots.extend(Some(root_of(&entry, home.as_deref())).filter(|root| fits(root)));
        let Some(home) = &home else { continue };
        for (programs, needs, variable) in MANAGERS {
            let needs = home.join(needs);
            if entry == home.join(programs) && fits(&needs) && needs.is_dir() {
                found.variables.insert(variable.into(), needs.to_string());
                found.roots.insert(needs);
            }
        }
    }
    // One that lies in another adds nothing.
    let all = found.roots.clone();
    found.roots.retain(|root| !all.iter().any(|other| other != root && root.starts_with(other)));
    found
}

/// The directory to show for an entry: the one above it where that holds a toolchain alone (`…/node/bin` needs
/// `…/node/lib`), or itself.
fn root_of(entry: &Utf8Path, home: Option<&Utf8Path>) -> Utf8PathBuf {
    let above = entry.parent().filter(|_| matches!(entry.file_name(), Some("bin" | "sbin" | "shims")));
    let alone = above.filter(|above| {
        let deep = above.components().count() > 2;
        let in_home = home.is_some_and(|home| home.starts_with(above));
        // Whoever's it is: a service, or `sudo`, has another home than the one that `PATH` leads into.
        deep && !in_home && !above.file_name().is_some_and(|name| HOLDING_MORE.contains(&name))
    });
    alone.unwrap_or(entry).to_owned()
}

fn real(path: &Utf8Path) -> Option<Utf8PathBuf> {
    let real = Utf8PathBuf::from_path_buf(fs::canonicalize(path).ok()?).ok()?;
    real.is_dir().then_some(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_s_tools_are_found_and_nothing_else_of_the_home() {
        let directory = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        for name in [".cargo/bin", ".rustup/toolchains", ".local/bin", ".nvm/node/v20/bin", "bin", ".ssh"] {
            fs::create_dir_all(home.join(name)).unwrap();
        }
        let path = format!(
            "{home}/.cargo/bin:{home}/.local/bin:{home}/.nvm/node/v20/bin:{home}/bin:{home}/gone:relative:/usr/bin::/bin"
        );
        let found = toolchains(&path, Some(&home), |_| true);
        let roots: Vec<_> = [".cargo/bin", ".local/bin", ".nvm/node/v20", ".rustup", "bin"]
            .map(|name| home.join(name))
            .into();
        assert_eq!(found.roots.into_iter().collect::<Vec<_>>(), roots);
        assert_eq!(found.variables, BTreeMap::from([("RUSTUP_HOME".into(), format!("{home}/.rustup"))]));
        let none = toolchains(&path, Some(&home), |root| !root.starts_with(&home));
        assert_eq!(none, Toolchains::default());
    }

    #[test]
    fn a_home_is_never_shown_whole() {
        let directory = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        fs::create_dir(home.join("bin")).unwrap();
        fs::create_dir_all(home.join(".cargo/bin")).unwrap();
        for caller in [Some(home.as_path()), Some(Utf8Path::new("/nowhere")), None] {
            let found = toolchains(&format!("{home}/.cargo/bin"), caller, |_| true);
            assert_eq!(found.roots, BTreeSet::from([home.join(".cargo/bin")]), "{caller:?}");
        }
        let found = toolchains(&format!("{home}/bin"), Some(&home), |_| true);
        assert_eq!(found.roots, BTreeSet::from([home.join("bin")]));
    }
}
