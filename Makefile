# What contributors run. `make test` is the whole of it; the rest is quicker.

.PHONY: test fmt lint drift docs bench alerts

test: ## starts the real services it can get, runs every test, and names what was skipped
	testbed/test

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

drift: ## generated files are what the code generates; UPDATE_GOLDEN=1 writes them anew
	cargo test --locked -p watchfire --test all generated

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

alerts: ## the alert rules are valid, each fires when it should, and none on a healthy install
	testbed/alerts

bench: ## release builds against ceilings in the same run; rows also in target/bench.json
	cargo build --release --locked -p watchfire -p watchfire-benches
	eval "$$(testbed/up)" && mkdir -p target && \
	  cargo run --release --locked -p watchfire-benches -- sentinel --million --json target/bench.json && \
	  cargo test --release --locked -p watchfire-delivery --test all rate -- --ignored --nocapture
