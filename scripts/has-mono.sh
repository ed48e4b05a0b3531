#!/bin/sh
# Ends with status 0 if the machine has all that the examples in C# need: Mono, and ODBC for Postgres.
set -eu

for program in mcs mono; do command -v "$program" >/dev/null; done
for library in System.Data System.Transactions Mono.Posix; do [ -e "/usr/lib/mono/4.5/$library.dll" ]; done
ls /usr/lib/*/libodbc.so.2 >/dev/null 2>&1
grep -qs '^.PostgreSQL Unicode' /etc/odbcinst.ini
