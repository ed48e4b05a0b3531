#!/usr/bin/env bash
# Runs a newcomer's commands in a fresh minimal Debian 12, which has git, make, curl, ca-certificates and Rust:
#
#     scripts/test-minimal.sh                    make demo as root, then make demo and some of the tests as a user
#     scripts/test-minimal.sh make test          this command, as root
#     scripts/test-minimal.sh --user make test   this command, as a user without privileges
#
# It shows that scripts/bootstrap.sh installs every program that the commands call. debootstrap
# creates the Debian from $DEBIAN_MIRROR, or from the source of this system's apt that has Debian
# 12. The checkout, Rust and the fetched servers appear at their own paths, so that nothing is built
# or fetched twice. Writes to them go to an overlay and are discarded.
#
# Needed: Linux, root, and the permission to mount. Without one of them the script prints that and
# ends with status 0.
#
# All mounts are made in a mount namespace of their own, and all processes run in a PID namespace. The kernel
# removes both when the script ends, also when it is interrupted. The files are removed from outside, where
# no mount is visible, so that the removal cannot reach a mounted directory.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test-minimal: %s\n' "$*"; }
skip() {
    say "skipped: $*"
    exit 0
}

release=bookworm
mirror=${DEBIAN_MIRROR:-}
if [ -z "$mirror" ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2016 # apt's own placeholder
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -n 1)
fi
checkout=$PWD
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
cargo_home=${CARGO_HOME:-$HOME/.cargo}
target=${CARGO_TARGET_DIR:-$checkout/target}
case $target in /*) ;; *) target=$checkout/$target ;; esac
servers=${WALRELAY_CACHE:-/var/cache/walrelay}

# --- Inside the namespaces: mounts, then the commands in the minimal root.

# Shows directory $2 at the same path under $1. Writes go to a layer in $1.
overlay() { # work path
    local work=$1 path=$2 layer
    layer=$(mktemp -d "$work/layer.XXXXXX")
    mkdir -p "$layer/upper" "$layer/work" "$work/root$path"
    # With metacopy a change of owner does not copy the file.
    mount -t overlay overlay \
        -o "lowerdir=$path,upperdir=$layer/upper,workdir=$layer/work,metacopy=on" "$work/root$path"
}

# Runs a command in the minimal root. Of this environment it gets only the places of Rust and of the
# cache, and how cargo compiles: with another CARGO_INCREMENTAL or
# CARGO_PROFILE_DEV_DEBUG it would compile everything again.
inside() { # work account command...
    local work=$1 account=$2 as=() home=/root
    shift 2
    if [ "$account" != root ]; then
        as=(setpriv --reuid="$account" --regid="$account" --clear-groups)
        home=/home/$account
    fi
    chroot "$work/root" env -i -C "$checkout" HOME="$home" TERM="${TERM:-dumb}" LANG=C.UTF-8 \
        PATH="$cargo_home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        RUSTUP_HOME="$rustup_home" CARGO_HOME="$cargo_home" CARGO_TARGET_DIR="$target" \
        CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}" WALRELAY_CACHE="$servers" DEMO_SECONDS=5 RUST_TEST_THREADS=4 \
        ${CARGO_INCREMENTAL:+CARGO_INCREMENTAL="$CARGO_INCREMENTAL"} \
        ${CARGO_PROFILE_DEV_DEBUG:+CARGO_PROFILE_DEV_DEBUG="$CARGO_PROFILE_DEV_DEBUG"} ${DEMO_PROFILE:+DEMO_PROFILE="$DEMO_PROFILE"} \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        "${as[@]}" "$@"
}

# Signals, servers, TLS, a panic, the README's steps: the tests that need programs or libraries of
# the system. They run as a user only: root has all that a user has, and CI runs the whole of make
# test as root.
some_tests() { # work account
    inside "$1" "$2" cargo test --quiet --locked --workspace --test server --test testkit
    inside "$1" "$2" cargo test --quiet --locked --workspace --test e2e -- \
        bench::a_signal children:: commands:: crashes::a_sigterm crashes::another_relay docs::five_minutes \
        errors::errors_of_access secure::secrets::a_secret_on_a_command_line secure::kafka::verification \
        secure::postgres::nothing_is_sent slots::state_file::a_slot_of_a_server topics::topics_are_created
}

in_namespaces() { # work account command...
    local work=$1 account=$2 path written
    shift 2
    mount -t proc proc "$work/root/proc"
    mount --rbind /dev "$work/root/dev"
    mkdir -p "$target" "$servers"
    written=("$checkout" "$cargo_home")
    case $target/ in "$checkout"/*) ;; *) written+=("$target") ;; esac
    for path in "${written[@]}" "$rustup_home" "$servers"; do overlay "$work" "$path"; done
    chroot "$work/root" useradd --create-home newcomer
    chmod a+x "$work/root/root"

    if [ $# = 0 ] || [ "$account" = newcomer ]; then
        # A user cannot install packages, so the administrator has done that.
        inside "$work" root scripts/bootstrap.sh test
    fi
    if [ $# = 0 ]; then
        inside "$work" root make demo
    fi
    if [ $# = 0 ] || [ "$account" = newcomer ]; then
        for path in "${written[@]}"; do chroot "$work/root" chown -R --no-dereference newcomer "$path"; done
    fi
    if [ $# = 0 ]; then
        inside "$work" newcomer make demo
        some_tests "$work" newcomer
    else
        inside "$work" "$account" "$@"
    fi
}

if [ "${1:-}" = --in-namespaces ]; then
    shift
    in_namespaces "$@"
    exit
fi

# --- Outside.

account=root
if [ "${1:-}" = --user ]; then
    account=newcomer
    shift
    [ $# -gt 0 ] || { say "--user needs a command" >&2; exit 64; }
fi
[ "$(uname -s)" = Linux ] || skip "a minimal Debian needs Linux"
[ "$(id -u)" = 0 ] || skip "chroot and mount need root"
# If the C library there is older, a program that is built here may not run there.
grep -qs "^VERSION_CODENAME=$release\$" /etc/os-release || target=$checkout/target/minimal
export CARGO_TARGET_DIR=$target

[ -n "$mirror" ] || skip "apt knows no mirror of $release: name one in DEBIAN_MIRROR"

work=$(mktemp -d "${TMPDIR:-/tmp}/walrelay-minimal.XXXXXX")
child=
finish() {
    local status=$?
    trap '' INT TERM
    if [ -n "$child" ]; then
        kill -s KILL "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    if grep -q " $work/" /proc/self/mountinfo; then
        say "mounts are left below $work: it is not removed" >&2
    else
        # A process that was killed with its namespace may not have ended yet.
        rm -rf --one-file-system "$work" 2>/dev/null || { sleep 1 && rm -rf --one-file-system "$work"; }
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --kill-child: when `unshare` is killed, everything in its namespaces is killed.
namespaces=(unshare --mount --propagation private --pid --fork --kill-child=KILL)
# Runs a command in new namespaces, in the background, so that this shell handles a signal at once.
in_new_namespaces() {
    local status=0
    "${namespaces[@]}" "$@" &
    child=$!
    wait "$child" || status=$?
    child=
    return "$status"
}
mkdir "$work/lower" "$work/upper" "$work/work" "$work/merged"
"${namespaces[@]}" mount -t overlay overlay -o \
    "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/work,metacopy=on" "$work/merged" 2>"$work/refused" ||
    skip "no overlay can be mounted here: $(tail -n 1 "$work/refused")"

if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null || skip "debootstrap is not installed"
    { apt-get -q -y update && apt-get -q -y install --no-install-recommends debootstrap; } >"$work/apt.log" 2>&1 ||
        skip "debootstrap cannot be installed: $(tail -n 1 "$work/apt.log")"
fi
if ! debootstrap --print-debs --variant=minbase "$release" "$work/probe" "$mirror" >"$work/probe.log" 2>&1; then
    skip "$mirror cannot be read: $(tail -n 1 "$work/probe.log")"
fi

say "making a minimal Debian ($release)"
# It mounts /proc below the root.
in_new_namespaces debootstrap --variant=minbase --include=git,make,curl,ca-certificates \
    "$release" "$work/root" "$mirror" >"$work/debootstrap.log" 2>&1 || {
    tail -n 20 "$work/debootstrap.log" >&2
    exit 1
}
cp /etc/resolv.conf /etc/hosts "$work/root/etc/"

in_new_namespaces bash "$0" --in-namespaces "$work" "$account" "$@"
say "all passed in a minimal Debian"
