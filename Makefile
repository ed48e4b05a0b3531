# The ways in. `make demo` and `make test` install what they need where they can: scripts/bootstrap.sh.

CARGO ?= cargo

# Where `make install` puts the binary, its manual pages and completions.
PREFIX ?= /usr/local
BIN = $(or $(CARGO_TARGET_DIR),target)/release/walrelay
ROOT = $(DESTDIR)$(PREFIX)
SHARE = $(ROOT)/share

# The oldest Rust that builds it.
RUST = $(shell sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)

# What the suite of faults runs beside the versions that `make test` has fetched.
FAULTS_SERVERS = 14.20.0 16.11.0

.PHONY: help build install demo drill test test-stress test-alerts test-minimal test-packages test-helm test-rust release test-loom test-model-wide test-faults test-debezium test-examples fuzz example bench bench-core bench-router bench-requests docs lint ci clean

help:
	@echo "make demo    watch an outbox arrive in Kafka: throwaway Postgres, embedded broker"
	@echo "             (DEMO_SECONDS=10 to end by itself, else Ctrl-C; SINK=http or rabbitmq for other destinations)"
	@echo "make drill   the same with faults: a stopped broker, a killed walsender, a poison row; ends by itself"
	@echo "make example  a shop whose services, relay and servers are killed while orders come in; proves at its end that each"
	@echo "             order had its effects once (EXAMPLE_SECONDS=60 EXAMPLE_SEED=1)"
	@echo "make build   the binary, in $(BIN)"
	@echo "make install  the binary of make build, its manual pages and completions (PREFIX=/usr/local DESTDIR=)"
	@echo "make test    all tests, against real servers (WALRELAY_TEST_SEED=1 to repeat the choices of a run)"
	@echo "make test-stress  all tests, six times on a busy machine: finds those that fail by chance"
	@echo "make test-minimal  make demo, as root and as a user, and some tests in a fresh minimal Debian (needs root)"
	@echo "make release  archive, Debian package, RPM, checksums and SBOM of the commit, in dist/ (scripts/release.sh)"
	@echo "make test-packages  the life of the packages in dist/ in a fresh Debian with systemd (needs root): docs/start/install.md"
	@echo "make test-helm  the Helm chart: rendering, schemas of three versions of Kubernetes (needs Go)"
	@echo "make test-rust  that the program builds with the oldest Rust that Cargo.toml states, which rustup fetches"
	@echo "make test-alerts  the alerts for Prometheus, by promtool"
	@echo "make test-faults  every fault of docs/trust/proof.md on Postgres 14 to 18, and its table there"
	@echo "             (FAULTS_SEED=1 FAULTS_ONLY=name FAULTS_POSTGRES=17 to repeat one; FAULTS_SINK=rabbitmq, redis, nats, nats-exclusive, http or http2)"
	@echo "make test-debezium  beside a real Debezium Server, which is fetched (780 MB): the hand-over, equal records"
	@echo "make test-examples  the producers and consumers of examples/, in each language that the machine has"
	@echo "             (EXAMPLES=producers/go EXAMPLES_POSTGRES=18)"
	@echo "make fuzz    every parser with random input, two minutes each (FUZZ_SECONDS=120 FUZZ_TARGETS=name)"
	@echo "make bench   measures it beside pg_recvlogical and polling relays: docs/trust/benchmarks.md"
	@echo "             (BENCH_RUNS=3 BENCH_ONLY=drain|latency|ramp|light|idle|sweep, BENCH_PEERS=1 for Debezium;"
	@echo "             SINK=rabbitmq, redis, nats or http: that sink beside a polling relay)"
	@echo "make bench-core  what a row costs in the relay's core, in ns and instructions, beside the last record"
	@echo "             (BENCH_RECORD=1 to keep what it counts; instructions need valgrind)"
	@echo "make bench-router  what making a record of a row costs, by preset and converter"
	@echo "make bench-requests  how long a record waits where the broker takes its time"
	@echo "make docs    the pages as a book with search, in target/book; checks their links"
	@echo "make lint    formatting and clippy"
	@echo "make ci      everything a change must pass (.ci/run)"

build:
	@scripts/bootstrap.sh build
	$(CARGO) build --locked --release -p walrelay
	@echo "make build: the binary is $(abspath $(BIN)); make install puts it into $(PREFIX)/bin"

# Builds nothing, so that root needs no Rust: `make build && sudo make install`.
install:
	@test -x "$(BIN)" || { echo "make install: $(BIN) is not there; run make build first" >&2; exit 1; }
	umask 022; install -D -m 755 "$(BIN)" $(ROOT)/bin/walrelay
	umask 022; install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions \
		$(SHARE)/fish/vendor_completions.d
	umask 022; "$(BIN)" man $(SHARE)/man/man1
	umask 022; "$(BIN)" completions bash > $(SHARE)/bash-completion/completions/walrelay
	umask 022; "$(BIN)" completions zsh > $(SHARE)/zsh/site-functions/_walrelay
	umask 022; "$(BIN)" completions fish > $(SHARE)/fish/vendor_completions.d/walrelay.fish

# CI runs the binary that the tests have built: DEMO_PROFILE=test.
demo: DEMO = demo $(if $(SINK),--sink $(SINK))
demo:
	@scripts/bootstrap.sh demo $(SINK)
ifeq ($(DEMO_PROFILE),test)
	@$(CARGO) test --quiet --locked --workspace --no-run
	@$(or $(CARGO_TARGET_DIR),target)/debug/walrelay $(DEMO)
else
	@$(CARGO) run --locked --release -p walrelay -- $(DEMO)
endif

drill:
	@scripts/bootstrap.sh demo
	@$(CARGO) run --locked --release -p walrelay -- demo --drill

# Packages come from the registries of Python and TypeScript.
example:
	@scripts/bootstrap.sh test
	@scripts/example.sh

test:
	@scripts/bootstrap.sh test
	@scripts/run-tests.sh
	@echo "make test: all tests passed"

test-stress:
	@scripts/bootstrap.sh test
	@scripts/stress-tests.sh

# Every interleaving of the threads that share the acknowledgements, by model.
test-loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --locked -p walrelay-checkpoint --release --test loom

# CI has one Rust, that of rust-toolchain.toml.
test-rust:
	rustup toolchain install $(RUST) --profile minimal
	CARGO_TARGET_DIR=target/rust-$(RUST) $(CARGO) +$(RUST) build --locked -p walrelay
	@echo "make test-rust: Rust $(RUST) builds it"

# The rules of deploy/prometheus. Says so where promtool cannot be had.
test-alerts:
	@scripts/test-alerts.sh

# The chart of deploy/helm, without a cluster. Says so where Helm cannot be built.
test-helm:
	@scripts/test-helm.sh

# That a newcomer's machine needs no more than bootstrap.sh installs. Says so where it cannot be run.
test-minimal:
	@scripts/test-minimal.sh

# What scripts/release.sh made: install, run, upgrade under load, remove. Says so where it cannot be run.
test-packages:
	@scripts/test-packages.sh

release:
	@scripts/bootstrap.sh build
	@scripts/release.sh

# Every fault of the catalogue, under load, with a random seed.
test-faults:
	@scripts/bootstrap.sh faults
	@scripts/fetch-servers.sh $(FAULTS_SERVERS)
	FAULTS_ALL=1 $(CARGO) test --locked -p walrelay --test faults
	@$(if $(FAULTS_ONLY),,$(MAKE) --no-print-directory test-model-wide)

# Optional: needs Java 21 and a large download, and says so where they cannot be had.
test-debezium:
	@scripts/bootstrap.sh test
	@scripts/test-debezium.sh $(DEBEZIUM_ONLY)

# Each against a Postgres and a broker of its own; packages come from the languages' registries.
test-examples:
	@scripts/bootstrap.sh test
	@scripts/test-examples.sh $(EXAMPLES)

# The searches of the relay's core and of its marks and accounts that are part of `make test`, with more faults:
# some minutes, 2 GB.
test-model-wide:
	WALRELAY_MODEL=wide $(CARGO) test --locked -p walrelay-relay --test model --test evidence -- --nocapture

# A crash leaves its input in fuzz/artifacts and says the command that repeats it.
fuzz:
	@scripts/bootstrap.sh build
	scripts/fuzz.sh $(or $(FUZZ_SECONDS),120) $(FUZZ_TARGETS)

# Optimised too: the polling relay is part of it. What is measured is the binary of `make build`.
bench: build
	@scripts/bootstrap.sh test
	@$(if $(SINK),BENCH_SINK=$(SINK)) $(if $(filter-out 0,$(BENCH_PEERS)),scripts/test-debezium.sh --) $(CARGO) run --locked --release --quiet -p walrelay-bench

# From the bytes of a socket read to the confirmed position, without servers: half a minute.
bench-core:
	@$(CARGO) bench --locked --quiet -p walrelay-relay --bench core

# The router alone, without servers: half a minute.
bench-router:
	@$(CARGO) bench --locked --quiet -p walrelay-event-router --bench router

# The producer alone, against a mock broker that takes its time: six minutes.
bench-requests:
	@$(CARGO) bench --locked --quiet -p walrelay-kafka-sink --bench requests

docs:
	@scripts/docs.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

ci:
	.ci/run

clean:
	$(CARGO) clean
