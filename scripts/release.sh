#!/usr/bin/env bash
# Makes the release files of the commit that is checked out, in dist/:
#
#     scripts/release.sh            all of them, for the architecture of this machine
#     scripts/release.sh --again    makes them again, in another folder, and compares them with dist/ byte by byte
#     TARGETS="x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu" scripts/release.sh
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
# once. For another architecture than that of the machine, Debian's cross compiler (g++-aarch64-linux-gnu) and
# qemu-user-static too: the program links that architecture's libraries (scripts/cross-sysroot.sh), and writes its
# manual pages and completions, so a program that does not run ends the script.
#
# The program links OpenSSL 3 and zlib of the system dynamically: a copy inside it would get no security updates
# (deny.toml). So it needs a system that has OpenSSL 3, and thereby glibc 2.34 or newer; the script checks that the
# program asks for no newer one. A musl build would need that copy (docs/adr/0074-glibc-and-the-systems-openssl.md).
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

host=$(rustc -vV | sed -n 's/^host: //p')
read -ra targets <<<"${TARGETS:-$host}"

# What another architecture needs: its compiler, and an emulator.
needs() { # program package
    command -v "$1" >/dev/null || die "$1 is needed for $target: apt-get install $2"
}
for target in "${targets[@]}"; do
    case $target in
        "$host") continue ;;
        *-unknown-linux-gnu) ;;
        *) die "$target is not of Linux with glibc" ;;
    esac
    cpu=${target%%-*}
    needs "$cpu-linux-gnu-gcc" "g++-${cpu//_/-}-linux-gnu"
    needs "$cpu-linux-gnu-g++" "g++-${cpu//_/-}-linux-gnu"
    needs "qemu-$cpu-static" qemu-user-static
    [ -d "$(rustc --print target-libdir --target "$target")" ] || die "there is no std of $target: rustup target add $target"
done

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

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
epoch=$(git log -1 --format=%ct)
commit=$(git log -1 --format='%h %cs')

# An archive that depends on the files' names, contents and modes alone.
archive() { # folder file
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu \
        -C "${1%/*}" -cf - "${1##*/}" | gzip -9n >"$2"
}

# Makes cargo, and the build scripts of C libraries, build for a target, and sets `runner` to what runs its programs.
# Build scripts themselves run here: HOST_CC.
runner=()
compile_for() { # target
    [ "$1" != "$host" ] || return 0
    local cpu=${1%%-*} variable=${1^^} root
    case $cpu in
        aarch64) root=$(scripts/cross-sysroot.sh arm64) ;;
        x86_64) root=$(scripts/cross-sysroot.sh amd64) ;;
        *) die "how Debian calls $cpu is not known" ;;
    esac
    export CC=$cpu-linux-gnu-gcc CXX=$cpu-linux-gnu-g++ AR=$cpu-linux-gnu-ar HOST_CC=cc HOST_CXX=c++ HOST_AR=ar
    export "CARGO_TARGET_${variable//-/_}_LINKER=$CC"
    export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/usr/lib/$cpu-linux-gnu/pkgconfig
    export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
    # libz-sys builds a zlib of its own if its test program does not link: it asks only the compiler where zlib is.
    CFLAGS+=" -ffile-prefix-map=$root=sysroot -L$root/usr/lib/$cpu-linux-gnu"
    CXXFLAGS=$CFLAGS
    runner=("qemu-$cpu-static" -L "$root")
}

make_target() { # work out target
    local work=$1 out=$2 target=$3 source=$1/source build=$1/target name=walrelay-$version-$3
    local stage=$1/$name release=$1/target/$3/release file
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
        compile_for "$target"
        cargo auditable build --quiet --locked --release -p walrelay --target "$target"
        file=$release/walrelay
        newest=$(readelf --version-info --wide "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
        [ "$(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] ||
            die "the program needs $newest: build it on an older system, such as Debian 12"
        # What the manifests of both packages name; libm and the loader come with libc.
        local libraries
        libraries=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            grep -v -e '^libm\.' -e '^ld-linux' | sort | tr '\n' ' ')
        [ "$libraries" = "libc.so.6 libcrypto.so.3 libgcc_s.so.1 libssl.so.3 libz.so.1 " ] ||
            die "the program needs $libraries, and the packages name others"
        newest=$(readelf --version-info --wide "$file" | grep -o 'OPENSSL_[0-9.]*' | sort -Vu | tail -n 1)
        [ "$newest" = OPENSSL_3.0.0 ] || die "the program needs $newest, and the packages name OPENSSL_3.0.0"

        # `target/release` of the manifest is this folder, for both.
        local package=$release/package
        mkdir -p "$package/man" "$package/completions"
        "${runner[@]}" "$file" man "$package/man"
        gzip -9n "$package/man"/*
        "${runner[@]}" "$file" completions bash >"$package/completions/walrelay.bash"
        "${runner[@]}" "$file" completions zsh >"$package/completions/_walrelay"
        "${runner[@]}" "$file" completions fish >"$package/completions/walrelay.fish"

        mkdir -p "$stage/systemd"
        cp "$file" LICENSE-MIT LICENSE-APACHE CHANGELOG.md deploy/walrelay.toml "$stage/"
        cp -r "$package/man" "$package/completions" "$stage/"
        cp deploy/systemd/*.service "$stage/systemd/"
        archive "$stage" "$out/$name.tar.gz"

        cargo-deb --quiet -p walrelay --target "$target" --no-build --no-strip --output "$out/"
        cargo-generate-rpm generate-rpm -p crates/walrelay --target "$target" --target-dir "$build" \
            --payload-compress gzip --source-date "$epoch" --output "$out/"

        cargo cyclonedx --quiet --manifest-path crates/walrelay/Cargo.toml --format json --target "$target" \
            --override-filename walrelay.cdx
        sed "s|file://$source|file:///walrelay|g" crates/walrelay/walrelay.cdx.json >"$out/$name.cdx.json"
    )
    say "$target: the program has $(stat --format %s "$release/walrelay") bytes"
}

make_files() { # work out
    mkdir -p "$2"
    git clone --quiet --no-hardlinks . "$1/source"
    git -C "$1/source" checkout --quiet --detach "$(git rev-parse HEAD)"
    local target
    for target in "${targets[@]}"; do make_target "$1" "$2" "$target"; done
    (cd "$2" && sha256sum -- walrelay* >SHA256SUMS)
}

work=$(mktemp -d "${TMPDIR:-/tmp}/walrelay-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ "$again" = yes ]; then
    say "building for ${targets[*]} in another folder"
    make_files "$work/again" "$work/files"
    diff -r "$dist" "$work/files" || die "two builds of this commit differ"
    say "two builds are alike, byte by byte"
    exit
fi
rm -rf "$dist"
say "building for ${targets[*]}"
make_files "$work/first" "$dist"
(cd "$dist" && stat --format '%10s  %n' -- *)
say "all in dist/"
