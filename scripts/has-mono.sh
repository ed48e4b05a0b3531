#!/bin/sh
# Ends with status 0 if the machine has all that the example in C# needs: Mono, and ODBC for Postgres.
set -eu

for program in mcs mono; do command -v "$program" >/dev/null; done
[ -e /usr/lib/mono/4.5/System.Data.dll ]
[ -e /usr/lib/mono/4.5/Mono.Posix.dll ]
ls /usr/lib/*/libodbc.so.2 >/dev/null 2>&1
grep -qs '^.PostgreSQL Unicode' /etc/odbcinst.ini
