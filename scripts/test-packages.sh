#!/usr/bin/env bash
# The life of each package in dist/, in a fresh minimal Debian with a running systemd:
#
#     scripts/release.sh && scripts/test-packages.sh            in Debian 12 and 13
#     scripts/test-packages.sh bookworm                         in one of them
#     scripts/test-packages.sh --from DIR bookworm              the files of another folder than dist/
#
# Installs, starts nothing that has no configuration, sets up a real outbox, relays it to a real Kafka, upgrades under
# load, removes, purges. Then the same as an RPM by dnf, and the archive. The commands are those of docs/start/install.md.
# The servers are those of the tests; Postgres and Kafka run outside, the relay inside.
#
# systemd is the one of that Debian, as the first process of a PID namespace, with a root and a cgroup of its own: it
# starts the real units, with their sandbox. No RPM distribution is to be had by Debian's packages: dnf and rpm are
# Debian's, and a package without files provides the names of Debian's libraries as RPM's own generator makes them.
#
# Needed: Linux, root, the permission to mount, cgroup v2, the source of a Debian (scripts/test-minimal.sh). Without one
# of them the script prints that and ends with status 0.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test-packages: %s\n' "$*"; }
skip() {
    say "skipped: $*"
    exit 0
}
die() {
    printf 'test-packages: FAILED: %s\n' "$*" >&2
    exit 1
}

# --- In the namespaces: makes this process the first one of a system. root

if [ "${1:-}" = --boot ]; then
    root=$2
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    # Not that of outside: a unit that stops removes the shared memory of its account.
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts"
    for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
        IFS=: read -r name major minor <<<"$node"
        mknod -m 666 "$root/dev/$name" c "$major" "$minor"
    done
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    # Not chroot: the sandbox of a unit makes a user namespace, which a process in a chroot may not. systemd leaves
    # it to the container to share mounts, by which credentials come to their unit.
    cd "$root"
    pivot_root . mnt
    exec chroot . sh -c 'umount -l /mnt && mount --make-rshared / && exec env -i container=walrelay PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --show-status=0 --log-target=null' <&- >/dev/null 2>&1
fi

# --- Outside: what is needed.

[ "$(uname -s)" = Linux ] || skip "a minimal Debian needs Linux"
[ "$(id -u)" = 0 ] || skip "chroot and mount need root"
cgroups=
for place in /sys/fs/cgroup /sys/fs/cgroup/unified; do
    [ ! -e "$place/cgroup.procs" ] || [ "$(stat -f -c %T "$place")" != cgroup2fs ] || cgroups=$place
done
[ -n "$cgroups" ] || skip "there is no cgroup v2"
from=dist
releases=("$@")
if [ "${1:-}" = --from ]; then
    from=${2:?"--from needs a folder"}
    releases=("${@:3}")
fi
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
shopt -s nullglob
# Those of this machine: a release may have others.
machine=$(uname -m)
case $machine in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) skip "there are no packages of $machine" ;;
esac
debs=("$from"/*_"$architecture".deb) rpms=("$from"/*."$machine".rpm) archives=("$from"/*-"$machine"-*.tar.gz)
[ ${#debs[@]}${#rpms[@]}${#archives[@]} = 111 ] || die "$from has no release for $machine: run scripts/release.sh first"

if [ -z "${WALRELAY_EXAMPLE_POSTGRES:-}" ]; then
    cargo build --locked --quiet -p walrelay-testkit --example servers
    exec "${CARGO_TARGET_DIR:-target}/debug/examples/servers" 17 bash "$0" "$@"
fi
server=$WALRELAY_EXAMPLE_POSTGRES
kafka=$WALRELAY_EXAMPLE_KAFKA

mirror=${DEBIAN_MIRROR:-}
if [ -z "$mirror" ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2016 # apt's own placeholder
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Component: main" | head -n 1)
fi
[ -n "$mirror" ] || skip "apt knows no mirror: name one in DEBIAN_MIRROR"
if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null || skip "debootstrap is not installed"
    { apt-get -q -y update && apt-get -q -y install --no-install-recommends debootstrap; } >/dev/null 2>&1 ||
        skip "debootstrap cannot be installed"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/walrelay-packages.XXXXXX")
chmod 755 "$work"
group=$cgroups/walrelay-packages.$$
leader='' root='' load='' admin=''
finish() {
    local status=$?
    trap '' INT TERM
    trap - ERR
    [ -z "$load" ] || kill "$load" 2>/dev/null || true
    if [ "$status" != 0 ] && [ -n "$leader" ]; then
        inside journalctl --no-pager --output=cat --lines=30 --unit='walrelay*' >&2 || true
    fi
    power_off
    if [ "$status" != 0 ] && [ -n "$root" ]; then say "see $root" >&2; else
        rm -rf --one-file-system "$work" 2>/dev/null || { sleep 1 && rm -rf --one-file-system "$work"; }
    fi
    exit "$status"
}
trap finish EXIT
trap 'say "FAILED at line $LINENO: $BASH_COMMAND" >&2' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- A system, and commands in it.

# Ends all processes of the system; its mounts go with its namespace.
power_off() {
    [ -n "$leader" ] || return 0
    kill -s KILL "$leader" 2>/dev/null || true
    wait 2>/dev/null || true
    leader=
    find "$group" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
    rmdir "$group" 2>/dev/null || true
}

# Starts the systemd of $root, and waits until it has started its units.
boot() {
    mkdir "$group"
    (
        echo $BASHPID >"$group/cgroup.procs"
        exec unshare --mount --propagation private --pid --cgroup --fork --kill-child=KILL bash "$0" --boot "$root" 2>"$work/boot.log"
    ) &
    until_true 60 "systemd has started ($work/boot.log)" started "$!"
    inside systemctl is-system-running --wait >/dev/null || true
}

# Notes the first process of the system below this one, once it is systemd.
started() { # unshare
    leader=$(cat "/proc/$1/task/$1/children" 2>/dev/null) || return 1
    leader=${leader%% *}
    [ -n "$leader" ] && [ "$(cat "/proc/$leader/comm" 2>/dev/null)" = systemd ] &&
        inside test -S /run/systemd/private
}

inside() {
    nsenter --target "$leader" --mount --pid --cgroup --root --wd env -i HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"
}

until_true() { # seconds what command...
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$limit" ] || die "not in time: $what"
        sleep 0.1
    done
}

# The block of docs/start/install.md with this name.
block() { # name
    local text
    text=$(awk -v mark="<!-- run: $1 -->" '$0 == mark { found = 1; next } found && /^```/ { if (inside) exit; inside = 1; next } inside' docs/start/install.md)
    [ -n "$text" ] || die "docs/start/install.md has no block $1"
    printf '%s\n' "$text"
}

# Runs a block inside, with what a reader fills in.
run_block() { # name
    block "$1" | sed -e "s|walrelay_VERSION-1_ARCH.deb|$deb|; s|walrelay-VERSION-1.ARCH.rpm|$rpm|" \
        -e "s|walrelay-VERSION-TARGET|$archive|g" >"$root/packages/$1.sh"
    inside bash -eu -c "cd /packages; . /packages/$1.sh" >"$root/packages/$1.log" 2>&1 || {
        tail -n 20 "$root/packages/$1.log" >&2
        die "docs/start/install.md, $1"
    }
}

relay_runs() { inside sh -c 'grep -qsx walrelay /proc/[0-9]*/comm'; }
shows() { inside systemctl show --value -p "$1" "${2:-walrelay}"; }
is() { # property value unit
    [ "$(shows "$1" "${3:-walrelay}")" = "$2" ]
}
streams() { [ "$(shows StatusText "${1:-walrelay}")" = streaming ] && is ActiveState active "${1:-walrelay}"; }
restarted() { [ "$(shows MainPID)" != "$1" ] && streams; } # former pid
sql() { inside psql -X -q -v ON_ERROR_STOP=1 "$admin" "$@"; }
# Those of all databases: the next part begins without one.
drop_slots() { sql -c "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots" >/dev/null; }
rows() { sql -A -t -c 'SELECT count(*) FROM outbox'; }
insert() { # rows
    sql -c "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
            SELECT 'Order', n % 10, 'OrderPlaced', '{}' FROM generate_series(1, $1) n"
}
# Each row is in Kafka; fails otherwise. Prints the summary.
complete() {
    inside sh -c 'set -a; . /etc/walrelay/walrelay.env; exec walrelay verify-topic --config /etc/walrelay/walrelay.toml \
        outbox.event.Order --against-table --allow-repeats' >"$root/packages/verify.log" 2>&1
}

# --- The parts.

debian() { # release
    local release=$1 begun=$SECONDS pid
    root=$work/$release deb=${debs[0]##*/} rpm=${rpms[0]##*/} archive=${archives[0]##*/}
    archive=${archive%.tar.gz}
    if ! debootstrap --print-debs --variant=minbase "$release" "$work/probe" "$mirror" >"$work/probe.log" 2>&1; then
        say "skipped: $mirror has no $release"
        return
    fi
    say "making a minimal Debian ($release)"
    unshare --mount --propagation private --pid --fork --kill-child=KILL debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,ca-certificates,postgresql-client,rpm "$release" "$root" "$mirror" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -n 20 "$work/debootstrap.log" >&2
        die "debootstrap"
    }
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    mkdir "$root/packages"
    cp "${debs[0]}" "${rpms[0]}" "${archives[0]}" "$root/packages/"
    # The same package of a later revision.
    dpkg-deb --raw-extract "${debs[0]}" "$work/next"
    sed -i 's/^\(Version: .*\)-1$/\1-2/' "$work/next/DEBIAN/control"
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/next" "$root/packages/next.deb" >/dev/null
    rm -r "$work/next"
    boot

    begun=$SECONDS
    run_block deb
    inside walrelay --version
    inside test -s /usr/share/man/man1/walrelay.1.gz -a -s /usr/share/bash-completion/completions/walrelay \
        -a -s /usr/share/zsh/vendor-completions/_walrelay -a -s /usr/share/fish/vendor_completions.d/walrelay.fish
    [ "$(inside stat -c '%a %U %G' /etc/walrelay/walrelay.toml)" = "640 root walrelay" ] || die "mode of the configuration"
    is ActiveState inactive || die "a relay without a configuration was started"
    ! inside systemctl is-enabled --quiet walrelay || die "a relay without a configuration is enabled"
    # The example names a password that nobody has set: an error that no restart repeats.
    ! inside systemctl start walrelay 2>/dev/null || die "an example is no configuration"
    is ExecMainStatus 78 || die "the example ends with $(shows ExecMainStatus)"
    is NRestarts 0 || die "an error of the configuration is repeated"
    inside systemctl reset-failed walrelay
    say "$release: installed, and nothing started"

    # A database of its own, without what another release has left.
    admin=$server
    sql -c "CREATE DATABASE $release"
    admin=${server%/*}/$release
    configure
    # To compare rows and records; the relay needs no SELECT.
    sql -c "ALTER ROLE walrelay PASSWORD 'hunter2'; GRANT SELECT ON outbox TO walrelay"
    run_block check
    run_block enable
    streams || die "active, and its status is $(shows StatusText)"
    insert 1
    until_true 60 "the first event in Kafka" complete
    say "$release: from the package to the first event in Kafka: $((SECONDS - begun)) s"

    # A reload is refused and leaves the relay as it is; a restart drains it, and it streams again.
    pid=$(shows MainPID)
    ! inside systemctl reload walrelay 2>/dev/null || die "a relay was reloaded, and reads no configuration again"
    if ! is MainPID "$pid" || ! streams; then die "after a refused reload: $(shows StatusText)"; fi
    run_block change
    restarted "$pid" || die "after a restart: $(shows StatusText)"

    # Killed by the watchdog once it does nothing, and started again.
    inside mkdir -p /etc/systemd/system/walrelay.service.d
    printf '[Service]\nWatchdogSec=4s\nRestartSec=1s\n' >"$root/etc/systemd/system/walrelay.service.d/test.conf"
    inside systemctl daemon-reload
    inside systemctl restart walrelay
    inside systemctl kill --signal=STOP walrelay
    until_true 60 "the watchdog starts a stopped relay again" is NRestarts 1
    until_true 60 "it streams again" streams
    rm -r "$root/etc/systemd/system/walrelay.service.d"
    inside systemctl daemon-reload

    upgrade apt-get -q -y install /packages/next.deb

    # A second relay, by the template, whose password is a credential, with an endpoint of its own.
    # shellcheck disable=SC2016 # the relay replaces it
    sed -e 's/:${RELAY_PASSWORD}@/@/' -e 's/^\(listen = .*\):9187"/\1:9188"/' \
        -e 's|^tables = |slot = "orders"\npassword_file = "${CREDENTIALS_DIRECTORY}/postgres-password"\n&|' \
        "$root/etc/walrelay/walrelay.toml" >"$root/etc/walrelay/orders.toml"
    inside chown root:walrelay /etc/walrelay/orders.toml
    printf 'hunter2' >"$root/etc/walrelay/orders.postgres-password"
    chmod 600 "$root/etc/walrelay/orders.postgres-password"
    inside mkdir -p /etc/systemd/system/walrelay@.service.d
    printf '[Service]\nLoadCredential=postgres-password:/etc/walrelay/%%i.postgres-password\n' \
        >"$root/etc/systemd/system/walrelay@.service.d/test.conf"
    inside systemctl daemon-reload
    sql -c "SELECT pg_create_logical_replication_slot('orders', 'pgoutput')" >/dev/null
    inside systemctl start walrelay@orders
    streams walrelay@orders || die "walrelay@orders: $(shows StatusText walrelay@orders)"
    say "$release: walrelay@orders streams, with its password as a credential"

    inside apt-get -q -y remove walrelay >"$root/packages/remove.log" 2>&1 || die "the removal: $root/packages/remove.log"
    ! relay_runs || die "a relay runs after the removal"
    [ -z "$(sql -A -t -c 'SELECT slot_name FROM pg_replication_slots WHERE active')" ] || die "a slot is read after the removal"
    inside test -e /etc/walrelay/walrelay.toml -a ! -e /usr/bin/walrelay || die "what remove leaves"
    inside apt-get -q -y purge walrelay >"$root/packages/purge.log" 2>&1 || die "the purge: $root/packages/purge.log"
    inside test ! -e /etc/walrelay/walrelay.toml -a ! -e /var/lib/walrelay -a -e /etc/walrelay/orders.toml || die "what purge leaves"
    drop_slots
    say "$release: removed and purged"

    run_block archive
    inside "/opt/$archive/walrelay" --version >/dev/null
    say "$release: the archive's program runs"
    rpm_life
    power_off
    rm -rf --one-file-system "$root"
    root=
}

# Writes the configuration of a reader's database and broker over the example, and makes what it names.
configure() {
    sed -e "s|@localhost:5432/app?sslmode=verify-full|@${admin#*@}|" -e "s|localhost:9092|$kafka|" \
        -e 's~^# \(\[sink.topics\]\|create = true\)~\1~' -i "$root/etc/walrelay/walrelay.toml"
    run_block password
    [ "$(inside stat -c '%a %U' /etc/walrelay/walrelay.env)" = "600 root" ] || die "mode of walrelay.env"
    inside env RELAY_PASSWORD=hunter2 walrelay init --config /etc/walrelay/walrelay.toml --admin-url "$admin" >/dev/null
}

# The relay runs again after this command, nothing is lost, and the configuration is the former one.
upgrade() { # command...
    local pid log=$root/packages/upgrade.log
    pid=$(shows MainPID)
    rm -f "$root/packages/enough"
    (while [ ! -e "$root/packages/enough" ]; do insert 100; done) &
    load=$!
    inside "$@" >"$log" 2>&1 || die "the upgrade: $log"
    until_true 60 "the upgraded relay runs" restarted "$pid"
    touch "$root/packages/enough"
    wait "$load"
    load=
    until_true 120 "no event is lost by the upgrade" complete
    say "$release: upgraded by $1 while $(rows) rows were written: $(grep -m 1 -i repeat "$root/packages/verify.log" || echo 'no repeats')"
    inside grep -q "${kafka%%,*}" /etc/walrelay/walrelay.toml || die "the upgrade replaced the configuration"
}

# Tells RPM what Debian has of what the package requires: the libraries that the program loads, by the names that RPM's
# generator makes of them, its shell, and the names of two packages.
know_debian() {
    # shellcheck disable=SC2016 # expanded inside
    inside sh -euc '
        cd /packages
        {
            printf "%s\n" "Name: debian" "Version: 1" "Release: 1" "Summary: Names" "License: MIT" "AutoReqProv: no"
            ldd "$1" | sed -n "s/.* => \(\/[^ ]*\) .*/\1/p" | xargs readlink -f | /usr/lib/rpm/elfdeps --provides |
                sort -u | sed "s/^/Provides: /"
            printf "%s\n" "Provides: /bin/sh" "Provides: ca-certificates" "Provides: shadow-utils" "%description" "Names." "%files"
        } >debian.spec
        rpmbuild --quiet -bb --define "_topdir /packages/rpmbuild" debian.spec
        rpm -i rpmbuild/RPMS/*/debian-1-1.*.rpm' sh "/opt/$archive/walrelay" >"$root/packages/know.log" 2>&1 ||
        die "the names of Debian: $root/packages/know.log"
}

rpm_life() {
    local config=/etc/walrelay/walrelay.toml needed='libssl.so.3(OPENSSL_3.0.0)(64bit) is needed by walrelay'
    inside userdel walrelay
    inside apt-get -q -y install --no-install-recommends dnf >"$root/packages/dnf.log" 2>&1 || die "$root/packages/dnf.log"
    # That what it requires counts.
    inside sh -c "rpm -i --test /packages/$rpm 2>&1 | grep -qF '$needed'" || die "the RPM requires no libssl"
    know_debian
    run_block rpm
    inside walrelay --version >/dev/null
    [ "$(inside stat -c '%a %U %G' $config)" = "640 root walrelay" ] || die "mode of the RPM's configuration"
    is ActiveState inactive || die "the RPM started a relay without a configuration"
    configure
    inside systemctl start walrelay
    streams || die "the RPM's relay: $(shows StatusText)"
    upgrade dnf --assumeyes reinstall "/packages/$rpm"
    inside dnf --assumeyes remove walrelay >"$root/packages/rpm-erase.log" 2>&1 || die "$root/packages/rpm-erase.log"
    ! relay_runs || die "a relay runs after the RPM is gone"
    inside test ! -e /usr/bin/walrelay -a -e $config.rpmsave || die "what the RPM leaves"
    drop_slots
    say "$release: installed, run, upgraded and erased as an RPM, by Debian's dnf"
}

for release in "${releases[@]}"; do debian "$release"; done
say "all passed"
