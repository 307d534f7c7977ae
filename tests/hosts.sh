#!/bin/bash
# The first process of the namespaces that hold all hosts; when it ends, the kernel ends every process in them.
#   hosts.sh all "NAME..." COMMAND...    makes the hosts and runs the command on the first one
#   hosts.sh one NAME                    holds the namespaces of one host
set -eu

make_hosts() {
    mount -t tmpfs tmpfs /run
    mkdir -p /run/nodes /run/bin /run/lock
    # As ssh would, for mpirun: Open MPI 4 and 5, MPICH and Intel MPI.
    ln -s "$(dirname "$(realpath "$0")")/softroce/on.sh" /run/bin/on
    export PATH=$PATH:/run/bin
    export OMPI_MCA_plm_rsh_agent=on PRTE_MCA_plm_ssh_agent=on HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=/run/bin/on
    export I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=/run/bin/on
    echo 127.0.0.1 localhost > /run/hosts
    ip link set lo up
    ip link add lan type bridge mcast_snooping 0 forward_delay 0
    ip link set lan up
    n=0
    for name in "$@"; do
        n=$((n + 1))
        echo 10.97.0.$n "$name" >> /run/hosts
        unshare -n -u -i -m bash "$0" one "$name" &
        until [ -s "/run/nodes/$name" ]; do sleep 0.02; done
        pid=$(< "/run/nodes/$name")
        ip link add lan$n type veth peer name eth0 netns "$pid"
        ip link set lan$n master lan up
        nsenter -t "$pid" -n sh -c "ip link set lo up; ip addr add 10.97.0.$n/24 dev eth0; ip link set eth0 up"
    done
}

if [ "$1" = one ]; then
    hostname "$2"
    mount -t tmpfs tmpfs /dev/shm
    mount -t sysfs sys /sys
    until [ -s /run/hosts ]; do sleep 0.02; done
    mount --bind /run/hosts /etc/hosts
    echo $$ > "/run/nodes/$2"
    exec sleep infinity
fi
names=($2)
shift 2
make_hosts "${names[@]}"
status=0
nsenter -t "$(< "/run/nodes/${names[0]}")" -n -u -i -m --wdns="$PWD" "$@" || status=$?
exit $status
