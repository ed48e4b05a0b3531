#!/bin/sh
# Checks which programs this tree needs from the machine, and installs the missing ones where it
# can:
#
#     scripts/bootstrap.sh build     a C and C++ compiler, make, pkg-config, OpenSSL and zlib to build librdkafka with
#     scripts/bootstrap.sh demo      and a PostgreSQL server; "demo rabbitmq": RabbitMQ by scripts/fetch-rabbitmq.sh,
#                                    unless it is installed
#     scripts/bootstrap.sh test      and Java and Maven, and with them the servers of scripts/fetch-servers.sh; Chromium;
#                                    RabbitMQ by scripts/fetch-rabbitmq.sh, unless WALRELAY_TEST_RABBITMQ is "skip";
#                                    Redis by scripts/fetch-redis.sh, unless WALRELAY_TEST_REDIS is "skip";
#                                    NATS by scripts/fetch-nats.sh, unless WALRELAY_TEST_NATS is set
#     scripts/bootstrap.sh faults    and libfaketime, where it is packaged: the fault suite works without it
#     scripts/bootstrap.sh ci        and Python's venv, for the linters, and PHP and Mono, where they are packaged:
#                                    examples without their language are skipped
#
# It installs with apt-get, as root or with a sudo that needs no password. Elsewhere it prints what
# to install and ends with status 1. It starts no server, leaves none running, and does not touch
# what is installed already.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'bootstrap: %s\n' "$*"; }
die() {
    printf 'bootstrap: %s\n' "$*" >&2
    exit 1
}

mode=${1:-build}
sink=${2:-}
case $mode in
    build) level=1 ;;
    demo) level=2 ;;
    test | faults) level=3 ;;
    ci) level=4 ;;
    *) die "'$mode' is not one of build, demo, test, faults, ci" ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }

# Rust is not installed: the user chooses how.
check_rust() {
    have cargo || die "cargo is not in PATH; install Rust with rustup (in ~/.cargo/bin when it is installed already)"
    # With rustup this fetches the toolchain of rust-toolchain.toml if it is missing.
    found=$(cargo --version) || die "cargo does not run"
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=${found#cargo }
    found=${found%% *}
    newest=$(printf '%s\n' "$wanted.0" "${found%%-*}" | sort -t . -k 1,1n -k 2,2n -k 3,3n | tail -n 1)
    [ "$newest" = "${found%%-*}" ] || die "Rust $wanted or newer is needed; this is $found"
}

# The places in which walrelay-throwaway looks for a server.
have_postgres() {
    if have postgres; then return 0; fi
    cache=$(scripts/cache-dir.sh 2>/dev/null) || cache=/nonexistent
    for postgres in \
        ${WALRELAY_POSTGRES_BIN:+"$WALRELAY_POSTGRES_BIN/postgres"} \
        /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres \
        /opt/homebrew/opt/postgresql@*/bin/postgres /usr/local/opt/postgresql@*/bin/postgres \
        "$cache"/postgres-*/bin/postgres; do
        if [ -x "$postgres" ]; then return 0; fi
    done
    return 1
}

have_java() {
    have java || return 1
    java=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${java:-0}" -ge 17 ]
}

# The names for which tests/e2e/page/browser.rs looks.
have_chromium() {
    [ -n "${WALRELAY_TEST_CHROMIUM:-}" ] || have chromium || have chromium-browser || have google-chrome
}

have_nats() {
    [ -n "${WALRELAY_TEST_NATS:-}" ] || ls "$(scripts/cache-dir.sh)"/nats-*/nats-server >/dev/null 2>&1
}

# The place in which walrelay-throwaway looks for an installed one.
have_rabbitmq() {
    for server in /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server; do
        if [ -x "$server" ] && [ -x /usr/lib/erlang/bin/epmd ]; then return 0; fi
    done
    return 1
}

# Servers that the environment names need no download.
servers_are_named() { [ -n "${WALRELAY_TEST_POSTGRES:-}" ] && [ -n "${WALRELAY_TEST_KAFKA:-}" ]; }

# Sets $missing to the Debian packages of the missing programs.
look() {
    missing=
    # librdkafka's configure script needs bash and a C++ compiler too.
    have bash || missing="$missing bash"
    have cc || missing="$missing gcc libc6-dev"
    have c++ || missing="$missing g++"
    have make || missing="$missing make"
    have pkg-config || missing="$missing pkg-config"
    pkg-config --exists openssl 2>/dev/null || missing="$missing libssl-dev"
    pkg-config --exists zlib 2>/dev/null || missing="$missing zlib1g-dev"
    if [ "$level" -ge 2 ]; then
        have_postgres || missing="$missing postgresql"
    fi
    if [ "$level" -ge 3 ] && ! servers_are_named; then
        have_java || missing="$missing java"
        have mvn || missing="$missing maven"
        have tar || missing="$missing tar"
        have xz || missing="$missing xz-utils"
    fi
    if [ "$level" -ge 3 ]; then
        have_chromium || missing="$missing chromium fonts-dejavu-core"
    fi
    # NATS comes by pip.
    if [ "$level" -ge 4 ] || { [ "$level" -ge 3 ] && ! have_nats; }; then
        python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
    fi
    missing=${missing# }
}

explain() {
    say "missing: $missing"
    if have apt-get; then
        say "install it with:  apt-get install --no-install-recommends $(printf '%s' "$missing" | sed 's/\<java\>/openjdk-17-jre-headless/')"
    elif have dnf; then
        say "install it with:  dnf install gcc gcc-c++ make pkgconf-pkg-config openssl-devel zlib-devel postgresql-server java-21-openjdk-headless maven xz chromium"
    elif have brew; then
        say "install it with:  xcode-select --install; brew install pkgconf openssl@3 postgresql@17 openjdk@21 maven xz; brew install --cask chromium"
    else
        say "those are Debian's names of the packages; your system has them by similar ones"
    fi
}

# The package of a Java of at least 17, in this release of the distribution.
java_package() {
    for version in 17 21 25; do
        if apt-cache show "openjdk-$version-jre-headless" >/dev/null 2>&1; then
            printf 'openjdk-%s-jre-headless' "$version"
            return
        fi
    done
    die "no package of Java 17 or newer is known here; install one and run this again"
}

drop_in=/etc/postgresql-common/createcluster.d/walrelay-bootstrap.conf
tidy() { $sudo rm -f "$drop_in"; }

apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 "$@"; }

install_missing() {
    say "installing: $missing"
    apt update
    packages=
    for name in $missing; do
        case $name in
            java) name=$(java_package) ;;
            postgresql)
                # Only the programs are needed. Debian's package would create a cluster and start
                # it.
                trap tidy EXIT
                trap 'exit 130' INT
                trap 'exit 143' TERM HUP
                $sudo mkdir -p "${drop_in%/*}"
                echo "create_main_cluster = false" | $sudo tee "$drop_in" >/dev/null
                ;;
        esac
        packages="$packages $name"
    done
    # shellcheck disable=SC2086 # words, on purpose
    apt install --no-install-recommends $packages
}

check_rust
look
if [ -n "$missing" ]; then
    sudo=
    if [ "$(id -u)" != 0 ]; then
        if have sudo && sudo -n true 2>/dev/null; then
            sudo=sudo
        else
            explain
            die "cannot install it: this is not root, and sudo is not there or asks for a password"
        fi
    fi
    if ! have apt-get; then
        explain
        die "cannot install it: only apt-get is known here"
    fi
    install_missing
    look
    [ -z "$missing" ] || die "still missing after the installation: $missing"
fi
if [ "$level" -ge 3 ] && ! servers_are_named; then
    scripts/fetch-servers.sh
fi
if [ "$level" -ge 3 ] && [ "${WALRELAY_TEST_RABBITMQ:-}" != skip ]; then
    scripts/fetch-rabbitmq.sh
fi
if [ "$mode $sink" = "demo rabbitmq" ] && ! have_rabbitmq; then
    scripts/fetch-rabbitmq.sh
fi
if [ "$level" -ge 3 ] && [ "${WALRELAY_TEST_REDIS:-}" != skip ]; then
    scripts/fetch-redis.sh
fi
if [ "$level" -ge 3 ] && [ -z "${WALRELAY_TEST_NATS:-}" ]; then
    scripts/fetch-nats.sh
fi
# Installs packages, if it can; without them a part of the tests is left out.
offer() { # name packages part
    # shellcheck disable=SC2086 # a list
    if [ "$(id -u)" != 0 ]; then
        say "$1 is not here: $3 (apt-get install $2)"
    elif sudo= && ! { apt update && apt install --no-install-recommends $2; }; then
        say "$1 cannot be installed: $3"
    fi
}
# Shifts the clock of one process. One fault needs it, and reports if it is missing.
if [ "$mode" = faults ] && [ ! -e "/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketimeMT.so.1" ] && have apt-get; then
    offer libfaketime libfaketime 'the clock will not jump'
fi
libraries='PhpAmqpLib Illuminate/Database Doctrine/DBAL'
has_php() {
    # shellcheck disable=SC2016 # of PHP
    # shellcheck disable=SC2086 # a list
    command -v php >/dev/null && php -r 'foreach (array_slice($argv, 1) as $of) { require "$of/autoload.php"; }' -- \
        $libraries >/dev/null 2>&1
}
if [ "$mode" = ci ] && have apt-get; then
    has_php || offer PHP 'php-cli php-pgsql php-amqplib php-illuminate-database php-doctrine-dbal' 'its examples are left out'
    scripts/has-mono.sh || offer Mono \
        'mono-mcs mono-runtime libmono-system-data4.0-cil libmono-posix4.0-cil libodbc2 odbc-postgresql' 'its examples are left out'
fi
say "all that '$mode' needs is here"
