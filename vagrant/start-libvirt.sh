#!/bin/sh
# usage: start-libvirt.sh CACHE
#
# Start libvirt. Safe to repeat. On a host with systemd, systemd starts it; elsewhere (a container, a build
# machine) libvirtd and virtlogd are started here, and CACHE/libvirt-started is written for stop-libvirt.sh.
set -eu
cache=$1
export LIBVIRT_DEFAULT_URI=qemu:///system
answers() { timeout 30 virsh --quiet uri >/dev/null 2>&1; }

if answers; then exit 0; fi
if [ -d /run/systemd/system ]; then
  systemctl start libvirtd.socket 2>/dev/null || systemctl start libvirtd.service || true
  answers && exit 0
  echo "vm: libvirt doesn't answer at $LIBVIRT_DEFAULT_URI; is $(id -un) in the group libvirt? (vagrant/README.md)" >&2
  exit 1
fi
[ "$(id -u)" -eq 0 ] || { echo "vm: starting libvirtd without systemd needs root" >&2; exit 1; }

configuration=/etc/libvirt/qemu.conf
if ! grep -q '^# BEGIN reactor' "$configuration"; then
  cat >>"$configuration" <<'CONF'
# BEGIN reactor (vagrant/start-libvirt.sh: a host without systemd)
# QEMU runs as root. With a /dev/kvm of mode 0600 libvirt otherwise takes its cached capabilities for stale at
# each look and probes QEMU again: 48 s for one definition of a domain.
user = "root"
group = "root"
security_driver = "none"
remember_owner = 0
# No private /dev for QEMU: in a container or a chroot libvirt fails to fill it.
namespaces = [ ]
# The host's own cgroups are left alone.
cgroup_controllers = [ ]
# END reactor
CONF
fi

mkdir -p "$cache"
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
for daemon in virtlogd libvirtd; do
  if ! alive "/run/$daemon.pid"; then
    rm -f "/run/$daemon.pid"
    "/usr/sbin/$daemon" --daemon
    echo "$daemon" >>"$cache/libvirt-started"
  fi
done
tries=0
until answers; do
  tries=$((tries + 1))
  if [ "$tries" -ge 60 ]; then
    echo "vm: libvirtd did not come up" >&2
    tail -n 5 /var/log/libvirt/libvirtd.log >&2 || true
    exit 1
  fi
  sleep 0.5
done
