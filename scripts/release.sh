#!/usr/bin/env bash
# Makes the release files of the commit that is checked out, for the architecture of this machine, in dist/:
#
#     scripts/release.sh            all of them
#     scripts/release.sh --again    makes them again, in another folder, and compares them with dist/ byte by byte
#
#     walrelay-VERSION-TARGET.tar.gz    the program, manual pages, completions, units, a configuration
#     walrelay_VERSION-1_ARCH.deb       Debian 12 and newer, Ubuntu 22.04 and newer
#     walrelay-VERSION-1.ARCH.rpm       RHEL 9 and newer, Fedora
#     walrelay-VERSION-TARGET.cdx.json  its dependencies (CycloneDX)
#     SHA256SUMS
#
# Only committed files count: the script works in clones of the repository. The build is repeatable: no path of
# this machine, no clock and no account is in a file. Needed: what `scripts/bootstrap.sh build` installs, and the
# tools below, which cargo installs into $WALRELAY_RELEASE_TOOLS (else ${XDG_CACHE_HOME:-~/.cache}/walrelay-release)
# once.
#
# The program links OpenSSL 3 and zlib of the system dynamically: a copy inside it would get no security updates
# (deny.toml). So it needs a system that has OpenSSL 3, and thereby glibc 2.34 or newer; the script checks that the
# program asks for no newer one. A musl build would need that copy.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo_auditable=0.7.7
cargo_cyclonedx=0.5.9
cargo_deb=3.8.0
cargo_generate_rpm=0.21.1
glibc=2.34

say() { printf 'release: %s\n' "$*"; }
die() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

tools=${WALRELAY_RELEASE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/walrelay-release}
dist=$PWD/dist
again=no
case ${1:-} in
    '') ;;
    --again) again=yes ;;
    *) die "'$1' is not --again" ;;
esac
[ "$again" = no ] || [ -e "$dist/SHA256SUMS" ] || die "there is nothing in dist/ to compare with"

[ -z "$(git status --porcelain)" ] || die "there are uncommitted changes, which a release would not have"

# --- The tools, of pinned versions.

install_tool() { # name version
    local name=$1 version=$2
    if "$tools/bin/$name" --version 2>/dev/null | grep -qF "$version"; then return; fi
    if cargo install --list --root "$tools" 2>/dev/null | grep -qF "$name v$version:"; then return; fi
    say "installing $name $version"
    # Somewhat optimised: they compress much, and are built once.
    CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo install --quiet --locked --debug --root "$tools" "$name@$version"
}

install_tool cargo-auditable "$cargo_auditable"
install_tool cargo-cyclonedx "$cargo_cyclonedx"
install_tool cargo-deb "$cargo_deb"
install_tool cargo-generate-rpm "$cargo_generate_rpm"

# --- One build, in a clone.

target=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
epoch=$(git log -1 --format=%ct)
commit=$(git log -1 --format='%h %cs')
name=walrelay-$version-$target

# An archive that depends on the files' names, contents and modes alone.
archive() { # folder file
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu \
        -C "${1%/*}" -cf - "${1##*/}" | gzip -9n >"$2"
}

make_files() { # work out
    local work=$1 out=$2 source=$1/source build=$1/target stage=$1/$name file
    mkdir -p "$out"
    git clone --quiet --no-hardlinks . "$source"
    git -C "$source" checkout --quiet --detach "$(git rev-parse HEAD)"
    (
        cd "$source"
        export SOURCE_DATE_EPOCH=$epoch WALRELAY_COMMIT=$commit TZ=UTC LC_ALL=C CARGO_INCREMENTAL=0
        export CARGO_TARGET_DIR=$build PATH=$tools/bin:$PATH
        unset CARGO_BUILD_TARGET
        umask 022
        # Messages of panics, and C's __FILE__, have paths.
        local cargo_home=${CARGO_HOME:-$HOME/.cargo}
        export RUSTFLAGS="--remap-path-prefix=$source=walrelay --remap-path-prefix=$cargo_home=cargo --remap-path-prefix=$build=target"
        export CFLAGS="-ffile-prefix-map=$source=walrelay -ffile-prefix-map=$cargo_home=cargo -ffile-prefix-map=$build=target"
        export CXXFLAGS=$CFLAGS
        cargo auditable build --quiet --locked --release -p walrelay
        file=$build/release/walrelay
        newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
        [ "$(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] ||
            die "the program needs $newest: build it on an older system, such as Debian 12"

        local package=$build/release/package
        mkdir -p "$package/man" "$package/completions"
        "$file" man "$package/man"
        gzip -9n "$package/man"/*
        "$file" completions bash >"$package/completions/walrelay.bash"
        "$file" completions zsh >"$package/completions/_walrelay"
        "$file" completions fish >"$package/completions/walrelay.fish"

        mkdir -p "$stage/systemd"
        cp "$file" LICENSE-MIT LICENSE-APACHE CHANGELOG.md deploy/walrelay.toml "$stage/"
        cp -r "$package/man" "$package/completions" "$stage/"
        cp deploy/systemd/*.service "$stage/systemd/"
        archive "$stage" "$out/$name.tar.gz"

        cargo-deb --quiet -p walrelay --no-build --no-strip --output "$out/"
        cargo-generate-rpm generate-rpm -p crates/walrelay --target-dir "$build" --payload-compress gzip \
            --source-date "$epoch" --output "$out/"

        cargo cyclonedx --quiet --manifest-path crates/walrelay/Cargo.toml --format json --target "$target" \
            --override-filename walrelay.cdx
        sed "s|file://$source|file:///walrelay|g" crates/walrelay/walrelay.cdx.json >"$out/$name.cdx.json"
    )
    (cd "$out" && sha256sum -- walrelay* >SHA256SUMS)
}

work=$(mktemp -d "${TMPDIR:-/tmp}/walrelay-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ "$again" = yes ]; then
    say "building $name in another folder"
    make_files "$work/again" "$work/files"
    diff -r "$dist" "$work/files" || die "two builds of this commit differ"
    say "two builds are alike, byte by byte"
    exit
fi
rm -rf "$dist"
say "building $name"
make_files "$work/first" "$dist"
(cd "$dist" && stat --format '%10s  %n' -- *)
say "all in dist/; the program itself has $(tar -xOzf "$dist/$name.tar.gz" "$name/walrelay" | wc -c) bytes"
