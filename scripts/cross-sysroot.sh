#!/bin/sh
# Fetches the libraries of another architecture that walrelay links, once, and prints their folder:
#
#     scripts/cross-sysroot.sh arm64
#
# It downloads Debian's packages with apt-get, by the machine's sources but with lists of its own, and unpacks them
# into the cache of scripts/fetch-servers.sh. It installs nothing, and the machine's apt learns no other architecture.
# With them a program of that architecture is linked, and runs by `qemu-… -L FOLDER`.
set -eu

packages='libc6 libgcc-s1 libssl3 libssl-dev zlib1g zlib1g-dev ca-certificates'

die() {
    printf 'cross-sysroot: %s\n' "$*" >&2
    exit 1
}

architecture=${1:?"name an architecture of Debian, such as arm64"}
cache=$("$(dirname "$0")/cache-dir.sh")
target=$cache/sysroot-$architecture
if [ -f "$target/.complete" ]; then
    printf '%s\n' "$target"
    exit 0
fi
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 || die "$program is needed, because Debian's packages are used"
done

umask 022
mkdir -p "$cache"
work=$(mktemp -d "$cache/.sysroot.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$work"
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/packages" "$work/tree"
: >"$work/state/status"
cat >"$work/apt.conf" <<END
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "";
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
END
export APT_CONFIG="$work/apt.conf"
{
    apt-get -q update
    # shellcheck disable=SC2086 # a list of words
    cd "$work/packages" && apt-get -q download $packages
} >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    die "apt-get cannot download the packages of $architecture"
}
for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/tree"
done
# The cross compiler searches no folder of headers by architecture, links by absolute names lead to the machine's own
# files, and an archive would be linked in place of a library that is not found.
cp -r "$work"/tree/usr/include/*-linux-gnu/. "$work/tree/usr/include/"
find "$work/tree" -type l -lname '/*' | while read -r link; do
    ln -sfnr "$work/tree$(readlink "$link")" "$link"
done
find "$work/tree/usr/lib" -name '*.a' -delete
: >"$work/tree/.complete"
mv -T "$work/tree" "$target" 2>/dev/null || [ -f "$target/.complete" ] || die "cannot make $target"
printf '%s\n' "$target"
