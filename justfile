# Aliases only: the work is in scripts/ and in cargo itself.

# every check
test *words:
    scripts/test {{words}}

# lints of the whole workspace, warnings as errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# what compiles on macOS and Windows, where no session can be started
portable *targets:
    scripts/portable {{targets}}

# format everything
format:
    cargo fmt --all

# licences, bans and layers
deny:
    cargo deny --locked check bans licenses sources

# mutation tests of what decides; wants `cargo install cargo-mutants`
mutants *words:
    PROPTEST_CASES=300 cargo mutants -p session-manager -p session-core -f 'crates/session-manager/src/registry*' -f 'crates/session-manager/src/registry/*' -f 'crates/session-manager/src/{eviction,options}.rs' -f 'crates/session-core/src/budget*' -f 'crates/session-core/src/budget/*' -f crates/session-core/src/state.rs --timeout 20 {{words}} -- --lib -- registry eviction options budget state

# accept changed snapshots after reading them
snapshots:
    cargo insta review
