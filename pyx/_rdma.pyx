"""Layer L2: rails over RDMA verbs, and the ports that a communicator polls for them.

The hot part is C (include/hetccl/verbs_port.h, rail_verbs.h). Here is what happens once: opening a device, making
completion queues that have room for every rail's work, and taking a queue pair from INIT to RTS with the peer's record.
Called with the GIL, which is released around what talks to the kernel.
"""

import errno as errno_
import ipaddress
import secrets
import weakref

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from hetccl._rail cimport (
    HETCCL_FAULT_DEVICE, HETCCL_FAULT_POST, HETCCL_FAULT_WC, HETCCL_FAULT_WIRE, HETCCL_RAIL_FAILED, HETCCL_RAIL_NEW,
    HETCCL_RAIL_UP, Port, Rail, breach_text, hetccl_rail_fault_t,
)
from hetccl._rdma_device cimport device_opened, set_nonblocking
from hetccl._verbs cimport (
    HETCCL_IBV_ACCESS_REMOTE_READ, HETCCL_IBV_ACCESS_REMOTE_WRITE, HETCCL_IBV_LINK_LAYER_ETHERNET,
    HETCCL_IBV_QP_ACCESS_FLAGS,
    HETCCL_IBV_QP_AV, HETCCL_IBV_QP_CAP, HETCCL_IBV_QP_DEST_QPN, HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC,
    HETCCL_IBV_QP_MAX_QP_RD_ATOMIC, HETCCL_IBV_QP_MIN_RNR_TIMER, HETCCL_IBV_QP_PATH_MTU, HETCCL_IBV_QP_PKEY_INDEX,
    HETCCL_IBV_QP_PORT, HETCCL_IBV_QP_RETRY_CNT, HETCCL_IBV_QP_RNR_RETRY, HETCCL_IBV_QP_RQ_PSN, HETCCL_IBV_QP_SQ_PSN,
    HETCCL_IBV_QP_STATE, HETCCL_IBV_QP_TIMEOUT, HETCCL_IBV_QPS_ERR, HETCCL_IBV_QPS_INIT, HETCCL_IBV_QPS_RTR,
    HETCCL_IBV_QPS_RTS, HETCCL_IBV_QPT_RC, hetccl_ibv_ah_attr_t, hetccl_ibv_qp_attr_t, hetccl_ibv_qp_init_attr_t,
    hetccl_verbs_errno, hetccl_verbs_t,
)
from hetccl._verbs_errors cimport error_text, verbs_raise

from hetccl._verbs_errors import completion_text, event_text

cdef extern from *:
    """
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <unistd.h>
    """
    int epoll_create1(int flags) nogil
    int eventfd(unsigned value, int flags) nogil
    int close(int fd) nogil
    int getpid() nogil
    int EPOLL_CLOEXEC
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef enum:
    LARGEST_WRITE = 1 << 30
    # Bytes that a queue pair should take along in the request itself: a small message with its header.
    INLINE_BYTES = 256
    # Routers between two RoCE v2 subnets take one off each.
    HOP_LIMIT = 64
    # Only loops read, one byte at a time; on other rails one keeps peers possible that do.
    RD_ATOMIC = 1
    # The rank of the peer of a loop.
    ITSELF = -1
    # sgid_index has 8 bits.
    MOST_GID_INDEX = 255

# What a port's settings are, and their defaults: see hetccl.config, whose names these are without HETCCL_IB_.
SETTINGS = {"tc": 0, "sl": 0, "pkey": 0, "timeout": 18, "retry_cnt": 6, "rnr_retry": 6, "min_rnr_timer": 12,
            "send_queue": 256}


@cython.final
cdef class RdmaPort(Port):
    """One port of an RDMA device, as one communicator uses it.

    card     : dict, this rank's card of the rail: "device" (str), "port" (int), "gid" (32 hexadecimal digits),
               "gid_index" (int)
    receives : int, immediate values that one peer may have on their way to this rank at once
    settings : {name: int}, some of SETTINGS
    Raises   : ValueError (card or settings ask for what the device has not), VerbsError, LibraryNotFound, OSError
    """

    def __cinit__(self):
        self.state = NULL

    def __init__(self, dict card not None, *, int receives, dict settings=None):
        unknown = set(settings or ()) - set(SETTINGS)
        if unknown:
            raise ValueError(f"settings: {sorted(unknown)}; there are: {', '.join(SETTINGS)}")
        self.card = card
        self.settings = {**SETTINGS, **(settings or {}), "receives": receives}
        self.owner_pid = getpid()
        self.opened = device_opened(card["device"])
        self.check()
        port_open(self)

    def __dealloc__(self):
        if self.state is not NULL and self.owner_pid == getpid():
            port_close(self)

    cdef int check(self) except -1:
        """What the device says of itself against what is asked for."""
        cdef uint8_t port = self.card["port"]
        cdef int rc
        name = self.opened.device.name
        if not 1 <= self.card["port"] <= self.opened.attr.phys_port_cnt:
            raise ValueError(f"{name}: port {self.card['port']}; it has ports 1 to {self.opened.attr.phys_port_cnt}")
        with nogil:
            rc = self.opened.verbs.table.query_port(self.opened.state.context, port, &self.attr)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_query_port", rc, name, port, "")
        limits = {
            "gid_index": (self.card["gid_index"], min(self.attr.gid_tbl_len - 1, MOST_GID_INDEX)),
            "HETCCL_IB_PKEY": (self.settings["pkey"], self.attr.pkey_tbl_len - 1),
            "HETCCL_IB_SEND_QUEUE": (self.settings["send_queue"], self.opened.attr.max_qp_wr),
            "receives": (self.settings["receives"] + HETCCL_VERBS_RECV_BATCH, self.opened.attr.max_qp_wr),
        }
        for what, (value, most) in limits.items():
            if not 0 <= value <= most:
                raise ValueError(f"{what}: {value}; {name} port {port} allows 0 to {most}")
        return 0

    def rail(self, int peer, int index):
        cdef QueuePair rail = QueuePair.__new__(QueuePair)
        rail.port, rail.peer = self, peer
        queue_pair_open(rail, index)
        return rail

    def loop(self):
        """See Rail.loop()."""
        cdef QueuePair rail = self.loop_known()
        if rail is not None:
            return rail
        rail = QueuePair.__new__(QueuePair)
        rail.port, rail.peer, rail.is_loop = self, ITSELF, True
        queue_pair_open(rail, 0)
        try:
            rail.connect(rail.local())
        except BaseException:
            rail.close()
            raise
        # The GIL was released meanwhile. There is one for good: messages count what they have posted on it.
        if self.loop_known() is not None:
            rail.close()
            return self.loop_known()
        hetccl_verbs_port_set_loop(self.state, rail.state)
        self.loop_ = weakref.ref(rail)
        return rail

    cdef QueuePair loop_known(self):
        """The loop, if there is one."""
        cdef QueuePair rail = None if self.loop_ is None else self.loop_()
        return rail if rail is not None and rail.state is not NULL else None

    def describe(self):
        """"mlx5_0 port 1, GID ::ffff:10.0.0.1 (index 3)"."""
        where = f"{self.card['device']} port {self.card['port']}"
        if self.attr.link_layer != HETCCL_IBV_LINK_LAYER_ETHERNET:
            return f"{where}, LID {self.attr.lid}"
        return f"{where}, GID {gid_text(self.card['gid'])} (index {self.card['gid_index']})"

    @property
    def capacity(self):
        """Entries of its completion queues."""
        return sum(self.state.cqs[i].cq.cqe for i in range(self.state.ncqs)) if self.state is not NULL else 0

    def close(self):
        if self.state is NULL or self.owner_pid != getpid():
            return
        if self.nlive:
            raise ValueError(f"{self.describe()}: {self.nlive} of its rails are still open")
        port_close(self)
        self.opened = None


def gid_text(str gid not None):
    """A GID of 32 hexadecimal digits as people write it: "fe80::1", "::ffff:10.0.0.1"."""
    address = ipaddress.IPv6Address(bytes.fromhex(gid))
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


cdef int port_open(RdmaPort self) except -1:
    cdef hetccl_verbs_port_t* state = <hetccl_verbs_port_t*>calloc(1, sizeof(hetccl_verbs_port_t))
    cdef const hetccl_verbs_t* table = self.opened.verbs.table
    cdef int error = 0
    if state is NULL:
        raise MemoryError()
    state.device = &self.opened.state
    state.port.poll, state.port.arm = hetccl_verbs_port_poll, hetccl_verbs_port_arm
    state.ops.name = b"verbs"
    state.ops.max_write = min(self.attr.max_msg_sz, <uint32_t>LARGEST_WRITE)
    state.ops.write, state.ops.room = hetccl_verbs_rail_write, hetccl_verbs_rail_room
    state.ops.reg, state.ops.dereg = hetccl_verbs_rail_reg, hetccl_verbs_rail_dereg
    state.ops.stop = hetccl_verbs_rail_stop
    state.ops.reg_device, state.ops.loop = hetccl_verbs_rail_reg_device, hetccl_verbs_rail_loop
    state.ops.read, state.ops.settle = hetccl_verbs_rail_read, hetccl_verbs_rail_settle
    call = "ibv_create_comp_channel"
    with nogil:
        state.channel = table.create_comp_channel(state.device.context)
        error = errno if state.channel is NULL else 0
    if error == 0:
        call = "epoll"
        state.port.fd = epoll_create1(EPOLL_CLOEXEC)
        state.news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if state.port.fd < 0 or state.news_fd < 0 or set_nonblocking(state.channel.fd) != 0:
            error = errno
        else:
            error = hetccl_verbs_port_open(state)
        if error:
            close(state.port.fd)
            close(state.news_fd)
            table.destroy_comp_channel(state.channel)
    if error:
        free(state)
        verbs_raise(call, error, self.card["device"], self.card["port"], "")
    self.state = state
    self.port = &state.port
    return 0


cdef void port_close(RdmaPort self) noexcept:
    cdef hetccl_verbs_port_t* state = self.state
    cdef const hetccl_verbs_t* table = self.opened.verbs.table
    cdef int i
    self.state = NULL
    self.port = NULL
    with nogil:
        hetccl_verbs_port_close(state)
        for i in range(state.ncqs):
            table.destroy_cq(state.cqs[i].cq)
        table.destroy_comp_channel(state.channel)
        close(state.port.fd)
        close(state.news_fd)
        free(state.slots)
        free(state.generations)
        free(state)


# Its C struct uses the port's until its __dealloc__.
@cython.no_gc_clear
@cython.final
cdef class QueuePair(Rail):
    """A rail over an RC queue pair; made by RdmaPort.rail()."""

    def __cinit__(self):
        self.state = NULL

    def __init__(self):
        raise TypeError("use RdmaPort.rail(peer, index)")

    def __dealloc__(self):
        if self.state is not NULL and self.port.owner_pid == getpid():
            hetccl_verbs_rail_close(self.state)
            free(self.state)

    def local(self):
        return {
            "qpn": self.opened().qp.qp_num,
            "psn": self.psn,
            "gid": self.port.card["gid"],
            "lid": self.port.attr.lid,
            "mtu": 128 << self.port.attr.active_mtu,
        }

    def connect(self, remote, sockets=()):
        record = record_checked(remote)
        connect(self, record)
        self.state.rail.state = HETCCL_RAIL_UP

    def describe(self):
        return self.port.describe()

    def loop(self):
        return self.port.loop()

    def fault(self):
        cdef hetccl_rail_fault_t fault
        if self.state is NULL:
            return ""
        fault = self.state.rail.fault
        device, port = self.port.card["device"], self.port.card["port"]
        if fault.kind == HETCCL_FAULT_WC:
            return completion_text(fault.code, fault.vendor_err, device, port, gid_text(self.port.card["gid"]),
                                   self.peer)
        if fault.kind == HETCCL_FAULT_POST:
            return f"{device} port {port} takes no more work: {error_text(fault.code)}"
        if fault.kind == HETCCL_FAULT_WIRE:
            return breach_text(fault.code)
        return event_text(fault.code, device, port) if fault.kind == HETCCL_FAULT_DEVICE else ""

    def attributes(self):
        """What the device says of the queue pair: {name: value}, as ibv_query_qp gives it."""
        cdef hetccl_ibv_qp_attr_t attr
        cdef hetccl_ibv_qp_init_attr_t init
        cdef int rc, mask = QUERY
        memset(&attr, 0, sizeof(attr))
        self.opened()
        with nogil:
            rc = self.port.opened.verbs.table.query_qp(self.state.qp, &attr, mask, &init)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            self.failed("ibv_query_qp", rc)
        route = &attr.ah_attr.grh
        return {
            "state": attr.qp_state, "path_mtu": 128 << attr.path_mtu, "timeout": attr.timeout,
            "retry_cnt": attr.retry_cnt, "rnr_retry": attr.rnr_retry, "min_rnr_timer": attr.min_rnr_timer,
            "sq_psn": attr.sq_psn, "rq_psn": attr.rq_psn, "dest_qp_num": attr.dest_qp_num, "port": attr.port_num,
            "pkey_index": attr.pkey_index, "access": attr.qp_access_flags, "is_global": attr.ah_attr.is_global,
            "sl": attr.ah_attr.sl, "dlid": attr.ah_attr.dlid, "dgid": bytes(route.dgid.raw[:16]).hex(),
            "sgid_index": route.sgid_index, "traffic_class": route.traffic_class, "hop_limit": route.hop_limit,
            "max_rd_atomic": attr.max_rd_atomic, "max_dest_rd_atomic": attr.max_dest_rd_atomic,
            "max_send_wr": attr.cap.max_send_wr, "max_recv_wr": attr.cap.max_recv_wr,
            "max_inline": self.state.max_inline,
        }

    def stop(self):
        """Put the queue pair in the error state, as close() does first, and leave it there; for tests."""
        cdef hetccl_ibv_qp_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = HETCCL_IBV_QPS_ERR
        self.opened()
        modify(self, &attr, HETCCL_IBV_QP_STATE)

    def close(self):
        """Give the queue pair back; idempotent.

        One that is connected and not stopped is stopped, and what has arrived is taken in: under the mutex.
        """
        cdef hetccl_verbs_rail_t* state = self.state
        if state is NULL or self.port.owner_pid != getpid():
            return
        with nogil:
            if state.rail.state == HETCCL_RAIL_UP or state.rail.state == HETCCL_RAIL_FAILED:
                hetccl_verbs_rail_drain(state)
            hetccl_verbs_rail_close(state)
        self.state = NULL
        self.rail = NULL
        self.port.nlive -= 1
        free(state)

    cdef hetccl_verbs_rail_t* opened(self) except NULL:
        if self.state is NULL:
            raise ValueError(f"the rail to rank {self.peer} over {self.describe()} is closed")
        return self.state

    cdef int failed(self, str call, int error) except -1:
        verbs_raise(call, error, self.port.card["device"], self.port.card["port"], f"for rank {self.peer}")


cdef int queue_pair_open(QueuePair self, int index) except -1:
    """Make the queue pair, in INIT, with all receives posted: the peer may write as soon as it is connected."""
    cdef RdmaPort port = self.port
    cdef hetccl_verbs_rail_t* state
    cdef int error
    if port.state is NULL:
        raise ValueError(f"{port.describe()} is closed")
    state = <hetccl_verbs_rail_t*>calloc(1, sizeof(hetccl_verbs_rail_t))
    if state is NULL:
        raise MemoryError()
    state.rail.ops, state.rail.index, state.rail.state = &port.state.ops, index, HETCCL_RAIL_NEW
    state.send_depth = port.settings["send_queue"]
    # Nothing that a loop writes takes a receive.
    state.recv_depth = HETCCL_VERBS_RECV_BATCH + (0 if self.is_loop else port.settings["receives"])
    with nogil:
        error = hetccl_verbs_port_add(port.state, state, port.opened.attr.max_cqe)
    if error:
        free(state)
        self.failed("ibv_create_cq", error)
    call = queue_pair_start(self, state, &error)
    if error:
        if state.qp is NULL:
            hetccl_verbs_port_remove(port.state, state)
        hetccl_verbs_rail_close(state)
        free(state)
        self.failed(call, error)
    self.state, self.rail = state, &state.rail
    self.psn = secrets.randbits(24)
    port.nlive += 1
    return 0


cdef str queue_pair_start(QueuePair self, hetccl_verbs_rail_t* state, int* error):
    """Create it, INIT, receives; the call that failed, if one did."""
    cdef const hetccl_verbs_t* table = self.port.opened.verbs.table
    cdef hetccl_ibv_qp_init_attr_t init
    cdef hetccl_ibv_qp_attr_t attr
    cdef int rc, inline_bytes = INLINE_BYTES
    while True:
        memset(&init, 0, sizeof(init))
        init.qp_context = state
        init.send_cq = init.recv_cq = self.port.state.cqs[state.cq].cq
        init.cap.max_send_wr, init.cap.max_recv_wr = state.send_depth, state.recv_depth
        init.cap.max_send_sge, init.cap.max_recv_sge = 2, 1
        init.cap.max_inline_data = inline_bytes
        init.qp_type = HETCCL_IBV_QPT_RC
        with nogil:
            state.qp = table.create_qp(self.port.opened.state.pd, &init)
            error[0] = errno if state.qp is NULL else 0
        # Devices differ in what they take inline, and no attribute says how much it is.
        if error[0] != errno_.EINVAL or inline_bytes == 0:
            break
        inline_bytes = inline_bytes // 2 if inline_bytes > 32 else 0
    if error[0]:
        return "ibv_create_qp"
    state.max_inline = init.cap.max_inline_data
    memset(&attr, 0, sizeof(attr))
    attr.qp_state, attr.port_num = HETCCL_IBV_QPS_INIT, self.port.card["port"]
    attr.pkey_index = self.port.settings["pkey"]
    attr.qp_access_flags = HETCCL_IBV_ACCESS_REMOTE_WRITE | (HETCCL_IBV_ACCESS_REMOTE_READ if self.is_loop else 0)
    with nogil:
        rc = table.modify_qp(state.qp, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_PKEY_INDEX | HETCCL_IBV_QP_PORT
                             | HETCCL_IBV_QP_ACCESS_FLAGS)
        error[0] = hetccl_verbs_errno(rc) if rc else 0
    if error[0]:
        return "ibv_modify_qp"
    state.recv_due = state.recv_depth
    error[0] = hetccl_verbs_rail_post_recvs(state, True)
    return "ibv_post_recv"


# A peer's record: {key: (least, most)} of numbers; "gid" besides.
RECORD = {"qpn": (0, (1 << 24) - 1), "psn": (0, (1 << 24) - 1), "lid": (0, 65535), "mtu": (256, 4096)}


def record_checked(remote):
    """What a peer's local() said, or ValueError: it comes from the network."""
    if not isinstance(remote, dict) or set(remote) != {*RECORD, "gid"}:
        raise ValueError(f"remote: {remote!r}; a dict of {', '.join(sorted({*RECORD, 'gid'}))} is needed")
    for key, (least, most) in RECORD.items():
        if type(remote[key]) is not int or not least <= remote[key] <= most:
            raise ValueError(f"remote: {key} {remote[key]!r}; a whole number from {least} to {most} is needed")
    if remote["mtu"] & (remote["mtu"] - 1):
        raise ValueError(f"remote: mtu {remote['mtu']}; 256, 512, 1024, 2048 or 4096 is needed")
    gid = remote["gid"]
    if not isinstance(gid, str) or len(gid) != 32 or not set(gid) <= set("0123456789abcdef"):
        raise ValueError(f"remote: gid {gid!r}; 32 hexadecimal digits are needed")
    return remote


cdef int connect(QueuePair self, dict remote) except -1:
    """INIT -> RTR -> RTS."""
    cdef hetccl_ibv_qp_attr_t attr
    settings, port = self.port.settings, self.port
    if self.opened().rail.state != HETCCL_RAIL_NEW:
        raise ValueError(f"the rail to rank {self.peer} over {self.describe()} has been connected before")
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = HETCCL_IBV_QPS_RTR
    attr.path_mtu = min(remote["mtu"], 128 << port.attr.active_mtu).bit_length() - 8
    attr.dest_qp_num, attr.rq_psn = remote["qpn"], remote["psn"]
    attr.max_dest_rd_atomic, attr.min_rnr_timer = RD_ATOMIC, settings["min_rnr_timer"]
    address_fill(&attr.ah_attr, port, remote)
    modify(self, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_AV | HETCCL_IBV_QP_PATH_MTU | HETCCL_IBV_QP_DEST_QPN
           | HETCCL_IBV_QP_RQ_PSN | HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC | HETCCL_IBV_QP_MIN_RNR_TIMER)
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = HETCCL_IBV_QPS_RTS
    attr.sq_psn, attr.max_rd_atomic = self.psn, RD_ATOMIC
    attr.timeout, attr.retry_cnt, attr.rnr_retry = settings["timeout"], settings["retry_cnt"], settings["rnr_retry"]
    modify(self, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_TIMEOUT | HETCCL_IBV_QP_RETRY_CNT | HETCCL_IBV_QP_RNR_RETRY
           | HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_MAX_QP_RD_ATOMIC)
    return 0


cdef int address_fill(hetccl_ibv_ah_attr_t* address, RdmaPort port, dict remote) except -1:
    cdef bytes gid = bytes.fromhex(remote["gid"])
    mine = port.card["gid"]
    address.dlid, address.sl, address.port_num = remote["lid"], port.settings["sl"], port.card["port"]
    # An InfiniBand subnet needs no global route; between two of them, and on Ethernet, there is nothing else.
    address.is_global = port.attr.link_layer == HETCCL_IBV_LINK_LAYER_ETHERNET or mine[:16] != remote["gid"][:16]
    if address.is_global:
        memcpy(address.grh.dgid.raw, <const char*>gid, 16)
        address.grh.sgid_index, address.grh.hop_limit = port.card["gid_index"], HOP_LIMIT
        address.grh.traffic_class = port.settings["tc"]
    return 0


cdef int modify(QueuePair self, hetccl_ibv_qp_attr_t* attr, int mask) except -1:
    cdef int rc
    with nogil:
        rc = self.port.opened.verbs.table.modify_qp(self.state.qp, attr, mask)
        rc = hetccl_verbs_errno(rc) if rc else 0
    if rc:
        self.failed("ibv_modify_qp", rc)
    return 0


# What attributes() asks for.
cdef int QUERY = (
    HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_ACCESS_FLAGS | HETCCL_IBV_QP_PKEY_INDEX | HETCCL_IBV_QP_PORT | HETCCL_IBV_QP_AV
    | HETCCL_IBV_QP_PATH_MTU | HETCCL_IBV_QP_TIMEOUT | HETCCL_IBV_QP_RETRY_CNT | HETCCL_IBV_QP_RNR_RETRY
    | HETCCL_IBV_QP_RQ_PSN | HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_MAX_QP_RD_ATOMIC | HETCCL_IBV_QP_MIN_RNR_TIMER
    | HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC | HETCCL_IBV_QP_CAP | HETCCL_IBV_QP_DEST_QPN
)
