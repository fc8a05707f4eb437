//! The sandbox as a user meets it: through `roomette run`, judged from outside.

mod aftermath;
mod attempts;
mod endings;
mod escape;
mod ground;
mod levels;
mod limits;
mod listeners;
mod misled;
mod names;
mod network;
mod refused;
mod work;
mod workspace;
