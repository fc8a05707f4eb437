//! Host and launcher on Linux: one file a layer.

mod capabilities;
mod filter;
mod host;
mod loopback;
mod mount_table;
mod mounts;
pub(crate) mod names;
mod namespaces;
mod outer;
mod relay;
mod resources;
pub(crate) mod rules;
mod seccomp;
mod self_test;
pub(crate) mod stages;
mod system;
mod system_calls;
pub(crate) mod trial;
mod wire;
