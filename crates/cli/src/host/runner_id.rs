//! This installation's runner id: minted once, kept on disk.

use std::fs;
use std::io::{self, Write as _};

use camino::Utf8Path;
use session_core::{Env, RunnerId};
use session_runner::private;

use crate::failure::{Failure, Kind, Outcome};

/// The id on disk, or a new one; the caller holds the host lock.
pub fn load_or_make(path: &Utf8Path, env: &Env) -> Outcome<RunnerId> {
    let failed = |error: &(dyn std::error::Error + 'static), what: &str| {
        Failure::caused(Kind::Error, format!("the runner id in {path} cannot be {what}"), error)
    };
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|error| {
            failed(&error, "understood")
                .hint("restore the file; with another id the sessions lose their machine")
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = env.runner_id();
            write(path, &id.to_string()).map_err(|error| failed(&error, "written"))?;
            Ok(id)
        }
        Err(error) => Err(failed(&error, "read")),
    }
}

/// The id on disk, if there is one.
pub fn load(path: &Utf8Path) -> Outcome<Option<RunnerId>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Failure::caused(Kind::Error, format!("the runner id in {path} cannot be read"), &error))
        }
    }
}

fn write(path: &Utf8Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    writeln!(file, "{text}")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    private::sync_directory(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("runner.id");
        let env = Env::system();
        let id = load_or_make(&path, &env).unwrap();
        assert_eq!(load_or_make(&path, &env).unwrap(), id);
        fs::write(&path, "garbage").unwrap();
        assert!(load_or_make(&path, &env).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "garbage");
    }
}
