#!/bin/sh
# Checks deploy/prometheus/prometheus.yml, and alerts.yml there by its rule tests, with promtool from PATH or from Debian's
# package prometheus, which is unpacked into a temporary directory and not installed. Prints a
# message if neither is available.
set -eu
cd "$(dirname "$0")/.."

unpacked=
trap 'rm -rf "$unpacked"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
promtool=$(command -v promtool || true)
if [ -z "$promtool" ]; then
    unpacked=$(mktemp -d)
    # apt-get downloads as another user.
    chmod 755 "$unpacked"
    if ! (cd "$unpacked" && apt-get -q download prometheus && dpkg-deb -x prometheus_*.deb .) >"$unpacked/log" 2>&1; then
        echo "test-alerts: SKIPPED: there is no promtool, and Debian's package prometheus cannot be downloaded"
        exit 0
    fi
    promtool=$unpacked/usr/bin/promtool
fi
"$promtool" check config deploy/prometheus/prometheus.yml
"$promtool" check rules deploy/prometheus/alerts.yml deploy/prometheus/slo.yml
"$promtool" test rules deploy/prometheus/alerts_test.yml
