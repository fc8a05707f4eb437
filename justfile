# Aliases only: the work is in scripts/ and in cargo itself.

# every check
test *words:
    scripts/test {{words}}

# lints of the whole workspace, warnings as errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# format everything
format:
    cargo fmt --all

# licences, bans and layers
deny:
    cargo deny --locked check bans licenses sources

# accept changed snapshots after reading them
snapshots:
    cargo insta review
