#!/usr/bin/env bash
# Fuzzes every target of fuzz/, one for each processor at a time, starting from its committed corpus.
#
#   scripts/fuzz.sh SECONDS [TARGET...]    0: compiles them only
#
# It uses the compiler's coverage counters and the address sanitizer; fuzz/README.md says how that
# works on the stable toolchain. FUZZ_BLIND=1 uses neither, and the folder of the ordinary build, in
# which only the targets need building: for CI. It leaves out the target that needs the whole relay.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?how many seconds for each target}
shift
targets=("$@")
if [ "$#" = 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$file" .rs)
        if [ "${FUZZ_BLIND:-}" ] && [ "$target" = configuration ]; then continue; fi
        targets+=("$target")
    done
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

if [ "${FUZZ_BLIND:-}" ]; then
    # Uses the profiles of the workspace, the last sections of Cargo.toml, so that its builds are reused.
    sed -n '/^\[profile/,$p' Cargo.toml >"$logs/profiles.toml"
    cargo build --locked --config "$logs/profiles.toml" --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}" \
        --no-default-features
    binaries=${CARGO_TARGET_DIR:-target}/debug
else
    host=$(rustc -vV | sed -n 's/^host: //p')
    # The C libraries are built without the sanitizer: their build scripts would take it from
    # RUSTFLAGS and then test the result with programs that are linked without it.
    export "CFLAGS_${host//-/_}=-fno-sanitize=all" "CXXFLAGS_${host//-/_}=-fno-sanitize=all"
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
        cargo build --locked --release --manifest-path fuzz/Cargo.toml --target-dir fuzz/target --target "$host"
    binaries=fuzz/target/$host/release
fi
if [ "$seconds" = 0 ]; then exit; fi

fuzz() { # target
    local target=$1 log=$logs/$1 corpus=fuzz/corpus/$1 status=0 input
    [ -d "$corpus" ] || { echo "$corpus is not there" >&2; return 1; }
    mkdir -p "fuzz/found/$target" "fuzz/artifacts/$target"
    # 4096 bytes reach all code and keep a run short. The corpus itself is run in any case.
    "$binaries/$target" "fuzz/found/$target" "$corpus" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
        -rss_limit_mb=2048 -artifact_prefix="fuzz/artifacts/$target/" >"$log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        tail -n 60 "$log" >&2
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzzing $target failed; once more with the same input:" >&2
        echo "    $binaries/$target ${input:-$corpus/*}" >&2
        return 1
    fi
    printf '%-20s %s\n' "$target" "$(grep '^Done' "$log" || tail -n 1 "$log")"
}

# A target uses one processor.
running=0
failed=0
for target in "${targets[@]}"; do
    if [ "$running" = "$(nproc 2>/dev/null || echo 1)" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    fuzz "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
