#!/bin/sh
# Fetch Debian's stress-ng, and what it needs and this machine lacks, unpacked and never installed.
#
# usage: fetch-stress-ng.sh DIRECTORY    afterwards DIRECTORY/root/usr/bin/stress-ng is there
set -eu

directory=$1
[ ! -x "$directory/root/usr/bin/stress-ng" ] || exit 0
mkdir -p "$directory/debs/partial"
debs=$(readlink -f "$directory/debs")
timeout 300 apt-get -qq -o Dir::Cache::Archives="$debs" -o Debug::NoLocking=1 -o APT::Sandbox::User=root \
  install --yes --download-only --no-install-recommends stress-ng >&2
for package in "$debs"/*.deb; do dpkg-deb -x "$package" "$directory/root"; done
