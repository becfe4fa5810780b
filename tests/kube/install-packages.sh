#!/bin/sh
# Install what the Kubernetes tests need, from Debian's own packages; nothing where all of it is there.
# Run by `make test-kube`, and by `make test-upstream` with the packages that building alone takes (`--build`).
# The services that the packages bring are not used, nor left running.
set -eu
build="golang-1.19-go dpkg-dev debian-archive-keyring"
packages="etcd-server containerd runc busybox-static
  $build gcc libc6-dev make rsync
  openssl mmdebstrap"
command -v kubectl >/dev/null || packages="$packages kubernetes-client"  # not where another kubectl is there
[ "${1:-}" != --build ] || packages=$build

missing=""
for package in $packages; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

[ "$(id -u)" -eq 0 ] || { echo "kube: missing$missing; as root: apt-get install --no-install-recommends$missing" >&2; exit 1; }
echo "kube: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# A daemon that a package would start is kept from starting: the tests run their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT INT TERM
fi
apt-get update --quiet --quiet
# Another apt may hold the lock: wait for it rather than fail.
# shellcheck disable=SC2086  # a list of names
apt-get install --quiet --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=600 $missing
