#!/usr/bin/env bash
# Runs all tests of the workspace, and names what failed and how to repeat it: `make test` calls it.
#
#   scripts/run-tests.sh
#
# The tests with servers mostly wait, so four lanes run beside one another: the end-to-end tests,
# the faults, the tests of sinks with servers, and all others. RUST_TEST_THREADS says how many end-to-end tests run at a
# time, by default four for each processor, 12 at most. WALRELAY_TEST_SEED repeats a
# run: every random choice comes from it.
set -euo pipefail
cd "$(dirname "$0")/.."

export WALRELAY_TEST_SEED=${WALRELAY_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
export PROPTEST_RNG_SEED=$WALRELAY_TEST_SEED
processors=$(nproc 2>/dev/null || echo 2)
threads=${RUST_TEST_THREADS:-$((processors < 3 ? 4 * processors : 12))}
slowest=20
# A binary that has not ended by then has a test that hangs. On a busy machine with two processors the
# end-to-end tests were seen to take more than 25 minutes, and none hung.
limit=50m

logs=$(mktemp -d)
servers=
lanes=()
finish() {
    local pid
    for pid in ${lanes[@]+"${lanes[@]}"}; do kill -- "-$pid" 2>/dev/null || true; done
    wait
    rm -rf "$logs"
    if [ -n "$servers" ]; then
        rm -rf "$servers"/walrelay-pg-* "$servers"/walrelay-kafka-* "$servers"/walrelay-rabbitmq-* "$servers"/walrelay-redis-* "$servers"/walrelay-nats-* "$servers/script"
        # What failed tests have left stays.
        rmdir "$servers" 2>/dev/null || true
    fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- The servers' directories go to memory where there is enough. Each Postgres makes a thousand files
# and deletes them soon: a file system that does not use the numbers of deleted files again for some
# seconds, as ext4, spends more time on that than the servers take.

needed=$((8 * 1024 * 1024)) # KiB
free_memory() { sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo; }
free_shm() { df -Pk /dev/shm | awk 'NR == 2 && $1 == "tmpfs" { print $4 }'; }
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "$(free_shm)" -ge "$needed" ] && [ "$(free_memory)" -ge "$((2 * needed))" ]; then
    servers=$(mktemp -d /dev/shm/walrelay-tests.XXXXXX)
    chmod 1777 "$servers"
    # Tests run scripts that they write there.
    printf '#!/bin/sh\n' >"$servers/script"
    chmod +x "$servers/script"
    if "$servers/script" 2>/dev/null; then export TMPDIR=$servers; fi
fi

# --- The test binaries: crate, name, and path, which must run in the folder of its crate.

cargo test --locked --workspace --no-run --message-format=json-render-diagnostics >"$logs/built"
# A line each, separated by tabs: package, how cargo selects the binary, its name, its path, the folder
# of its crate.
binaries=$logs/binaries
sed -n '/"profile":{[^}]*"test":true}.*"executable":"/s|.*"manifest_path":"\([^"]*/crates/\([^/]*\)\)/Cargo.toml".*"target":{"kind":\["\([a-z-]*\)".*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*|walrelay-\2\t--\3=\4\t\4\t\5\t\1|p' \
    "$logs/built" | sed 's/^walrelay-walrelay\t/walrelay\t/; s/\t--lib=[^\t]*/\t--lib/' >"$binaries"
if ! grep -q $'^walrelay\t--test=e2e\t' "$binaries"; then
    echo "run-tests: cargo named no end-to-end tests" >&2
    exit 1
fi

# Runs one binary. The lines of its failed tests go to the file `failed`.
run() { # package selector name path folder
    local name=$3 log=$logs/$1-$3.log status=0
    # The time of each test is an unstable option of the test harness; RUSTC_BOOTSTRAP allows it.
    (cd "$5" && RUSTC_BOOTSTRAP=1 timeout --foreground -k 30 "$limit" "$4" -Z unstable-options --report-time </dev/null 2>&1) |
        tee "$log" | sed -u "s|^|$name: |" || status=$?
    sed -n 's/^test \(.*\) \.\.\. ok <\([0-9.]*\)s>$/\2 '"$name"' \1/p
            s/^ok  *\(.*\), \([0-9.]*\) s: .*/\2 '"$name"' \1/p' "$log" >>"$logs/times"
    if [ "$status" = 0 ]; then return; fi
    # How each failed test ended: the first lines of what it panicked with.
    awk '/^---- .* stdout ----$/ { test = $2; lines = 0 }
         /^stack backtrace:|^note: |^failures:/ { lines = 0 }
         / panicked at / { lines = 12; print test ":" }
         lines > 0 { print "    " substr($0, 1, 400); lines-- }' "$log" >>"$logs/reasons"
    if [ "$status" = 124 ]; then
        sed -n "s|^test \(.*\) has been running for over 60 seconds|\1|p" "$log" | while read -r test; do
            grep -qF "test $test ... " "$log" || echo "$1 $2 $test" >>"$logs/failed"
        done
        echo "$1 $2 # (it had not ended after $limit)" >>"$logs/failed"
    elif ! sed -n "s|^test \(.*\) \.\.\. FAILED.*|$1 $2 \1|p
                 s|^FAILED  \(.*\) on Postgres \([0-9]*\), .*|$1 $2 \1 on \2|p" "$log" |
        grep . >>"$logs/failed"; then
        echo "$1 $2 # (it ended with status $status)" >>"$logs/failed"
    fi
}

# Runs the binaries whose line `grep` selects with these arguments.
lane() { # grep-arguments...
    local binary
    grep "$@" "$binaries" | while IFS=$'\t' read -r -a binary; do run "${binary[@]}"; done
}

others() {
    RUST_TEST_THREADS=2 lane -vE $'^(walrelay\t--test=(e2e|faults)|walrelay-[a-z]*-sink\t--test=[a-z]*)\t'
    if ! cargo test --locked --workspace --doc </dev/null 2>&1 | sed -u 's/^/doc: /'; then
        echo "workspace --doc" >>"$logs/failed"
    fi
    if ! make --no-print-directory test-loom </dev/null 2>&1 | sed -u 's/^/loom: /'; then
        echo "walrelay-checkpoint loom" >>"$logs/failed"
    fi
}

: >"$logs/failed"
: >"$logs/reasons"
: >"$logs/times"
set -m # a process group for each lane, so that it can be stopped as a whole
RUST_TEST_THREADS=$threads lane $'^walrelay\t--test=e2e\t' & lanes+=($!)
lane $'^walrelay\t--test=faults\t' & lanes+=($!)
RUST_TEST_THREADS=3 lane $'^walrelay-[a-z]*-sink\t--test=' & lanes+=($!)
others & lanes+=($!)
set +m
for pid in "${lanes[@]}"; do
    wait "$pid" || echo "workspace lane # (a lane of the tests ended by itself)" >>"$logs/failed"
done
lanes=()

printf '\n--- the slowest %s tests, in seconds\n' "$slowest"
sort -rn -o "$logs/times" "$logs/times"
sed "${slowest}q" "$logs/times"

if [ -s "$logs/failed" ]; then
    count=$(wc -l <"$logs/failed")
    printf '\n--- how they failed\n'
    sed '120q' "$logs/reasons"
    printf '\nrun-tests: %s failed, seed %s; the logs are above. Again, each alone:\n' "$count" "$WALRELAY_TEST_SEED"
    sed -n '1,5p' "$logs/failed" | while read -r package selector test; do
        test=${test% - should panic}
        case $selector$test in
            loom) again="make test-loom" ;;
            --doc*) again="cargo test --workspace --doc" ;;
            --test=faults*\ on\ *) again="FAULTS_ONLY=${test% on *} FAULTS_POSTGRES=${test##* } make test-faults" ;;
            *\(*) again="cargo test -p $package $selector $test" ;;
            *) again="cargo test -p $package $selector -- --exact $test" ;;
        esac
        echo "  PROPTEST_RNG_SEED=$WALRELAY_TEST_SEED WALRELAY_TEST_SEED=$WALRELAY_TEST_SEED $again"
    done
    exit 1
fi
echo "run-tests: all tests passed, seed $WALRELAY_TEST_SEED"
