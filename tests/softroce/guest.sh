#!/bin/bash
# The guest's first process: file systems, RDMA devices, then the command.
#   guest.sh JOB     JOB: the folder of this run on the host, with `settings` and `command` (see vm.py)
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
job=$1
. "$job/settings"    # HERE NODES NICS MTU TOKEN MODULES RW

# Serial ports to the host: ctl takes lines about the state of the run; out and err are the command's.
for p in /sys/class/virtio-ports/*; do declare "port_$(<"$p/name")=/dev/${p##*/}"; done
exec 9> "$port_ctl"
fail() { echo "in the guest: $*" >&9; sleep 9; }

mount_file_systems() {
    mount -t tmpfs tmpfs /run
    mkdir -p /dev/shm /dev/pts /run/lock /run/nodes /lib/modules
    mount -t tmpfs tmpfs /dev/shm
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
    ln -sT /proc/self/fd /dev/fd
    for n in 0:stdin 1:stdout 2:stderr; do ln -sT /proc/self/fd/${n%:*} /dev/${n#*:}; done
    for i in "${!RW[@]}"; do    # cache=mmap: writes go through, and files can be mapped
        mkdir -p "${RW[i]}"
        mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap "rw$i" "${RW[i]}" \
            || fail "cannot mount ${RW[i]}"
    done
}

load_modules() {
    ln -sfn "$MODULES" "/lib/modules/$(uname -r)"
    modprobe -q crc32_generic    # rxe asks for it by name; some kernels have it as a module
    modprobe -a veth bridge rdma_rxe rdma_ucm || fail "cannot load rdma_rxe"
}

# rxe0, rxe1 ... over nic0, nic1 ..., each a veth pair whose other end (port0 ...) is in one bridge.
make_devices() {
    sysctl -qw net.ipv{4,6}.conf.{all,default}.forwarding=0 net.ipv6.conf.{all,default}.accept_dad=0 \
        net.ipv6.conf.{all,default}.keep_addr_on_down=1 \
        net.ipv4.conf.{all,default}.{rp_filter=0,accept_local=1,arp_ignore=1,arp_announce=2}
    {
        echo link set lo up
        echo link add fabric mtu $MTU type bridge mcast_snooping 0 forward_delay 0
        echo link set fabric up
        for ((n = 1; n <= NICS * NODES; n++)); do
            nic=nic$((n - 1)) port=port$((n - 1))
            echo link add $nic mtu $MTU address 02:00:00:00:00:$(printf %02x $n) type veth peer name $port mtu $MTU
            echo link set $port master fabric up
            echo link set $nic up
            echo addr add 10.99.0.$n/24 dev $nic
            echo addr add fd99::$n/64 dev $nic
        done
    } | ip -batch - || fail "cannot make the links"
    # A flow's packets are taken in by one CPU, as those of a NIC's queue are. Otherwise the CPU that sends them does
    # it, and those that two CPUs send for a queue pair overtake each other: it repeats a tenth of them.
    for queue in /sys/class/net/{nic,port}*/queues/rx-*/rps_cpus; do
        echo $(printf %x $(((1 << $(nproc)) - 1))) > $queue
    done
    # All addresses are this kernel's, yet packets between two NICs must cross the bridge. rxe asks for a route by NIC:
    # IPv4 then passes over the other NIC's local route by itself, IPv6 with rules of each NIC's own.
    {
        echo rule add pref 200 lookup local
        echo rule del pref 0
        for ((n = 1; n <= NICS * NODES; n++)); do
            echo rule add pref 100 oif nic$((n - 1)) lookup $((100 + n))
            echo route add local fd99::$n dev nic$((n - 1)) table $((100 + n))
            echo route add fd99::/64 dev nic$((n - 1)) table $((100 + n))
        done
    } | ip -6 -batch - || fail "cannot set the routes"
    for ((i = 0; i < NICS * NODES; i++)); do
        rdma link add rxe$i type rxe netdev nic$i || fail "cannot add rxe$i"
    done
}

# Hosts of their own as far as programs can see (see node.sh). The NICs stay in the first network namespace, since rxe
# devices cannot be moved; all namespaces may use them, and each node is shown the files of its own ones.
make_nodes() {
    ln -s "$HERE/on.sh" /usr/bin/on
    hostname node0
    echo 1 > /run/nodes/fabric    # so that `on fabric ip link set port0 down` works from any node
    enter=
    if [ $NODES = 1 ]; then
        echo 127.0.1.1 node0 >> /etc/hosts
        echo 1 > /run/nodes/node0
        return
    fi
    ip link add lan type bridge mcast_snooping 0 forward_delay 0 && ip link set lan up
    for ((n = 0; n < NODES; n++)); do
        echo 10.98.0.$((n + 1)) node$n >> /etc/hosts
        unshare -n -u -i -m bash "$HERE/node.sh" $n $NICS &
        until [ -s /run/nodes/node$n ]; do sleep 0.05; done
        ip netns attach node$n $(< /run/nodes/node$n)
        ip link add lan$n type veth peer name eth0 netns node$n
        ip link set lan$n master lan up
        printf '%s\n' "link set lo up" "addr add 10.98.0.$((n + 1))/24 dev eth0" "link set eth0 up" |
            ip -n node$n -batch -
    done
    enter="nsenter -t $(< /run/nodes/node0) -n -u -i -m"
    # What mpirun starts the ranks of other nodes with: Open MPI 4 and 5, MPICH.
    export OMPI_MCA_plm_rsh_agent=on PRTE_MCA_plm_ssh_agent=on HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=/usr/bin/on
}

# The command's output goes through pipes, which it can open again by name, to the ports; the token marks their end.
run_command() {
    ulimit -l unlimited -c 0 -n 65536
    # Root may run mpirun, with more ranks than CPUs (Open MPI 4 and 5); MPI's own traffic stays off the devices.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^openib,ofi,uct UCX_TLS=^ib FI_PROVIDER=^verbs
    relay() { cat; printf '\0%s\n' "$TOKEN"; }
    exec 3> >(exec 9>&-; relay > "$port_out"); out=$!
    exec 4> >(exec 3>&- 9>&-; relay > "$port_err"); err=$!
    echo ready >&9
    $enter bash "$job/command" < /dev/null >&3 2>&4 3>&- 4>&- 9>&-
    status=$?
    # What the command left running holds the pipes open.
    keep=" 1 $out $err $(cat /proc/{$out,$err}/task/*/children | tr '\n' ' ') "
    for p in /proc/[0-9]*; do [[ $keep == *" ${p#/proc/} "* ]] || kill -9 ${p#/proc/}; done 2> /dev/null
    exec 3>&- 4>&-
    wait $out $err
    sync
    echo exit $status >&9
}

mount_file_systems
load_modules
make_devices
make_nodes
run_command
# The host ends the VM now. Should it not be able to, the guest goes by itself.
sleep 10
echo o > /proc/sysrq-trigger
sleep 10
