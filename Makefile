# What contributors run. `make test` is the whole of it; the rest is quicker.

SEED ?= 1
ROUNDS ?= 5
JOBS ?= 1
SECONDS ?= 30

.PHONY: test fmt lint drift docs bench alerts chaos fuzz

test: ## starts the real services it can get, runs every test, and names what was skipped
	testbed/test

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

drift: ## generated files are what the code generates; UPDATE_GOLDEN=1 writes them anew
	cargo test --locked --workspace --test all -- generated:: beacon::metrics

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

alerts: ## rules and dashboards are valid, each alert fires when it should, and none on a healthy install
	testbed/alerts

bench: ## release builds against ceilings in the same run; rows also in target/simulate.json and target/bench.json
	cargo build --release --locked -p watchfire -p watchfire-benches
	mkdir -p target
	cargo run --release --locked -p watchfire-benches -- simulate --json target/simulate.json
	WATCHFIRE_TEST_REQUIRE=all testbed/with sh -c ' \
	  cargo run --release --locked -p watchfire-benches -- sentinel --million --json target/bench.json && \
	  cargo run --release --locked -p watchfire-benches -- beacon --json target/beacon.json && \
	  cargo test --release --locked -p watchfire-delivery --test all rate -- --ignored --nocapture'

chaos: ## sentinel and beacon through rounds of faults, each from its seed; ROUNDS=200 JOBS=4 for the long one
	testbed/chaos --seed $(SEED) --rounds $(ROUNDS) --jobs $(JOBS)
	WATCHFIRE_TEST_REQUIRE=all WATCHFIRE_FAULT_SEED=$(SEED) WATCHFIRE_FAULT_ROUNDS=$(ROUNDS) \
	  testbed/test --test all beacon::faults -- --nocapture

fuzz: ## each fuzz target for SECONDS; needs a nightly toolchain
	testbed/fuzz $(SECONDS)
