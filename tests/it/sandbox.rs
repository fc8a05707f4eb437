//! The sandbox as a user meets it: through `roomette run`, judged from outside.

mod attempts;
mod escape;
mod ground;
mod listeners;
