#!/bin/sh
# Fetch packages of a Debian suite, and what they depend on and a machine lacks, as a repository that its apt can use.
#
# usage: fetch-packages.sh SUITE STATUS DIRECTORY PACKAGE...    STATUS: the machine's /var/lib/dpkg/status; DIRECTORY
#        has the packages and their index afterwards, and is not touched if it is there
set -eu

suite=${1%-backports} status=$(readlink -f "$2") directory=$3
shift 3

[ ! -d "$directory" ] || exit 0
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
# Lists and status of our own: the host's stay as they are.
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main" >"$work/sources.list"
apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=-
  -o Dir::State::Lists=$work/lists -o Dir::State::Status=$status -o Dir::Cache=$work/cache -o Debug::NoLocking=1
  -o APT::Sandbox::User=root -o APT::Install-Recommends=false"
# shellcheck disable=SC2086  # a list of words
timeout 120 $apt update >&2
# shellcheck disable=SC2086
timeout 500 $apt install --yes --download-only "$@" >&2
cd "$work/cache/archives"
dpkg-scanpackages --multiversion . 2>/dev/null >Packages
rm -rf partial lock
chmod 755 .
mv "$work/cache/archives" "$directory"  # whole or not at all
