# What contributors run. `make test` is the whole of it; the rest is quicker.

.PHONY: test fmt lint drift docs bench

test: ## starts the real services it can get, runs every test, and names what was skipped
	testbed/test

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

drift: ## generated files are what the code generates

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

bench:
	cargo test --release -p watchfire-delivery --test all rate -- --ignored --nocapture
