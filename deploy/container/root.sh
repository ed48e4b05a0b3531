#!/bin/sh
# Assembles the file system of the image in a folder: the program, the libraries that it links, the certificates of
# public authorities, an account. No shell, no package manager.
#
#     deploy/container/root.sh PROGRAM FOLDER
set -eu

program=$1
root=$2

mkdir -p "$root/usr/bin" "$root/usr/lib/ssl" "$root/etc/ssl" "$root/etc/walrelay" "$root/var/lib/walrelay" "$root/tmp"
cp "$program" "$root/usr/bin/walrelay"
# Each by the path that the program's loader looks at, which may be a link.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done
cp -rL /etc/ssl/certs "$root/etc/ssl/"
# The folder in which Debian's OpenSSL looks for them, for librdkafka.
ln -s /etc/ssl/certs "$root/usr/lib/ssl/certs"
printf 'walrelay:x:10001:10001:walrelay:/var/lib/walrelay:/usr/sbin/nologin\n' >"$root/etc/passwd"
printf 'walrelay:x:10001:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chmod 1777 "$root/tmp"
# A state file may be there, on a volume that takes the owner of this folder.
chown 10001:10001 "$root/var/lib/walrelay"
