#!/bin/sh
# Runs the tests that need a real Debezium Server beside walrelay:
#
#     scripts/test-debezium.sh             fetches what is missing, and runs them
#     scripts/test-debezium.sh NAME        runs those whose names contain NAME
#     scripts/test-debezium.sh -- COMMAND  runs COMMAND instead, with WALRELAY_TEST_DEBEZIUM and
#                                          WALRELAY_TEST_JAVA set; fails if Debezium is not available
#
# Debezium Server is fetched once (780 MB) into the cache that scripts/fetch-servers.sh uses. It
# needs Java 21 or newer: the one that WALRELAY_TEST_JAVA names, or the first of $JAVA_HOME, `java`
# and /usr/lib/jvm that is new enough, or one that apt-get can install. If it is not available, the
# script prints that and ends with status 0: these tests are optional.
set -eu
cd "$(dirname "$0")/.."

version=3.6.0.Final

say() { printf 'test-debezium: %s\n' "$*"; }
instead=
if [ "${1:-}" = -- ]; then
    shift
    instead=yes
fi
skip() {
    if [ -n "$instead" ]; then
        say "$*" >&2
        exit 1
    fi
    say "SKIPPED: $*"
    exit 0
}

cache=$(scripts/cache-dir.sh)

is_21() { # java
    [ -x "$1" ] || return 1
    major=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 21 ]
}

find_java() {
    for java in "${WALRELAY_TEST_JAVA:-}" "${JAVA_HOME:-}/bin/java" "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk@*/bin/java; do
        if [ -n "$java" ] && is_21 "$java"; then return 0; fi
    done
    return 1
}

if ! find_java; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        for package in openjdk-21-jre-headless openjdk-25-jre-headless; do
            if apt-cache show "$package" >/dev/null 2>&1; then
                say "installing $package"
                DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$package" || true
                break
            fi
        done
    fi
    find_java || skip "Debezium Server $version needs Java 21 or newer; name one in WALRELAY_TEST_JAVA"
fi

home=$cache/debezium-server-$version
if [ "$(cat "$home/.version" 2>/dev/null)" != "$version" ]; then
    command -v mvn >/dev/null 2>&1 || skip "Maven is needed to fetch Debezium Server"
    mkdir -p "$cache" && [ -w "$cache" ] || skip "cannot write to $cache; name another directory in WALRELAY_CACHE"
    free=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
    [ "${free:-0}" -ge 3000000 ] || skip "less than 3 GB are free in $cache"
    work=$(mktemp -d "$cache/.fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    say "fetching Debezium Server $version (780 MB)"
    # Versions from 3 on need the POM's parent first, which not every repository has and nobody
    # needs.
    mvn -B -q -ntp org.apache.maven.plugins:maven-dependency-plugin:2.10:copy -DoutputDirectory="$work" \
        -Dartifact="io.debezium:debezium-server-dist:$version:tar.gz" >"$work/mvn.log" 2>&1 || {
        cat "$work/mvn.log" >&2
        skip "Maven could not fetch it (see above)"
    }
    tar -x -z -f "$work/debezium-server-dist-$version.tar.gz" -C "$work" --no-same-owner
    printf '%s\n' "$version" >"$work/debezium-server/.version"
    chmod -R a+rX "$work/debezium-server"
    rm -rf "$home"
    mv "$work/debezium-server" "$home"
    rm -rf "$work"
    trap - EXIT INT TERM HUP
    say "$home is ready"
fi

export WALRELAY_TEST_JAVA="$java"
export WALRELAY_TEST_DEBEZIUM="$home"
if [ -n "$instead" ]; then
    exec "$@"
fi
# One after the other: each has a Java process of some hundred megabytes.
exec "${CARGO:-cargo}" test --locked -p walrelay --test debezium -- --ignored --nocapture --test-threads=1 "$@"
