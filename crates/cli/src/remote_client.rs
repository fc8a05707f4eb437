//! How commands ask a coordinator on another machine.

use camino::Utf8Path;
use session_api::client::{Client, ClientError};

use crate::failure::{Failure, Kind, Outcome};

/// The longest token file in bytes.
const TOKEN_MAX: usize = 4_096;

/// A failure of the client as what a person is told.
pub fn failure(error: &ClientError) -> Failure {
    let kind = match error {
        ClientError::Address { .. } | ClientError::Token => Kind::Usage,
        ClientError::Unreachable(_) => Kind::Unreachable,
        ClientError::Refused(problem) => match problem.status {
            401 | 403 => Kind::Denied,
            404 => Kind::NotFound,
            409 => Kind::Conflict,
            422 => Kind::Usage,
            _ => Kind::Error,
        },
        ClientError::Setup(_) | ClientError::Garbled(_) => Kind::Error,
    };
    Failure::of(kind, error)
}

/// A client of this coordinator, with the token in this file.
pub fn client(server: &str, token_file: Option<&Utf8Path>) -> Outcome<Client> {
    let token = token_file.map(token).transpose()?;
    Client::new(server, token.as_deref()).map_err(|error| failure(&error))
}

fn token(path: &Utf8Path) -> Outcome<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::caused(Kind::Usage, format!("the token in {path} cannot be read"), &error)
    })?;
    if text.len() > TOKEN_MAX || text.trim().is_empty() {
        return Err(Failure::usage(format!("{path} holds no token")));
    }
    Ok(text.trim().to_owned())
}
