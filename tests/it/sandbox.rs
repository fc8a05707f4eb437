//! The sandbox as a user meets it: through `roomette run`, judged from outside.

mod attempts;
mod endings;
mod escape;
mod ground;
mod levels;
mod listeners;
mod refused;
