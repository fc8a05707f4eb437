//! The HTTP API as its callers meet it: every route over the store in memory, and the server on a real socket.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]

mod access;
mod approvals;
mod bad_input;
mod events;
mod goldens;
mod purses;
mod reports;
mod runners;
mod runs;
mod sessions;
mod sockets;
mod streams;
mod tokens;
mod tools;
mod world;
