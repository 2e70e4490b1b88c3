# List the recipes.
default:
    @just --list

# Everything that the gate checks.
verify:
    scripts/test

# Tests alone.
test *ARGS:
    cargo nextest run --workspace {{ARGS}}

# Format and lint.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# Write the generated files anew: the JSON Schema, the reference page, the pictures.
gen:
    scripts/gen

# Benchmarks; compare ratios of one run.
bench *ARGS:
    cargo bench -p steprail-core --bench definitions -- --noplot {{ARGS}}

# Fuzz one target (parser, template, condition, jsonpath) for some seconds.
fuzz TARGET SECONDS="60":
    scripts/fuzz {{TARGET}} {{SECONDS}}

# Accept changed snapshots after looking at them.
accept:
    INSTA_UPDATE=always cargo nextest run --workspace
