//! Where a client stands: who it is by its connection, what that says of it, and what its paths mean.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::Utf8Path;
use http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use session_core::identity::{RepoRoot, RepoRootError};
use session_core::token::Bearer;
use tokio::sync::Mutex;

use super::Surroundings;
use crate::context::Layer;
use crate::refused::{Code, Refused};

/// How long a client may take to tell its roots.
const ROOTS_TIME: Duration = Duration::from_secs(2);

/// What the paths of callers mean on this machine.
#[async_trait]
pub trait Places: Send + Sync {
    /// The directory that this path of this caller leads to, with every link resolved.
    async fn resolve(&self, bearer: &Bearer, path: &Utf8Path) -> Result<String, Refused>;
}

/// The file system of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Here;

#[async_trait]
impl Places for Here {
    async fn resolve(&self, _: &Bearer, path: &Utf8Path) -> Result<String, Refused> {
        let path = path.to_owned();
        let resolved = tokio::task::spawn_blocking(move || RepoRoot::resolve(&path)).await;
        let resolved = resolved.map_err(|error| Refused::internal(&error))?;
        resolved.map(|root| root.as_str().to_owned()).map_err(|error| {
            let reason = match &error {
                RepoRootError::Unresolved { path, source } if source.kind() == io::ErrorKind::NotFound => {
                    format!("{path} does not exist")
                }
                RepoRootError::Unresolved { path, source } => format!("{path} cannot be resolved: {source}"),
                RepoRootError::NotADirectory(_) | RepoRootError::Relative(_) => error.to_string(),
            };
            Refused::argument("repo_root", reason)
                .hint("name the directory of the repository that you work in")
        })
    }
}

/// The only root of a client.
#[derive(Debug, Clone, Default)]
enum Root {
    /// It was not asked yet.
    #[default]
    Unasked,
    /// There is none, or several.
    None,
    /// It has one.
    Only(Layer),
}

/// The front of a connection.
pub(super) struct Front {
    /// Who is at its other side, where that does not change from call to call.
    bearer: Option<Bearer>,
    environment: Option<Layer>,
    directory: Option<Layer>,
    /// What the client told of its roots, where it can be asked.
    root: Option<Mutex<Root>>,
    places: Arc<dyn Places>,
    pub(super) in_room: bool,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("environment", &self.environment).finish_non_exhaustive()
    }
}

impl Front {
    pub(super) fn of_stdio(surroundings: Surroundings) -> Self {
        let Surroundings { bearer, variables, directory, in_room } = surroundings;
        let variable =
            |name: &str| variables.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
        Self {
            bearer: Some(bearer),
            environment: Some(Layer::of_environment(variable)),
            directory: directory.map(|path| Layer::of_directory(path.into_string())),
            root: Some(Mutex::default()),
            places: Arc::new(Here),
            in_room,
        }
    }

    pub(super) fn of_http(places: Arc<dyn Places>) -> Self {
        Self { bearer: None, environment: None, directory: None, root: None, places, in_room: false }
    }

    /// Who calls.
    pub(super) fn bearer(&self, request: &RequestContext<RoleServer>) -> Result<Bearer, Refused> {
        let shown = || request.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Bearer>());
        self.bearer
            .as_ref()
            .or_else(shown)
            .cloned()
            .ok_or_else(|| Refused::new(Code::Forbidden, "nobody is known by this request"))
    }

    /// What the connection says of its client without being asked.
    pub(super) fn layers(&self, request: &RequestContext<RoleServer>) -> Vec<Layer> {
        let of_headers = request.extensions.get::<Parts>().map(|parts| {
            // A path is UTF-8, and seldom ASCII alone.
            let text = |name: &str| String::from_utf8(parts.headers.get(name)?.as_bytes().to_vec()).ok();
            Layer::of_headers(text)
        });
        of_headers.into_iter().chain(self.environment.clone()).collect()
    }

    /// Where the client works, as its roots or else its directory say.
    pub(super) async fn roots(&self, request: &RequestContext<RoleServer>) -> Vec<Layer> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut root = root.lock().await;
        if let Root::Unasked = *root {
            *root = only_root(request).await.map_or(Root::None, Root::Only);
        }
        let only = match &*root {
            Root::Only(layer) => Some(layer.clone()),
            Root::Unasked | Root::None => None,
        };
        only.into_iter().chain(self.directory.clone()).collect()
    }

    pub(super) async fn forget_roots(&self) {
        if let Some(root) = &self.root {
            *root.lock().await = Root::Unasked;
        }
    }

    pub(super) async fn resolve(&self, bearer: &Bearer, path: &str) -> Result<String, Refused> {
        self.places.resolve(bearer, Utf8Path::new(path)).await
    }
}

/// The client's root, if it has exactly one and tells it in time: of several none is where it works.
#[expect(
    deprecated,
    reason = "clients of the revisions with `initialize` say where they work by their roots"
)]
async fn only_root(request: &RequestContext<RoleServer>) -> Option<Layer> {
    let client = request.peer.peer_info()?;
    client.capabilities.roots.as_ref()?;
    let listed = tokio::time::timeout(ROOTS_TIME, request.peer.list_roots()).await.ok()?.ok()?;
    let [root] = listed.roots.as_slice() else { return None };
    path_of(&root.uri).map(Layer::of_root)
}

/// The path of a `file:` URI of this machine.
fn path_of(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') || path.contains(['?', '#']) {
        return None;
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after.get(2..)?;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_path_of_this_machine() {
        for (uri, path) in [
            ("file:///srv/a%20b", Some("/srv/a b")),
            ("file://localhost/srv/%C3%BC", Some("/srv/ü")),
            ("file://elsewhere/srv", None),
            ("file:///srv?x", None),
            ("file:///%zz", None),
            ("file:///%f", None),
            ("file:///%ff", None),
            ("https:///srv", None),
            ("/srv", None),
        ] {
            assert_eq!(path_of(uri).as_deref(), path, "{uri}");
        }
    }
}
