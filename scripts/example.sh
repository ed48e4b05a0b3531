#!/usr/bin/env bash
# Runs examples/shop beside a throwaway Postgres and a Kafka broker of its own; what it does is in run.py there.
# Nothing is left behind: packages are installed into a temporary directory.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != --inside ]; then
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    cargo build --locked --quiet -p walrelay --bin walrelay
    cargo build --locked --quiet -p walrelay-testkit --example servers
    export SHOP_WALRELAY=$target/debug/walrelay
    exec "$target/debug/examples/servers" "${EXAMPLES_POSTGRES:-17}" "$0" --inside
fi

die() {
    printf 'example: %s\n' "$*" >&2
    exit 69
}
for program in python3 npm; do
    command -v "$program" >/dev/null || die "$program is needed, and not there"
done

work=$(mktemp -d)
shop=
# shellcheck disable=SC2329 # a trap calls it
finish() {
    # What is still running ends with run.py.
    if [ -n "$shop" ]; then kill "$shop" 2>/dev/null && wait "$shop" || true; fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

printf 'example: installing the packages of the services\n'
python3 -m venv "$work/python" || die "python3 has no venv"
"$work/python/bin/pip" install --quiet --disable-pip-version-check \
    --requirement examples/consumers/python/requirements.txt || die "the packages of Python cannot be installed"
# The service beside the file that it has copied.
mkdir "$work/inventory"
cp examples/consumers/typescript/{package.json,package-lock.json,tsconfig.json,consumer.ts} examples/shop/inventory.ts \
    "$work/inventory"
(cd "$work/inventory" && npm ci --silent --no-fund --no-audit) || die "the packages of TypeScript cannot be installed"
(cd "$work/inventory" && npx --no-install tsc)

export SHOP_WORK=$work SHOP_INVENTORY_JS=$work/inventory/build/inventory.js PYTHONDONTWRITEBYTECODE=1
"$work/python/bin/python" examples/shop/run.py &
shop=$!
status=0
wait "$shop" || status=$?
shop=
if [ "$status" != 0 ]; then
    for log in "$work"/*.log; do
        [ -e "$log" ] || continue
        printf -- '--- %s\n' "${log##*/}"
        tail -n 15 "$log"
    done
fi
exit "$status"
