//! One test binary for the whole workspace: what it is made of, and what it does as a whole.

#![forbid(unsafe_code)]

mod architecture;
mod crash;
mod identity;
mod input;
mod records;
mod run;
mod tidy;
