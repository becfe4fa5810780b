#!/bin/sh
# Build kube-apiserver and kubelet once, from Debian's source package, into a cache outside the checkout.
#
# usage: build-kubernetes.sh        print the directory that holds the programs, having built them if need be
#
# KUBEBUILDER_ASSETS names a directory with programs of one's own (kube-apiserver, kubelet): nothing is built.
# XDG_CACHE_HOME moves the cache. Progress goes to stderr and, in full, to build.log in the cache. Two cores need
# ten to twenty minutes, 5 GB of disk during the build and 330 MB afterwards.
set -eu

HERE=$(cd "$(dirname "$0")" && pwd)
VERSION=1.20.2
PROGRAMS="kube-apiserver kubelet kube-controller-manager"
GO=${GO:-/usr/lib/go-1.19/bin}
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/reactor/kube"
BIN="$CACHE/kubernetes-$VERSION-reflect2-1.0.2"  # programs built from another source are others

say() { echo "kube: $*" >&2; }
fail() { say "$*"; exit 1; }

complete() { # DIRECTORY PROGRAM...: it holds each of them
  directory=$1
  shift
  for program; do
    [ -x "$directory/$program" ] || return 1
  done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  # Without kube-controller-manager its tests are skipped.
  complete "$KUBEBUILDER_ASSETS" kube-apiserver kubelet ||
    fail "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks one of: kube-apiserver kubelet"
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi
if complete "$BIN" $PROGRAMS; then
  echo "$BIN"
  exit 0
fi

for tool in "$GO/go" gcc make rsync dpkg-source apt-get flock; do
  command -v "$tool" >/dev/null || fail "no $tool: run tests/kube/install-packages.sh as root"
done

mkdir -p "$CACHE"
exec 9>"$CACHE/lock"
flock 9  # a second caller waits and then finds the result
if complete "$BIN" $PROGRAMS; then
  echo "$BIN"
  exit 0
fi

WORK="$CACHE/build"
LOG="$CACHE/build.log"
mkdir -p "$WORK/go"  # of a build that was interrupted: what it compiled is kept
trap 'status=$?; [ $status -eq 0 ] || { tail -n 20 "$LOG" >&2; say "the build failed: $LOG"; }' EXIT
trap 'exit 130' INT TERM

say "fetching the source of kubernetes from Debian"
"$HERE/kubernetes-source.sh" "$WORK/go" >"$LOG" 2>&1

cd "$WORK/go/src/k8s.io/kubernetes"
# Without git the version comes from this file; the API server tells it and clients compare it.
cat >"$WORK/version" <<END
KUBE_GIT_COMMIT=unknown
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=v$VERSION
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
END
export GOPATH="$WORK/go" GO111MODULE=off GOFLAGS= GOCACHE="$WORK/cache" CGO_ENABLED=0 \
  KUBE_GIT_VERSION_FILE="$WORK/version" PATH="$GO:$PATH"

say "generating code ($LOG)"
nice -n 19 make generated_files >>"$LOG" 2>&1

ldflags="-s -w"
for package in k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version \
  k8s.io/kubernetes/vendor/k8s.io/component-base/version; do
  ldflags="$ldflags -X $package.gitVersion=v$VERSION -X $package.gitMajor=1 -X $package.gitMinor=20
    -X $package.gitTreeState=archive -X $package.buildDate=1970-01-01T00:00:00Z"
done
mkdir -p "$WORK/bin"
for program in $PROGRAMS; do
  say "building $program"
  nice -n 19 go build -trimpath -ldflags "$(echo $ldflags)" -o "$WORK/bin/$program" "./cmd/$program" >>"$LOG" 2>&1
done

rm -rf "$CACHE/kubernetes-$VERSION" "$BIN"
mv "$WORK/bin" "$BIN"  # whole or not at all
chmod -R u+w "$WORK"
rm -rf "$WORK"
say "built: $(echo $PROGRAMS)"
echo "$BIN"
