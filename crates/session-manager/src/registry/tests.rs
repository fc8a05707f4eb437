//! The registry against what it promises.
