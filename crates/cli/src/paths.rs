//! Where things lie: the XDG directories, or everything under `ROOMETTE_HOME`.

use std::{fs, io};

use camino::{Utf8Path, Utf8PathBuf};
use session_runner::private;

use crate::failure::{Failure, Kind, Outcome};
use crate::system::HOME_VARIABLE;

/// Where things lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Sessions, output, the database and the host's socket.
    pub data: Utf8PathBuf,
    /// The user's settings.
    pub config: Utf8PathBuf,
}

/// The path with the links resolved of whatever is there of it: a sandbox knows real paths alone.
fn real(path: Utf8PathBuf) -> Utf8PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize_utf8().ok()?)));
    match there {
        Some((above, real)) => match path.strip_prefix(above) {
            Ok(rest) if !rest.as_str().is_empty() => real.join(rest),
            Ok(_) | Err(_) => real,
        },
        None => path,
    }
}

impl Paths {
    /// From the flag and the environment; nothing is made yet.
    pub fn find(home: Option<&Utf8Path>, environment: impl Fn(&str) -> Option<String>) -> Outcome<Self> {
        let variable =
            |name: &str| environment(name).filter(|value| !value.is_empty()).map(Utf8PathBuf::from);
        if let Some(home) = home.map(Into::into).or_else(|| variable("ROOMETTE_HOME")) {
            let data = real(absolute(&home)?);
            return Ok(Self { config: data.join("config.toml"), data });
        }
        // The XDG rule: a relative path is ignored.
        let xdg = |name: &str, beneath: &str| {
            variable(name)
                .filter(|path| path.is_absolute())
                .or_else(|| Some(variable(HOME_VARIABLE)?.join(beneath)))
                .map(|path| path.join("roomette"))
                .ok_or_else(|| {
                    Failure::usage(format!(
                        "neither ROOMETTE_HOME, {name} nor {HOME_VARIABLE} says where the data lie"
                    ))
                })
        };
        Ok(Self {
            data: real(xdg("XDG_DATA_HOME", ".local/share")?),
            config: xdg("XDG_CONFIG_HOME", ".config")?.join("config.toml"),
        })
    }

    /// The database, when no other store is set.
    pub fn database(&self) -> Utf8PathBuf {
        self.data.join("roomette.db")
    }

    /// Held by the host for as long as it lives.
    pub fn lock(&self) -> Utf8PathBuf {
        self.data.join("host.lock")
    }

    /// This installation's runner id.
    pub fn runner_id(&self) -> Utf8PathBuf {
        self.data.join("runner.id")
    }

    /// Makes the data directory, for its owner alone.
    pub fn make_data(&self) -> Outcome<()> {
        let failed = |error: io::Error| {
            let message = format!("the data directory {} cannot be made", self.data);
            Failure::caused(Kind::Error, message, &error)
                .hint("set ROOMETTE_HOME to a directory that you can write")
        };
        match fs::metadata(&self.data) {
            Ok(found) if found.is_dir() => self.check_inside(),
            Ok(_) => Err(Failure::usage(format!("the data directory {} is a file", self.data))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private::make_directory(&self.data).map_err(failed)?;
                // The umask may have taken more than was asked for; it never gives more.
                private::close_directory(&self.data).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// What must be directories inside is not something else.
    fn check_inside(&self) -> Outcome<()> {
        for name in ["sessions", "output"] {
            let path = self.data.join(name);
            if fs::metadata(&path).is_ok_and(|found| !found.is_dir()) {
                return Err(Failure::usage(format!("{path} is a file, and must be a directory"))
                    .hint("move it away, or set ROOMETTE_HOME to another directory"));
            }
        }
        Ok(())
    }
}

/// What belongs to a host that stays.
#[cfg(target_os = "linux")]
impl Paths {
    /// Held while a host is being started, so that starters take turns.
    pub fn start_lock(&self) -> Utf8PathBuf {
        self.data.join("host.start")
    }

    /// Where the host listens.
    pub fn socket(&self) -> Utf8PathBuf {
        self.data.join("host.sock")
    }

    /// What a host in the background has to say.
    pub fn host_log(&self) -> Utf8PathBuf {
        self.data.join("host.log")
    }
}

fn absolute(path: &Utf8Path) -> Outcome<Utf8PathBuf> {
    camino::absolute_utf8(path)
        .map_err(|error| Failure::caused(Kind::Usage, format!("{path} is not a usable path"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_overrides_and_xdg_applies() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into())
        };
        let paths = Paths::find(None, env(&[("HOME", "/h"), ("XDG_DATA_HOME", "relative")])).unwrap();
        assert_eq!(paths.data, "/h/.local/share/roomette");
        assert_eq!(paths.config, "/h/.config/roomette/config.toml");
        let paths = Paths::find(None, env(&[("HOME", "/h"), ("ROOMETTE_HOME", "/r")])).unwrap();
        assert_eq!((paths.data.as_str(), paths.config.as_str()), ("/r", "/r/config.toml"));
        let paths = Paths::find(Some("/flag".into()), env(&[("ROOMETTE_HOME", "/r")])).unwrap();
        assert_eq!(paths.data, "/flag");
        assert_eq!(Paths::find(None, env(&[])).unwrap_err().kind, Kind::Usage);
    }
}
