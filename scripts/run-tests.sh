#!/usr/bin/env bash
# Runs all tests of the workspace, and names what failed and how to repeat it: `make test` calls it.
#
#   scripts/run-tests.sh
#
# The tests with servers mostly wait, so three lanes run beside one another: the end-to-end tests,
# the faults, and the tests of all crates one after another. RUST_TEST_THREADS says how many
# end-to-end tests run at a time, by default three for each processor. WALRELAY_TEST_SEED repeats a
# run: every random choice comes from it.
set -euo pipefail
cd "$(dirname "$0")/.."

export WALRELAY_TEST_SEED=${WALRELAY_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
export PROPTEST_RNG_SEED=$WALRELAY_TEST_SEED
threads=${RUST_TEST_THREADS:-$((3 * $(nproc 2>/dev/null || echo 2)))}
slowest=20

logs=$(mktemp -d)
lanes=()
finish() {
    local pid
    for pid in "${lanes[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- The test binaries: crate, name, and path, which must run in the folder of its crate.

cargo test --locked --workspace --no-run --message-format=json-render-diagnostics >"$logs/built"
# A line each: package, how cargo selects the binary, its name, its path, the folder of its crate.
binaries=$logs/binaries
sed -n '/"test":true.*"executable":"/s|.*"manifest_path":"\([^"]*/crates/\([^/]*\)\)/Cargo.toml".*"target":{"kind":\["\([a-z-]*\)".*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*|walrelay-\2 --\3=\4 \4 \5 \1|p' \
    "$logs/built" | sed 's/^walrelay-walrelay /walrelay /; s/ --lib=[^ ]*/ --lib/' >"$binaries"
if ! grep -q '^walrelay --test=e2e ' "$binaries"; then
    echo "run-tests: cargo named no end-to-end tests" >&2
    exit 1
fi

# Runs one binary. The lines of its failed tests go to the file `failed`.
run() { # package selector name path folder
    local name=$3 log=$logs/$1-$3.log status=0
    # The time of each test is an unstable option of the test harness; RUSTC_BOOTSTRAP allows it.
    (cd "$5" && RUSTC_BOOTSTRAP=1 "$4" -Z unstable-options --report-time </dev/null 2>&1) |
        tee "$log" | sed -u "s|^|$name: |" || status=$?
    sed -n 's/^test \(.*\) \.\.\. ok <\([0-9.]*\)s>$/\2 '"$name"' \1/p
            s/^ok  *\(.*\), \([0-9.]*\) s: .*/\2 '"$name"' \1/p' "$log" >>"$logs/times"
    if [ "$status" = 0 ]; then return; fi
    if ! sed -n "s|^test \(.*\) \.\.\. FAILED.*|$1 $2 \1|p
                 s|^FAILED  \(.*\) on Postgres \([0-9]*\), .*|$1 $2 \1 on \2|p" "$log" |
        grep . >>"$logs/failed"; then
        echo "$1 $2 (the binary ended with status $status)" >>"$logs/failed"
    fi
}

# Runs the binaries whose line `grep` selects with these arguments.
lane() { # grep-arguments...
    local binary
    grep "$@" "$binaries" | while read -r -a binary; do run "${binary[@]}"; done
}

others() {
    RUST_TEST_THREADS=2 lane -vE '^walrelay --test=(e2e|faults) '
    if ! cargo test --locked --workspace --doc </dev/null 2>&1 | sed -u 's/^/doc: /'; then
        echo "--workspace --doc" >>"$logs/failed"
    fi
    if ! make --no-print-directory test-loom </dev/null 2>&1 | sed -u 's/^/loom: /'; then
        echo "walrelay-checkpoint loom" >>"$logs/failed"
    fi
}

: >"$logs/failed"
set -m # a process group for each lane, so that it can be stopped as a whole
RUST_TEST_THREADS=$threads lane '^walrelay --test=e2e ' & lanes+=($!)
lane '^walrelay --test=faults ' & lanes+=($!)
others & lanes+=($!)
set +m
for pid in "${lanes[@]}"; do
    wait "$pid" || echo "a lane of the tests (it ended by itself)" >>"$logs/failed"
done
lanes=()

printf '\n--- the slowest %s tests, in seconds\n' "$slowest"
sort -rn -o "$logs/times" "$logs/times"
sed "${slowest}q" "$logs/times"

if [ -s "$logs/failed" ]; then
    count=$(wc -l <"$logs/failed")
    printf '\nrun-tests: %s failed, seed %s; logs above, each again with:\n' "$count" "$WALRELAY_TEST_SEED"
    sed -n '1,8p' "$logs/failed" | while read -r package selector test; do
        case $selector in
            loom) again="make test-loom" ;;
            --doc) again="cargo test --workspace --doc" ;;
            --test=faults) again="FAULTS_ONLY=${test% on *} FAULTS_POSTGRES=${test##* } make test-faults" ;;
            *) again="cargo test -p $package $selector -- --exact $test" ;;
        esac
        echo "  WALRELAY_TEST_SEED=$WALRELAY_TEST_SEED $again"
    done
    exit 1
fi
echo "run-tests: all tests passed, seed $WALRELAY_TEST_SEED"
