#!/bin/sh
# Fetches RabbitMQ and Erlang, which `make demo SINK=rabbitmq` and the tests of that sink use, once:
#
#     scripts/fetch-rabbitmq.sh
#
# It downloads Debian's packages with apt-get and unpacks them into the cache of
# scripts/fetch-servers.sh, without root. It installs nothing, so no service is started.
set -eu

packages='rabbitmq-server erlang-base erlang-asn1 erlang-crypto erlang-public-key erlang-mnesia erlang-runtime-tools
erlang-ssl erlang-eldap erlang-ftp erlang-tftp erlang-inets erlang-snmp erlang-os-mon erlang-parsetools
erlang-syntax-tools erlang-tools erlang-xmerl'

say() { printf 'fetch-rabbitmq: %s\n' "$*"; }
die() {
    printf 'fetch-rabbitmq: %s\n' "$*" >&2
    exit 1
}

cache=$("$(dirname "$0")/cache-dir.sh")
target=$cache/rabbitmq
if [ -f "$target/.complete" ]; then
    say "there already, in $target"
    exit 0
fi
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 ||
        die "$program is needed, because Debian's packages of RabbitMQ are used; WALRELAY_TEST_RABBITMQ=skip leaves its tests out, make demo SINK=http needs none"
done

umask 022
mkdir -p "$cache"
# Another run may do the same: the first that has unpacked all of it gives its directory the name.
work=$(mktemp -d "$cache/.rabbitmq.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$work"
mkdir "$work/packages" "$work/tree"
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
# Erlang's start script has the place where Debian installs it.
sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$target/usr/lib/erlang|" "$work/tree/usr/lib/erlang/bin/erl"
: >"$work/tree/.complete"
mv -T "$work/tree" "$target" 2>/dev/null || [ -f "$target/.complete" ] || die "cannot make $target"
say "unpacked to $target"
