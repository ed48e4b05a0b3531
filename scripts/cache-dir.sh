#!/bin/sh
# Prints the directory of fetched servers: $WALRELAY_CACHE, else /var/cache/walrelay for root (servers
# run as an unprivileged account, which must be able to read them), else
# ${XDG_CACHE_HOME:-~/.cache}/walrelay. The crate walrelay-throwaway has the same rule.
set -eu

if [ -n "${WALRELAY_CACHE:-}" ]; then
    echo "$WALRELAY_CACHE"
elif [ "$(id -u)" = 0 ]; then
    echo /var/cache/walrelay
elif [ -n "${XDG_CACHE_HOME:-}" ]; then
    echo "$XDG_CACHE_HOME/walrelay"
else
    echo "${HOME:?"neither HOME nor WALRELAY_CACHE is set"}/.cache/walrelay"
fi
