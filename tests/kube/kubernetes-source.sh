#!/bin/sh
# Fetch Debian's source package of Kubernetes 1.20.2 and unpack it, once.
#
# usage: kubernetes-source.sh GOPATH        the source is GOPATH/src/k8s.io/kubernetes afterwards
#
# What the packages hold is checked by apt against the archive's signature. The vendored reflect2 1.0.1 declares
# reflect.mapiterinit without the parameter that it has since Go 1.18, so that each iteration of a map writes through
# a stray argument: Debian's reflect2 1.0.2, which has both declarations, takes its place.
set -eu
SUITE=bookworm

go_path=$1
tree="$go_path/src/k8s.io/kubernetes"
reflect2=vendor/github.com/modern-go/reflect2
[ ! -e "$tree/$reflect2/go_above_118.go" ] || exit 0  # a tree without it is one of before
[ ! -d "$tree" ] || chmod -R u+w "$tree"
rm -rf "$tree"
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
$apt update && $apt source kubernetes golang-github-modern-go-reflect2
(cd kubernetes-*/$reflect2 && rm ./*.go ./*.s)
cp golang-github-modern-go-reflect2-1.0.2/*.go golang-github-modern-go-reflect2-1.0.2/*.s kubernetes-*/$reflect2/
mv "$work"/kubernetes-*/ "$tree"  # whole or not at all
