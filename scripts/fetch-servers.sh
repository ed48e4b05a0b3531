#!/bin/sh
# Fetches the real servers that the tests, the demo and the benchmarks use, once:
#
#     scripts/fetch-servers.sh                     Kafka, axe-core, Postgres 14 to 18
#     scripts/fetch-servers.sh 14.20.0 16.11.0     Kafka, axe-core, and these versions of Postgres
#     scripts/fetch-servers.sh --list              where they are or would be; fetches nothing
#
# axe-core is no server: the test of the status page checks accessibility with it.
#
# They go to the directory that scripts/cache-dir.sh prints, with an archive of Kafka's classes. Needed:
# Maven, a JDK of 17 or newer, tar, xz. What is there already is not touched; concurrent runs wait for
# one another; an interrupted run leaves nothing that could pass for a complete server.
set -eu

kafka=4.1.0
log4j=2.24.3
axe=4.11.1
postgres_default='14.20.0 15.15.0 16.11.0 17.7.0 18.1.0'

say() { printf 'fetch-servers: %s\n' "$*"; }
die() {
    printf 'fetch-servers: %s\n' "$*" >&2
    exit 1
}

cache=$("$(dirname "$0")/cache-dir.sh")

list=no
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
versions=${*:-$postgres_default}

case $(uname -s) in
    Linux) system=linux ;;
    Darwin) system=darwin ;;
    *) die "there are no server binaries for $(uname -s); name running servers in WALRELAY_TEST_POSTGRES and WALRELAY_TEST_KAFKA" ;;
esac
case $(uname -m) in
    x86_64 | amd64) machine=amd64 ;;
    aarch64 | arm64) machine=arm64v8 ;;
    *) die "there are no server binaries for $(uname -m); name running servers in WALRELAY_TEST_POSTGRES and WALRELAY_TEST_KAFKA" ;;
esac

# Whether the directory is complete: its mark exists and names the requested version.
have() { [ -f "$cache/$1/.version" ] && [ "$(cat "$cache/$1/.version")" = "$2" ]; }

missing=
have "kafka-$kafka" "$kafka" || missing="kafka-$kafka"
have axe-core "$axe" || missing="$missing axe-core"
for version in $versions; do
    case $version in
        [0-9]*.[0-9]*.[0-9]*) ;;
        *) die "'$version' is no version of the Postgres binaries; they look like 15.15.0" ;;
    esac
    have "postgres-${version%%.*}" "$version" || missing="$missing postgres-$version"
done
if [ "$list" = yes ]; then
    say "cache: $cache; missing: ${missing:-nothing}"
    exit 0
fi
# The archive of Kafka's classes fits one JVM, the one that the tests run. Brokers also start without it.
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
jvm=$("$java" -version 2>&1 | cksum | tr ' ' -)
classes=kafka-$kafka-classes
if [ -z "$missing" ] &&
    { have "$classes" "$jvm" || ! command -v "$java" >/dev/null 2>&1 || ! [ -w "$cache" ]; }; then
    say "all there, in $cache"
    exit 0
fi

need() {
    command -v "$1" >/dev/null 2>&1 ||
        die "$1 is needed; on Debian and Ubuntu: apt-get install $2; on Fedora: dnf install $3; on macOS: brew install $4"
}
need "$java" openjdk-17-jdk-headless java-17-openjdk-headless openjdk@17
if [ -n "$missing" ]; then
    need mvn maven maven maven
    need xz xz-utils xz xz
    need tar tar tar gnu-tar
fi
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${version:-0}" -ge 17 ] || die "Kafka $kafka needs Java 17 or newer; this is Java ${version:-unknown}"

umask 022
mkdir -p "$cache" 2>/dev/null || die "cannot make $cache; name another directory in WALRELAY_CACHE"
[ -w "$cache" ] || die "cannot write to $cache; name another directory in WALRELAY_CACHE"

# The lock is a directory, which is created atomically and contains its owner's pid: flock(1) does
# not exist everywhere.
lock=$cache/.lock
work=
broker=
tidy() {
    if [ -n "$broker" ]; then kill -KILL "$broker" 2>/dev/null || true; fi
    if [ -n "$work" ]; then rm -rf "$work"; fi
    if [ "$(cat "$lock/pid" 2>/dev/null)" = "$$" ]; then rm -rf "$lock"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
told=no unowned=0
until mkdir "$lock" 2>/dev/null; do
    owner=$(cat "$lock/pid" 2>/dev/null || true)
    if [ -z "$owner" ]; then
        # Another run may be between its mkdir and writing its pid. After five seconds it is taken
        # for dead.
        unowned=$((unowned + 1))
    elif kill -0 "$owner" 2>/dev/null; then
        unowned=0
        if [ "$told" = no ]; then
            say "waiting for another run (process $owner)"
            told=yes
        fi
    else
        unowned=99
    fi
    if [ "$unowned" -ge 5 ]; then
        # Move it aside first: of two waiting runs one succeeds, and neither can remove a new lock.
        if mv "$lock" "$lock.dead.$$" 2>/dev/null; then rm -rf "$lock.dead.$$"; fi
        unowned=0
        continue
    fi
    sleep 1
done
printf '%s\n' "$$" >"$lock/pid"
work=$(mktemp -d "$cache/.fetch.XXXXXX")

# Moves a finished directory to its place, in one step.
install_dir() { # built name version
    printf '%s\n' "$3" >"$1/.version"
    chmod -R a+rX "$1"
    rm -rf "${cache:?}/$2.old"
    if [ -e "$cache/$2" ]; then mv "$cache/$2" "$cache/$2.old"; fi
    mv "$1" "$cache/$2"
    rm -rf "${cache:?}/$2.old"
    say "$cache/$2 is ready"
}

maven() {
    mvn -B -q -f "$work/pom.xml" "$@" >"$work/mvn.log" 2>&1 || {
        cat "$work/mvn.log" >&2
        die "Maven could not fetch it (see above); behind a proxy or mirror, see ~/.m2/settings.xml"
    }
}

pom() { # dependencies
    cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>walrelay.test</groupId>
  <artifactId>servers</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>$1</dependencies>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId>
    <artifactId>maven-dependency-plugin</artifactId>
    <version>3.8.1</version>
  </plugin></plugins></build>
</project>
POM
}

# Excludes all transitive dependencies.
alone='<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>'

dependency() { # group artifact version
    printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' "$@"
}

if ! have "kafka-$kafka" "$kafka"; then
    say "fetching Apache Kafka $kafka (43 MB)"
    pom "$(dependency org.apache.kafka kafka_2.13 "$kafka")$(dependency org.apache.logging.log4j log4j-slf4j-impl "$log4j")"
    maven dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/kafka/libs"
    [ -f "$work/kafka/libs/kafka_2.13-$kafka.jar" ] || die "Maven fetched no kafka_2.13-$kafka.jar"
    install_dir "$work/kafka" "kafka-$kafka" "$kafka"
    # The JVM rejects the archive of other files.
    rm -rf "${cache:?}/$classes"
fi

# Loads Kafka's classes once and writes them to an archive of the JVM (class data sharing): with it a broker
# needs half the computing time to start.
archive_classes() {
    port=$((20000 + $$ % 10000))
    printf '%s\n' process.roles=broker,controller node.id=1 "controller.quorum.voters=1@127.0.0.1:$port" \
        "listeners=CONTROLLER://127.0.0.1:$port,PLAINTEXT://127.0.0.1:$((port + 1))" \
        controller.listener.names=CONTROLLER "log.dirs=$work/data" >"$work/server.properties"
    set -- -Xmx384m -XX:+UseSerialGC -Dlog4j2.level=INFO -cp "$cache/kafka-$kafka/libs/*"
    "$java" "$@" kafka.tools.StorageTool format -t d2FscmVsYXktdGVzdGtpdA -c "$work/server.properties" \
        >"$work/classes.log" 2>&1 || return 1
    "$java" "-XX:ArchiveClassesAtExit=$work/classes/classes.jsa" "$@" kafka.Kafka "$work/server.properties" \
        >>"$work/classes.log" 2>&1 &
    broker=$!
    seconds=0
    while [ "$seconds" -lt 120 ] && kill -0 "$broker" 2>/dev/null; do
        if grep -q 'Kafka Server started' "$work/classes.log"; then kill "$broker" 2>/dev/null || true; fi
        seconds=$((seconds + 1))
        sleep 1
    done
    kill -KILL "$broker" 2>/dev/null || true
    wait "$broker" || true
    broker=
    [ -f "$work/classes/classes.jsa" ]
}
if ! have "$classes" "$jvm"; then
    say "archiving Kafka's classes for this JVM"
    mkdir "$work/classes"
    # A failure is remembered, too: an empty directory.
    archive_classes || { say "no archive was written, so brokers start more slowly:"; tail -n 20 "$work/classes.log"; }
    install_dir "$work/classes" "$classes" "$jvm"
fi

if ! have axe-core "$axe"; then
    say "fetching axe-core $axe (0.2 MB)"
    # It is published for browser drivers; the script is in that archive.
    named=$(dependency com.deque.html.axe-core selenium "$axe")
    pom "${named%</dependency>}$alone</dependency>"
    maven dependency:unpack-dependencies -Dmdep.unpack.includes=axe.min.js -DoutputDirectory="$work/axe-core"
    [ -f "$work/axe-core/axe.min.js" ] || die "axe-core $axe holds no axe.min.js"
    install_dir "$work/axe-core" axe-core "$axe"
fi

for version in $versions; do
    major=${version%%.*}
    if have "postgres-$major" "$version"; then continue; fi
    artifact=embedded-postgres-binaries-$system-$machine
    say "fetching PostgreSQL $version for $system-$machine (15 MB)"
    pom "$(dependency io.zonky.test.postgres "$artifact" "$version")"
    maven dependency:unpack-dependencies -DoutputDirectory="$work/jar-$major"
    archive=$(find "$work/jar-$major" -name '*.txz' | head -n 1)
    [ -n "$archive" ] || die "$artifact $version holds no archive of binaries"
    mkdir "$work/postgres-$major"
    xz -dc "$archive" | tar -x -f - -C "$work/postgres-$major" --no-same-owner
    found=$("$work/postgres-$major/bin/postgres" --version) ||
        die "the fetched postgres does not run on this machine"
    case $found in
        *" $major."*) ;;
        *) die "asked for PostgreSQL $version and got: $found" ;;
    esac
    install_dir "$work/postgres-$major" "postgres-$major" "$version"
done
say "all there, in $cache"
