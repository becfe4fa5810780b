#!/bin/sh
# usage: install-host.sh libvirt|qemu|arm64
#
# Install what the machines need on the host, from Debian's own packages; nothing where all of it is there.
# Run by the vm-* targets, and for QEMU alone by .ci/run.
set -eu
packages="qemu-system-x86 qemu-utils rsync openssh-client mmdebstrap debian-archive-keyring e2fsprogs"
case $1 in
qemu) ;;
arm64) packages="$packages qemu-system-arm qemu-user-static arch-test" ;;
libvirt)
  packages="$packages vagrant vagrant-libvirt libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients
    dnsmasq-base iptables iproute2"
  ;;
*) echo "usage: install-host.sh libvirt|qemu|arm64" >&2; exit 2 ;;
esac

missing=""
for package in $packages; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

[ "$(id -u)" -eq 0 ] || { echo "vm: missing$missing; as root: apt-get install --no-install-recommends$missing" >&2; exit 1; }
echo "vm: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet --quiet
# Another apt may hold the lock: wait for it rather than fail.
# shellcheck disable=SC2086  # a list of names
apt-get install --quiet --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=600 $missing
