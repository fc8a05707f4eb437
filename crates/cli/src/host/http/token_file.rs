//! A token in a file: for services that are set up by files, and for tests.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;
use session_core::token::Secret;
use session_runner::private;

use crate::failure::{Failure, Kind, Outcome};
use crate::host::operations::Operations;

/// No token is longer.
const BYTES_MAX: u64 = 1_024;

/// Lets in whoever shows the token that stands in the file; in lists it bears this name. A file that is not there is made, with a fresh one.
pub(in crate::host) async fn admit(operations: &Operations, path: &Utf8Path, name: &str) -> Outcome<()> {
    let failed = |what: &str, error: &io::Error| {
        Failure::caused(Kind::Error, format!("the token file {path} cannot be {what}"), error)
    };
    let secret = if let Some(text) = read(path).map_err(|error| failed("read", &error))? {
        text.trim().parse().map_err(|error| {
            Failure::caused(Kind::Usage, format!("the token file {path} holds no token"), &error)
                .hint("remove it to have one made")
        })?
    } else {
        let secret = Secret::new(operations.context().env.secret());
        write(path, &secret).map_err(|error| failed("made", &error))?;
        secret
    };
    let token = operations.admit(&secret, name).await?;
    if token.is_valid(operations.context().env.now()) {
        return Ok(());
    }
    let message =
        format!("the token in {path} counts no more: {} was revoked, or its time is over", token.id);
    Err(Failure::new(Kind::Denied, message).hint("remove the file to have a fresh one made"))
}

fn read(path: &Utf8Path) -> io::Result<Option<String>> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if found.mode() & 0o077 != 0 {
        let why =
            "others may read or change it: take that from them (chmod 600), and have a fresh token made";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if !found.is_file() || found.len() > BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is no file with a token and nothing else",
        ));
    }
    fs::read_to_string(path).map(Some)
}

fn write(path: &Utf8Path, secret: &Secret) -> io::Result<()> {
    let mut file = private::options().write(true).create_new(true).open(path)?;
    writeln!(file, "{}", secret.reveal())?;
    file.sync_all()
}
