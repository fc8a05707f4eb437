//! The environment of a session's programs: an allow-list, our own variables, and what the user names.
/// The variable that every process of a run carries: by it orphans are found.
pub const RUN_ID_VARIABLE: &str = "ROOMETTE_RUN_ID";
