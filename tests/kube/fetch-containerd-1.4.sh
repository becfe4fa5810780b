#!/bin/sh
# Fetch containerd 1.4, the last that speaks the CRI's v1alpha2 alone, from Debian 11's package into a cache; it is
# unpacked, not installed, and runs beside the machine's own.
#
# usage: fetch-containerd-1.4.sh        print the directory that holds containerd and its shims
#
# DEBIAN_MIRROR names another mirror: http://archive.debian.org/debian, once the others have it no more.
set -eu

SUITE=bullseye
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/reactor/kube"
BIN="$CACHE/containerd-1.4/usr/bin"

if [ -x "$BIN/containerd" ]; then
  echo "$BIN"
  exit 0
fi
mkdir -p "$CACHE"
exec 9>"$CACHE/containerd.lock"
flock 9  # a second caller waits and then finds the result
work=$(mktemp -d "$CACHE/containerd.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
# Lists of our own: the machine's sources stay as they are.
mkdir -p "$work/lists/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $SUITE main" >"$work/sources.list"
apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=-
  -o Dir::State::Lists=$work/lists -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false"
# shellcheck disable=SC2086  # a list of words
(cd "$work" && timeout 120 $apt update && timeout 300 $apt download containerd/$SUITE) >&2
dpkg-deb -x "$work"/containerd_*.deb "$work/unpacked"
rm -rf "$CACHE/containerd-1.4"
mv "$work/unpacked" "$CACHE/containerd-1.4"  # whole or not at all
echo "$BIN"
