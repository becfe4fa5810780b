#!/bin/sh
# Fetch Debian's source package of Kubernetes 1.20.2 and unpack it, once.
#
# usage: kubernetes-source.sh GOPATH        the source is GOPATH/src/k8s.io/kubernetes afterwards
#
# What the package holds is checked by apt against the archive's signature.
set -eu
SUITE=bookworm

go_path=$1
[ ! -d "$go_path/src/k8s.io/kubernetes" ] || exit 0
mkdir -p "$go_path/src/k8s.io"
work=$(mktemp -d "$go_path/source-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Lists of our own: the machine's sources stay as they are, and may have no deb-src.
mkdir -p "$work/lists/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keyring] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $SUITE main" >"$work/sources.list"
apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=-
  -o Dir::State::Lists=$work/lists -o APT::Sandbox::User=root"
cd "$work"
# shellcheck disable=SC2086  # a list of words
$apt update && $apt source kubernetes
mv "$work"/kubernetes-*/ "$go_path/src/k8s.io/kubernetes"  # whole or not at all
