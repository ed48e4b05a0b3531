#!/usr/bin/env bash
# Runs the file system of the image (deploy/container/root.sh) in a chroot, read-only and as the image's user:
#
#     scripts/test-container.sh            with target/release/walrelay, else target/debug/walrelay
#     scripts/test-container.sh PROGRAM
#
# It shows that the image has all that the program needs. Only a container engine shows that the Dockerfile builds,
# and that the health check is called. Needed: Debian 12, on which the image is made, root, the permission to mount.
# Without one of them the script prints that and ends with status 0.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test-container: %s\n' "$*"; }
skip() {
    say "skipped: $*"
    exit 0
}

# Inside the namespace of mounts. root
if [ "${1:-}" = --in-namespace ]; then
    root=$2
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -o remount,bind,ro "$root"
    in_image() {
        env -i PATH=/usr/sbin:/usr/bin WALRELAY_CONFIG=/etc/walrelay/walrelay.toml RELAY_PASSWORD=x \
            chroot --userspec=10001:10001 "$root" /usr/bin/walrelay "$@"
    }
    in_image --version
    in_image check --offline
    # The health check, while no relay runs: it says so, instead of failing otherwise.
    status=0
    said=$(in_image status --exit-code 2>&1) || status=$?
    if [ "$status" != 69 ]; then
        say "the health check ends with $status: $said" >&2
        exit 1
    fi
    exit 0
fi

program=${1:-target/release/walrelay}
[ -x "$program" ] || program=${CARGO_TARGET_DIR:-target}/debug/walrelay
[ -x "$program" ] || { say "there is no $program: run make build" >&2; exit 1; }
grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release || skip "this is no Debian 12, of which the image is made"
[ "$(id -u)" = 0 ] || skip "chroot and mount need root"
unshare --mount --propagation private true 2>/dev/null || skip "no namespace of mounts can be made here"

root=$(mktemp -d "${TMPDIR:-/tmp}/walrelay-image.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 755 "$root"
deploy/container/root.sh "$program" "$root"
mkdir "$root/proc"
cp deploy/walrelay.toml "$root/etc/walrelay/"
chmod 644 "$root/etc/walrelay/walrelay.toml"
unshare --mount --propagation private bash "$0" --in-namespace "$root"
# What public authorities have signed is trusted, by rustls and by OpenSSL.
if [ ! -s "$root/etc/ssl/certs/ca-certificates.crt" ] || [ ! -L "$root/usr/lib/ssl/certs" ]; then
    say "the image has no certificates" >&2
    exit 1
fi
if find "$root" -name sh -o -name bash -o -name dpkg | grep .; then
    say "the image has a shell or a package manager" >&2
    exit 1
fi
say "the image's file system has all that the program needs: $(du -sm "$root" | cut -f1) MB"
