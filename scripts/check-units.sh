#!/usr/bin/env bash
# Checks the units of systemd in deploy/systemd: each setting is one that systemd knows, and their exposure by
# `systemd-analyze security` is at most 1.5 of 10. Says so where systemd is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

# In tenths, as the option takes it.
threshold=15

if ! command -v systemd-analyze >/dev/null; then
    echo "check-units: skipped: there is no systemd-analyze"
    exit 0
fi
units=$(mktemp -d)
trap 'rm -r "$units"' EXIT
for unit in walrelay.service walrelay@.service; do
    # `verify` wants a program that exists. What the unit has as an example is checked, too.
    sed -e 's|/usr/bin/walrelay|/bin/true|' -e 's|^#\(LoadCredential=\)|\1|' "deploy/systemd/$unit" \
        >"$units/${unit/@./@orders.}"
done
for unit in "$units"/*; do
    said=$(systemd-analyze verify --man=no "$unit" 2>&1) || { echo "$said" >&2; exit 1; }
    # An unknown setting is a warning alone.
    if grep -F "$units" <<<"$said"; then exit 1; fi
    if ! systemd-analyze security --help | grep -q -e --offline; then
        echo "check-units: the exposure is not checked: this systemd-analyze reads running units only"
        continue
    fi
    said=$(systemd-analyze security --no-pager --offline=yes --threshold=$threshold "$unit" 2>&1) ||
        { echo "$said" >&2; exit 1; }
    tail -n 1 <<<"$said"
done
echo "check-units: deploy/systemd is as systemd wants it"
