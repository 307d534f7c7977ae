#!/bin/busybox sh
# The initrd's init: the host's root file system (9p, read-only) under an overlay that is thrown away, then guest.sh,
# with the folder of this run (job= on the kernel's command line).
b=/bin/busybox
fail() { echo "init: $*"; $b poweroff -f; }
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read module; do $b insmod /mods/$module || echo "init: insmod $module failed"; done < /order
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower || fail "no root file system"
$b mount -t tmpfs -o size=75% tmpfs /rw && $b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /root || fail "no overlay"
for d in proc sys dev; do $b mount --move /$d /root/$d; done
for word in $($b cat /root/proc/cmdline); do
    case $word in job=*) job=${word#*=};; esac
done
exec $b switch_root /root /bin/bash $job/guest.sh $job
