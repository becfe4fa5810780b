#!/bin/bash
# usage: build-box.sh SUITE CACHE [ARCHITECTURE]
#
# Build CACHE/SUITE.box for vagrant-libvirt from Debian's packages alone, unless the one there was made by this
# very script. No box is downloaded, no loop device and no KVM is needed; root is, for the chroot.
# With another ARCHITECTURE than amd64 it is CACHE/SUITE-ARCHITECTURE.box, and the packages' scripts run under
# QEMU's emulation of a program (qemu-user-static, registered with binfmt_misc).
# The kernel and its initrd travel in the box: the machines boot them directly, without a boot loader.
# A suite of backports is the suite itself with the kernel, its headers and bpftool of the backports.
set -euo pipefail
suite=$1 cache=$(readlink -m "$2") architecture=${3:-amd64}
release=${suite%-backports}
name=$suite
[ "$architecture" = amd64 ] || name=$suite-$architecture
box=$cache/$name.box

# In the guest: Python and a virtual environment for the wheel, a C compiler for the test bed's programs, libbpf for
# the eBPF sources, BCC with the kernel's headers for the same on kernels without BTF, what makes filesystems with
# project quotas. Unpacking a package under emulation takes longer than building it into the box.
packages=linux-image-cloud-$architecture,initramfs-tools,lz4,systemd-sysv,dbus,udev,openssh-server,sudo,rsync,iproute2,\
ca-certificates,netbase,kmod,procps,attr,python3,python3-venv,gcc,libc6-dev,libbpf1,bpftool,e2fsprogs,xfsprogs
# What BCC takes is large, and unpacking is slow where dpkg itself is emulated.
[ "$architecture" != amd64 ] || packages=$packages,python3-bpfcc,linux-headers-cloud-amd64

# The key to the machines of this cache, and to no others: in the place of Vagrant's well-known one.
mkdir -p "$cache"
if ! [ -s "$cache/key" ]; then
  ssh-keygen -q -t ed25519 -N '' -C reactor-vm -f "$cache/key"
  chown --reference="$cache" "$cache/key" "$cache/key.pub"
fi

digest=$(cat "${BASH_SOURCE[0]}" "$cache/key.pub" | sha256sum | cut -d ' ' -f 1)
if [ -s "$box" ] && [ "$(cat "$box.digest" 2>/dev/null)" = "$digest" ]; then exit 0; fi
if [ "$architecture" != "$(dpkg --print-architecture)" ] && ! arch-test "$architecture" >/dev/null 2>&1; then
  echo "vm: this machine runs no program of $architecture: install qemu-user-static and arch-test, and have" \
    "binfmt_misc mounted (its package registers the interpreter)" >&2
  exit 1
fi
[ "$(id -u)" -eq 0 ] || { echo "vm: building a box needs root (mmdebstrap's chroot)" >&2; exit 1; }

mkdir -p "$cache/apt-$name"
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
say() { echo "vm: $name box, ${SECONDS} s: $*" >&2; }

cat >"$work/initrd" <<'HOOK'
#!/bin/sh
set -eu
# A small initrd: under emulation its decompression is a visible part of the boot. It is said before there is any, so
# that it is made once: where its tools are emulated that takes minutes.
directory=$1/usr/share/initramfs-tools
mkdir -p "$directory/conf.d" "$directory/modules.d"
printf 'MODULES=list\nCOMPRESS=lz4\n' >"$directory/conf.d/machine"
printf 'virtio_pci\nvirtio_blk\nvirtio_net\next4\n' >"$directory/modules.d/machine"
HOOK
chmod +x "$work/initrd"

cat >"$work/customize" <<'HOOK'
#!/bin/sh
set -eu
r=$1
echo debian >"$r/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 debian\n::1 localhost ip6-localhost\n' >"$r/etc/hosts"
echo '/dev/vda / ext4 defaults,noatime 0 0' >"$r/etc/fstab"
: >"$r/etc/machine-id"; rm -f "$r/var/lib/dbus/machine-id"
# DHCP on every real network card. The client is identified by its MAC, not by the machine-id, which each
# first boot generates.
mkdir -p "$r/etc/systemd/network"
printf '%s\n' '[Match]' 'Type=ether' 'Kind=!*' '[Network]' 'DHCP=ipv4' 'LinkLocalAddressing=no' 'IPv6AcceptRA=no' \
  '[DHCPv4]' 'ClientIdentifier=mac' >"$r/etc/systemd/network/80-dhcp.network"
chroot "$r" systemctl --quiet enable systemd-networkd.service
chroot "$r" systemctl --quiet disable systemd-networkd-wait-online.service || true
# Timers would run in the middle of a measurement.
chroot "$r" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service \
  fstrim.timer dpkg-db-backup.timer getty@tty1.service systemd-pcrphase.service systemd-pcrphase-sysinit.service
# The user, password and sudo that Vagrant documents for a base box.
chroot "$r" useradd -m -s /bin/bash -U vagrant
echo 'vagrant:vagrant' | chroot "$r" chpasswd
echo 'root:vagrant' | chroot "$r" chpasswd
echo 'vagrant ALL=(ALL) NOPASSWD:ALL' >"$r/etc/sudoers.d/vagrant"; chmod 440 "$r/etc/sudoers.d/vagrant"
install -d -m 700 "$r/home/vagrant/.ssh"
install -m 600 "$PUBLIC_KEY" "$r/home/vagrant/.ssh/authorized_keys"
chroot "$r" chown -R vagrant:vagrant /home/vagrant/.ssh
printf 'UseDNS no\nGSSAPIAuthentication no\n' >"$r/etc/ssh/sshd_config.d/vagrant.conf"
# The journal of a failed run is collected: keep it over a restart of the machine.
mkdir -p "$r/var/log/journal"
# Nothing of the building machine stays behind.
rm -f "$r/etc/apt/apt.conf.d/99mmdebstrap" "$r/etc/resolv.conf"
rm -f "$r"/var/cache/apt/archives/*.deb
HOOK
chmod +x "$work/customize"

sources=()
if [ "$suite" != "$release" ]; then
  printf '%s\n' 'Package: linux-image-* linux-headers-* linux-kbuild-* linux-base* linux-modules-* bpftool' \
    "Pin: release n=$suite" 'Pin-Priority: 990' >"$work/preferences"
  sources=("deb http://deb.debian.org/debian $release main" "deb http://deb.debian.org/debian $suite main")
fi

# A release is updated by hand, unstable every six hours: a mirror that is days behind has one that is not valid now.
apt_options=()
[ "$suite" != sid ] || apt_options=(--aptopt='Acquire::Check-Valid-Until "false"')

say "packages"
# shellcheck disable=SC2016  # mmdebstrap's hooks expand $1
PUBLIC_KEY=$cache/key.pub mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
  --architectures="$architecture" \
  --include="$packages" \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='force-unsafe-io' \
  --aptopt='Acquire::Languages "none"' "${apt_options[@]}" \
  --skip=download/empty --skip=essential/unlink \
  --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
  --setup-hook="$work/initrd" \
  --setup-hook="! [ -s '$work/preferences' ] || cp '$work/preferences' \"\$1/etc/apt/preferences.d/backports\"" \
  --setup-hook="sync-in '$cache/apt-$name' /var/cache/apt/archives" \
  --customize-hook="sync-out /var/cache/apt/archives '$cache/apt-$name'" \
  --customize-hook="$work/customize" \
  "$release" "$root" "${sources[@]}"

say "image"
content=$work/box
mkdir "$content"
cp -L "$root/vmlinuz" "$content/vmlinuz"
cp -L "$root/initrd.img" "$content/initrd.img"
chmod 644 "$content"/*
truncate -s 8G "$work/disk.raw"
mke2fs -q -t ext4 -L root -E lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0 -d "$root" "$work/disk.raw"
qemu-img convert -f raw -O qcow2 "$work/disk.raw" "$content/box.img"
echo '{"provider":"libvirt","format":"qcow2","virtual_size":8}' >"$content/metadata.json"
cat >"$content/Vagrantfile" <<'RUBY'
# What every machine from this box needs. How it is run is said by the Vagrantfile that uses it.
directory = File.dirname(File.expand_path(__FILE__))
Vagrant.configure("2") do |config|
  config.vm.guest = :debian  # not detected: that is a dozen commands over ssh, a second or two each
  config.vm.box_check_update = false
  config.ssh.insert_key = false
  config.vm.provider :libvirt do |libvirt|
    libvirt.kernel = File.join(directory, "vmlinuz")
    libvirt.initrd = File.join(directory, "initrd.img")
  end
end
RUBY
tar -C "$content" -cf "$box.new" metadata.json Vagrantfile vmlinuz initrd.img box.img
mv "$box.new" "$box"
echo "$digest" >"$box.digest"
say "done, $(du -m "$box" | cut -f 1) MiB"
