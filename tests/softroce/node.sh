#!/bin/bash
# Holds the namespaces of a node, and shows it the files of its own RDMA devices alone.
#   node.sh N NICS
sys=/sys/class/infiniband files=/dev/infiniband tmp=$(mktemp -d /run/nodes/XXXX)
hostname node$1
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sys /sys
mkdir $tmp/{dev,sys}
cp -a $files/rdma_cm $tmp/dev
for ((i = $1 * $2; i < ($1 + 1) * $2; i++)); do
    ln -s "$(realpath $sys/rxe$i)" $tmp/sys
    verbs=$(grep -lx rxe$i /sys/class/infiniband_verbs/*/ibdev)
    cp -a $files/"$(basename "${verbs%/ibdev}")" $tmp/dev
done
mount --bind $tmp/dev $files
mount --bind $tmp/sys $sys
echo $$ > /run/nodes/node$1
exec sleep infinity
