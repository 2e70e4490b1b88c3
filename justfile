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

# Write the generated files anew: the JSON Schema, the reference pages, the pictures.
gen:
    scripts/gen

# Benchmarks of the engine, beside the machine's limits; compare ratios of one run.
bench *ARGS:
    cargo bench -p steprail-engine --bench engine -- {{ARGS}}

# What a step costs beside the MCP call that it makes.
bench-mcp:
    cargo bench -p steprail-mcp --bench calls

# The daemon over HTTP: reads, durable starts, a thousand readers. Needs `wrk`.
bench-http:
    cargo bench -p steprail-server --bench http

# Benchmarks of reading definitions.
bench-definitions *ARGS:
    cargo bench -p steprail-core --bench definitions -- --noplot {{ARGS}}

# Replay one seed of the simulation and tell what happened; without a seed, play 100,000.
sim SEED="":
    STEPRAIL_SEED={{SEED}} STEPRAIL_SEEDS=100000 cargo test --profile fast -p steprail-engine --test sim no_seed -- --nocapture

# Compare the engine with the naive interpreter on 10,000 random workflows.
reference:
    STEPRAIL_CASES=10000 cargo test --profile fast -p steprail-engine --test reference -- --nocapture

# Plant known bugs and have the simulation find each.
planted *NAMES:
    scripts/planted {{NAMES}}

# Fuzz one target (parser, template, condition, jsonpath) for some seconds.
fuzz TARGET SECONDS="60":
    scripts/fuzz {{TARGET}} {{SECONDS}}

# Accept changed snapshots after looking at them.
accept:
    INSTA_UPDATE=always cargo nextest run --workspace
