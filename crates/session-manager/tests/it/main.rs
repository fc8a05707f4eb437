//! The manager of sessions against engines, factories and sinks that behave badly, under a clock that is set by hand.

#![forbid(unsafe_code)]

mod sweeping;
mod world;
