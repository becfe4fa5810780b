#!/bin/sh
# Build the oracle once: upstream's own eviction and image packages, with a test program of ours inside each.
#
# usage: build-oracle.sh        print the directory that holds eviction.test and images.test
#
# The source is Debian's package of Kubernetes 1.20.2. XDG_CACHE_HOME moves the cache; KEEP=1 keeps source and Go's
# build cache in it, for those who change the test programs. Progress goes to stderr and, in full, to build.log in
# the cache. Two cores need five minutes, 1 GB of disk during the build and 110 MB afterwards.
set -eu

HERE=$(cd "$(dirname "$0")" && pwd)
GO=${GO:-/usr/lib/go-1.19/bin}
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/reactor/upstream"
# What is built from other programs, or from another source, is another.
OUT="$CACHE/oracle-$(cat "$HERE"/go/*.go "$HERE/../kube/kubernetes-source.sh" | sha256sum | cut -c1-16)"

say() { echo "upstream: $*" >&2; }

if [ -x "$OUT/eviction.test" ] && [ -x "$OUT/images.test" ]; then
  echo "$OUT"
  exit 0
fi
"$HERE/../kube/install-packages.sh" --build

mkdir -p "$CACHE"
exec 9>"$CACHE/lock"
flock 9  # a second caller waits and then finds the result
if [ -x "$OUT/eviction.test" ]; then
  echo "$OUT"
  exit 0
fi

LOG="$CACHE/build.log"
trap 'status=$?; [ $status -eq 0 ] || { tail -n 20 "$LOG" >&2; say "the build failed: $LOG"; }' EXIT
trap 'exit 130' INT TERM
: >"$LOG"

say "fetching the source of kubernetes from Debian"
"$HERE/../kube/kubernetes-source.sh" "$CACHE/go" >>"$LOG" 2>&1
tree="$CACHE/go/src/k8s.io/kubernetes"
cp "$HERE/go/eviction_differential_test.go" "$tree/pkg/kubelet/eviction/"
cp "$HERE/go/images_differential_test.go" "$tree/pkg/kubelet/images/"

export GOPATH="$CACHE/go" GO111MODULE=off GOFLAGS= GOCACHE="$CACHE/cache" CGO_ENABLED=0 PATH="$GO:$PATH"
mkdir -p "$OUT.part"
cd "$tree"
for package in eviction images; do
  say "building $package ($LOG)"
  nice -n 19 go test -c -o "$OUT.part/$package.test" "./pkg/kubelet/$package" >>"$LOG" 2>&1
done
rm -rf "$CACHE"/oracle-????????????????
mv "$OUT.part" "$OUT"  # whole or not at all
if [ -z "${KEEP:-}" ]; then
  chmod -R u+w "$CACHE/go"
  rm -rf "$CACHE/go" "$CACHE/cache"
fi
say "built: eviction.test images.test"
echo "$OUT"
