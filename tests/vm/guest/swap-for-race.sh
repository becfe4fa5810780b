#!/bin/sh
# usage: swap-for-race.sh MIB DIRECTORY
#
# Give the machine what the race's courses under pressure need: a swap file, and Debian's systemd-oomd from the
# packages of DIRECTORY, which is started in its turns alone.
set -eu
file=/var/tmp/reactor-race-swap
if ! grep -q "^$file " /proc/swaps; then
  fallocate -l "$1M" "$file"
  chmod 600 "$file"
  mkswap --quiet "$file"
  swapon "$file"
fi
[ ! -x /usr/lib/systemd/systemd-oomd ] || exit 0
dpkg --install "$2"/*.deb
systemctl disable --now systemd-oomd.service systemd-oomd.socket
