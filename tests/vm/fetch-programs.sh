#!/bin/sh
# Fetch what the runtime's tests need in a guest beside the wheel, from a Debian suite's own packages: unpacked
# side by side, not installed, and without what they depend on, which the boxes have.
#
# usage: fetch-programs.sh SUITE DIRECTORY    DIRECTORY has the programs afterwards, and is not touched if it has
set -eu

suite=${1%-backports}
directory=$2
programs="containerd containerd-shim-runc-v2 ctr runc busybox"

[ ! -d "$directory" ] || exit 0
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
# Lists of our own: the host's sources stay as they are.
mkdir -p "$work/lists/partial" "$work/programs"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main" >"$work/sources.list"
apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=-
  -o Dir::State::Lists=$work/lists -o APT::Sandbox::User=root"
# shellcheck disable=SC2086  # a list of words
(cd "$work" && timeout 120 $apt update && timeout 300 $apt download containerd runc busybox-static) >&2
for package in "$work"/*.deb; do
  dpkg-deb -x "$package" "$work/unpacked"
done
for program in $programs; do
  found=$(find "$work/unpacked" -path '*bin/*' -name "$program" -type f)
  [ -n "$found" ] || { echo "vm: no $program in $suite's packages" >&2; exit 1; }
  mv "$found" "$work/programs/"
done
mv "$work/programs" "$directory"  # whole or not at all
