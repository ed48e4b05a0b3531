#!/bin/sh
# Fetches Redis, which the tests of the sink "redis" use, once:
#
#     scripts/fetch-redis.sh
#
# It downloads Debian's packages with apt-get and unpacks them into the cache of
# scripts/fetch-servers.sh, without root. It installs nothing, so no service is started. Where
# redis-server is installed already, it does nothing.
set -eu

packages='redis-server redis-tools libatomic1 libjemalloc2 liblzf1'

say() { printf 'fetch-redis: %s\n' "$*"; }
die() {
    printf 'fetch-redis: %s\n' "$*" >&2
    exit 1
}

cache=$("$(dirname "$0")/cache-dir.sh")
target=$cache/redis
if [ -f "$target/.complete" ]; then
    say "there already, in $target"
    exit 0
fi
if command -v redis-server >/dev/null 2>&1; then
    say "redis-server is installed"
    exit 0
fi
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 ||
        die "install redis-server; WALRELAY_TEST_REDIS=skip leaves its tests out"
done

umask 022
mkdir -p "$cache"
# Another run may do the same: the first that has unpacked all of it gives its directory the name.
work=$(mktemp -d "$cache/.redis.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$work"
mkdir "$work/packages" "$work/tree" "$work/tree/libraries"
# shellcheck disable=SC2086 # a list of words
download() { (cd "$work/packages" && apt-get -q download $packages); }
if ! download; then
    # The lists may be old, or not be there yet.
    [ "$(id -u)" = 0 ] || die "apt-get cannot download the packages; apt-get update may help"
    apt-get -q update
    # shellcheck disable=SC2086 # a list of words
    download || die "apt-get cannot download the packages"
fi
for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/tree"
done
find "$work/tree" -name '*.so*' -path '*/lib/*' -exec mv {} "$work/tree/libraries/" \;
: >"$work/tree/.complete"
mv -T "$work/tree" "$target" 2>/dev/null || [ -f "$target/.complete" ] || die "cannot make $target"
say "unpacked to $target"
