//! Test doubles and the conformance suite of the ports (feature `testing`).
