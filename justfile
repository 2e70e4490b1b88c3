# List the recipes.
default:
    @just --list

# Run every check of CI.
verify:
    scripts/test

# Run tests only.
test *ARGS:
    cargo nextest run --workspace {{ARGS}}

# Format and lint.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# Regenerate the JSON Schema, the reference pages and the pictures.
gen:
    scripts/gen

# Benchmark the engine beside the limits of the machine; compare ratios within one run.
bench *ARGS:
    cargo bench -p steprail-engine --bench engine -- {{ARGS}}

# Benchmark a step beside the MCP call that it makes.
bench-mcp:
    cargo bench -p steprail-mcp --bench calls

# Benchmark the daemon over HTTP: reads, durable starts, a thousand stream readers. Needs `wrk`.
bench-http:
    cargo bench -p steprail-server --bench http

# Benchmark parsing and compiling definitions.
bench-definitions *ARGS:
    cargo bench -p steprail-core --bench definitions -- --noplot {{ARGS}}

# Replay one seed of the simulation step by step; without a seed, run 100,000.
sim SEED="":
    STEPRAIL_SEED={{SEED}} STEPRAIL_SEEDS=100000 cargo test --release -p steprail-engine --test sim no_seed -- --nocapture

# Compare the engine with the naive interpreter on 10,000 random workflows.
reference:
    STEPRAIL_CASES=10000 cargo test --release -p steprail-engine --test reference -- --nocapture

# Apply known bugs one by one; the simulation must find each.
planted *NAMES:
    scripts/planted {{NAMES}}

# Fuzz one target (parser, template, condition, jsonpath) for some seconds.
fuzz TARGET SECONDS="60":
    scripts/fuzz {{TARGET}} {{SECONDS}}

# Accept changed snapshots; review `git diff` afterwards.
accept:
    INSTA_UPDATE=always cargo nextest run --workspace
