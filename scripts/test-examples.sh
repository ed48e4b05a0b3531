#!/usr/bin/env bash
# Runs the tests of examples/ against a throwaway Postgres and a Kafka broker of their own:
#
#     scripts/test-examples.sh                    all that the machine has the language for
#     scripts/test-examples.sh producers/python   these
#     EXAMPLES_POSTGRES=18 scripts/test-examples.sh    on another major version of Postgres
#     scripts/test-examples.sh --compile               compiles those in Rust only, for a later run
#
# Packages come from the registries of each language, into a temporary directory. A language that the
# machine lacks, or whose packages cannot be had, is skipped with a line that says so.
set -euo pipefail
cd "$(dirname "$0")/.."

all='producers/python producers/go producers/typescript producers/java producers/rust producers/php
producers/csharp consumers/python consumers/go consumers/typescript consumers/java consumers/rust consumers/php
consumers/csharp consumers/aio_pika consumers/streams webhooks spring frameworks shop'

say() { printf 'test-examples: %s\n' "$*"; }

if [ "${1:-}" != --inside ] && [ "${1:-}" != --compile ]; then
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    # As the tests have built both: another selection of crates would compile their dependencies anew.
    # EXAMPLES_BUILT=1: they have just done so.
    [ "${EXAMPLES_BUILT:-}" ] || cargo test --locked --quiet --workspace --no-run
    export WALRELAY_EXAMPLE_BINARY=$target/debug/walrelay
    servers=()
    case " ${*:-$all} " in *aio_pika* | *consumers/php* | *consumers/streams*) servers+=(--rabbitmq) ;; esac
    case " ${*:-$all} " in *consumers/python* | *consumers/streams*) servers+=(--redis) ;; esac
    case " ${*:-$all} " in *consumers/streams*) servers+=(--nats) ;; esac
    exec "$target/debug/examples/servers" "${servers[@]}" "${EXAMPLES_POSTGRES:-17}" "$0" --inside "$@"
fi
mode=$1
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1
skipped=
skip() {
    skipped=yes
    say "SKIPPED $example: $*"
}

# Copies the files of the example, or of a folder of it, so that nothing is left beside them.
copy() {
    rm -rf "$work/copy"
    cp -R "examples/$example${1:+/$1}" "$work/copy"
    cd "$work/copy"
}

# Installs what Python needs, once.
python() {
    command -v python3 >/dev/null || { skip "there is no python3"; return 1; }
    if [ ! -x "$work/python/bin/pip" ]; then
        python3 -m venv "$work/python" || { skip "python3 has no venv"; return 1; }
    fi
    "$work/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$1" ||
        { skip "the packages of Python cannot be installed"; return 1; }
}

# Runs the test that all consumers of Kafka share, with the command of the whole consumer; a producer has none.
replay() {
    case $example in producers/*) return ;; esac
    python examples/consumers/python/requirements.txt || return 0
    "$work/python/bin/python" examples/consumers/replay.py "$@"
}

run_python() {
    python "examples/$example/requirements.txt" || return 0
    (copy && "$work/python/bin/python" -m unittest --quiet)
    replay "$work/python/bin/python" "examples/$example/main.py"
}

# Behind a relay and RabbitMQ.
run_aio_pika() {
    if [ -z "${WALRELAY_EXAMPLE_RABBITMQ:-}" ]; then
        skip "there is no RabbitMQ: scripts/fetch-rabbitmq.sh"
        return
    fi
    python "examples/$example/requirements.txt" || return 0
    (copy && "$work/python/bin/python" -m unittest --quiet)
}

# One test for each kind of stream that has a server here, and for each language.
run_streams() {
    local sink port
    python "examples/$example/python/requirements.txt" || return 0
    if command -v go >/dev/null && (copy go && go mod download); then
        (cd "$work/copy" && go vet ./... && go build -o consumer ./cmd/consumer)
    else
        skip "there is no go, or its modules cannot be had"
    fi
    for sink in redis nats rabbitmq; do
        port=WALRELAY_EXAMPLE_${sink^^}
        if [ -z "${!port:-}" ]; then
            skip "there is no $sink: scripts/fetch-$sink.sh"
            continue
        fi
        "$work/python/bin/python" "examples/$example/test.py" "$sink" \
            "$work/python/bin/python" "examples/$example/python/main.py"
        if [ -x "$work/copy/consumer" ]; then
            "$work/python/bin/python" "examples/$example/test.py" "$sink" "$work/copy/consumer"
        fi
    done
}

run_go() {
    command -v go >/dev/null || { skip "there is no go"; return; }
    (copy && go mod download) || { skip "its modules cannot be had"; return; }
    (copy && go vet ./... && go test -count=1 ./...)
    case $example in producers/*) return ;; esac
    (cd "$work/copy" && go build -o consumer ./cmd/consumer)
    replay "$work/copy/consumer"
}

run_typescript() {
    command -v npm >/dev/null || { skip "there is no npm"; return; }
    (copy && npm ci --silent --no-fund --no-audit) || { skip "its packages cannot be installed"; return; }
    (cd "$work/copy" && npm test --silent)
    replay node "$work/copy/build/main.js"
}

run_java() {
    command -v mvn >/dev/null || { skip "there is no mvn"; return; }
    (copy && mvn --batch-mode --quiet dependency:build-classpath -Dmdep.outputFile=classpath) ||
        { skip "its packages cannot be had"; return; }
    (cd "$work/copy" && mvn --batch-mode --quiet test)
    replay java -XX:TieredStopAtLevel=1 -cp "$work/copy/target/classes:$(cat "$work/copy/classpath")" Main
}

# One application writes and reads.
run_spring() {
    command -v mvn >/dev/null || { skip "there is no mvn"; return; }
    (copy && mvn --batch-mode --quiet dependency:build-classpath -Dmdep.outputFile=classpath) ||
        { skip "its packages cannot be had"; return; }
    local user password host
    IFS=:@ read -r user password host <<<"${WALRELAY_EXAMPLE_POSTGRES#postgres*://}"
    export SPRING_DATASOURCE_URL="jdbc:postgresql://$host?user=$user&password=$password"
    export SPRING_KAFKA_BOOTSTRAP_SERVERS=$WALRELAY_EXAMPLE_KAFKA
    (cd "$work/copy" && mvn --batch-mode --quiet test)
    REPLAY_POISON=1 replay java -XX:TieredStopAtLevel=1 \
        -cp "$work/copy/target/classes:$(cat "$work/copy/classpath")" \
        example.Application --spring.kafka.consumer.properties.session.timeout.ms=2000 \
        --spring.kafka.consumer.properties.heartbeat.interval.ms=200 --example.pause=10
}

has_crates() {
    cargo fetch --locked --quiet --manifest-path "examples/$example/Cargo.toml" ||
        { skip "its crates cannot be had"; return 1; }
}

# Compiles the tests of the example into walrelay's own directory and by its profiles, so that what both depend on is
# compiled once. Runs them, or not.
rust() { # --no-run, perhaps
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    sed -n '/^\[profile/,$p' Cargo.toml >"$work/profiles.toml"
    CARGO_TARGET_DIR=$target cargo test --locked --quiet --config "$work/profiles.toml" \
        --manifest-path "examples/$example/Cargo.toml" --lib --bins --tests "$@"
}

run_rust() {
    has_crates || return 0
    rust
    replay "$target/debug/consumer"
}

run_php() {
    command -v php >/dev/null || { skip "there is no php"; return; }
    php -r 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);' || { skip "php has no pdo_pgsql"; return; }
    (copy && php test.php)
    case $example in producers/*) return ;; esac
    if [ -z "${WALRELAY_EXAMPLE_RABBITMQ:-}" ] || ! php -r 'exit((@include "PhpAmqpLib/autoload.php") ? 0 : 1);'; then
        skip "its loop needs php-amqplib, and RabbitMQ: scripts/fetch-rabbitmq.sh"
        return
    fi
    (cd "$work/copy" && php test_consumer.php)
}

# Compiles a program in C# from its files, or skips it.
csharp() {
    if ! scripts/has-mono.sh; then
        skip "Mono or its ODBC driver of Postgres is missing: scripts/bootstrap.sh names the packages"
        return 1
    fi
    mcs -warnaserror -r:System.Data -r:System.Transactions -r:Mono.Posix -out:"$work/$1" "${@:2}" || exit
}

run_csharp() {
    local odbc=()
    case $example in producers/*) odbc=(examples/consumers/csharp/PostgresOdbc.cs) ;; esac
    csharp test.exe "examples/$example"/*.cs "${odbc[@]}" || return 0
    mono "$work/test.exe"
}

# A receiver in each language, behind a relay.
run_webhooks() {
    python examples/consumers/python/requirements.txt || return 0
    local test=("$work/python/bin/python" "examples/$example/test.py")
    "${test[@]}" "$work/python/bin/python" "examples/$example/python/receiver.py"
    if ! command -v npm >/dev/null; then
        skip "there is no npm"
    elif ! (copy typescript && npm ci --silent --no-fund --no-audit); then
        skip "its packages cannot be installed"
    else
        (cd "$work/copy" && npx --no-install tsc)
        "${test[@]}" node "$work/copy/build/receiver.js"
    fi
    csharp receiver.exe examples/webhooks/csharp/*.cs examples/consumers/csharp/{ProcessedEvents,PostgresOdbc}.cs ||
        return 0
    "${test[@]}" mono "$work/receiver.exe"
}

# Laravel and Doctrine.
run_frameworks() {
    local library
    for library in Illuminate/Database Doctrine/DBAL; do
        if ! php -r "exit((@include '$library/autoload.php') ? 0 : 1);" 2>/dev/null; then
            skip "there is no php, or no $library"
            return
        fi
    done
    php "examples/$example/test.php"
}

# Beside servers of its own. With a mistake in a service the proof must fail, by the words for it.
run_shop() {
    if ! command -v python3 || ! command -v npm; then
        skip "there is no python3, or no npm"
        return
    fi >/dev/null
    EXAMPLE_SECONDS=18 EXAMPLE_EVERY=3 scripts/example.sh
    local status=0 words
    EXAMPLE_SECONDS=18 EXAMPLE_EVERY=3 EXAMPLE_FAULT=no-claim,no-effect,no-transaction scripts/example.sh \
        >"$work/shop" 2>&1 || status=$?
    for words in 'points moved more than once: ' 'points not moved: ' 'an event without an order: ' \
        'stock moved without an order: ' 'FAILED after the kills' 'FAILED after a replay'; do
        if [ "$status" != 1 ] || ! grep -q "$words" "$work/shop"; then
            cat "$work/shop"
            say "shop with mistakes ended with $status, without: $words" >&2
            return 1
        fi
    done
}

if [ "$mode" = --compile ]; then
    for example in producers/rust consumers/rust; do
        if has_crates; then rust --no-run; fi
    done
    exit
fi
# shellcheck disable=SC2086 # it is a list
if [ $# = 0 ]; then set -- $all; fi
for example in "$@"; do
    if [ ! -d "examples/$example" ]; then
        say "there is no examples/$example" >&2
        exit 64
    fi
    begun=$SECONDS
    skipped=
    "run_${example#*/}"
    if [ -z "$skipped" ]; then say "$example passed in $((SECONDS - begun)) s"; fi
done
