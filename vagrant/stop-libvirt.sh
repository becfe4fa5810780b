#!/bin/sh
# usage: stop-libvirt.sh CACHE
#
# Stop the daemons that start-libvirt.sh started, with the networks and pools that were made in them: nothing is
# left running on a host where nothing ran before. Elsewhere this does nothing.
set -eu
cache=$1
[ -s "$cache/libvirt-started" ] || exit 0
export LIBVIRT_DEFAULT_URI=qemu:///system
if timeout 30 virsh --quiet uri >/dev/null 2>&1; then
  if [ -n "$(virsh --quiet list --name)" ]; then
    echo "vm: other machines are still running; libvirt is left to them" >&2
    exit 0
  fi
  # A network has a dnsmasq and a bridge of its own, which outlive libvirtd.
  for network in $(virsh --quiet net-list --name); do virsh --quiet net-destroy "$network"; done
  for pool in $(virsh --quiet pool-list --name); do virsh --quiet pool-destroy "$pool"; done
fi
for daemon in libvirtd virtlogd; do
  grep -q "^$daemon$" "$cache/libvirt-started" || continue
  pid=$(cat "/run/$daemon.pid" 2>/dev/null || true)
  [ -n "$pid" ] || continue
  kill "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
done
rm -f "$cache/libvirt-started"
