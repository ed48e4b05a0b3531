#!/usr/bin/env bash
# Runs all tests on a busy machine, to find those that fail by chance: `make test-stress`.
#
#   scripts/stress-tests.sh [RUNS]
#
# RUNS times (default 3) beside two busy loops, then RUNS times with eight end-to-end tests at a time. Each run has a seed of its own. It ends at the first run that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-3}
loops=()
finish() { for pid in ${loops[@]+"${loops[@]}"}; do kill "$pid" 2>/dev/null || true; done; }
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for _ in 1 2; do
    (while kill -0 $$ 2>/dev/null; do for _ in {1..100000}; do :; done; done) &
    loops+=($!)
done
for run in $(seq "$runs"); do
    echo "stress-tests: run $run of $runs beside two busy loops"
    scripts/run-tests.sh
done
finish
loops=()
for run in $(seq "$runs"); do
    echo "stress-tests: run $run of $runs with eight tests at a time"
    RUST_TEST_THREADS=8 scripts/run-tests.sh
done
echo "stress-tests: all runs passed"
