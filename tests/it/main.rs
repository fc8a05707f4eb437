//! One test binary for the whole workspace: what it is made of, and what it does as a whole.

#![forbid(unsafe_code)]

#[cfg(test)]
mod agents;
mod architecture;
#[cfg(test)]
mod bridge;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod family;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod http;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod input;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod records;
#[cfg(test)]
mod run;
#[cfg(test)]
mod sandbox;
#[cfg(test)]
mod scribe;
#[cfg(test)]
mod storm;
mod tidy;
