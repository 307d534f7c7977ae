"""What is made of an RDMA device: domains, registrations, completion queues, queue pairs; layer L1.

Each object is made by its parent's class or a factory, holds its parents, and gives its handle back in close() or when
it is forgotten; a parent refuses to close before what was made of it. All methods are called with the GIL, which is
released while the kernel works. Posting and polling are C (include/hetccl/verbs.h), through the handles.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy, memset

from hetccl._verbs cimport (
    HETCCL_IBV_ACCESS_LOCAL_WRITE,
    HETCCL_IBV_ACCESS_REMOTE_WRITE,
    HETCCL_IBV_QP_ACCESS_FLAGS,
    HETCCL_IBV_QP_AV,
    HETCCL_IBV_QP_CAP,
    HETCCL_IBV_QP_DEST_QPN,
    HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC,
    HETCCL_IBV_QP_MAX_QP_RD_ATOMIC,
    HETCCL_IBV_QP_MIN_RNR_TIMER,
    HETCCL_IBV_QP_PATH_MTU,
    HETCCL_IBV_QP_PKEY_INDEX,
    HETCCL_IBV_QP_PORT,
    HETCCL_IBV_QP_RETRY_CNT,
    HETCCL_IBV_QP_RNR_RETRY,
    HETCCL_IBV_QP_RQ_PSN,
    HETCCL_IBV_QP_SQ_PSN,
    HETCCL_IBV_QP_STATE,
    HETCCL_IBV_QP_TIMEOUT,
    HETCCL_IBV_QPS_ERR,
    HETCCL_IBV_QPS_INIT,
    HETCCL_IBV_QPS_RTR,
    HETCCL_IBV_QPS_RTS,
    HETCCL_IBV_QPT_RC,
    hetccl_ibv_context_t,
    hetccl_ibv_qp_init_attr_t,
    hetccl_verbs_errno,
)
from hetccl._verbs_errors cimport verbs_raise

# Values of path_mtu from 1 on, in bytes.
MTUS = (256, 512, 1024, 2048, 4096)
# enum hetccl_ibv_qp_state
STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")


cdef int _still_used(what, int nlive) except -1:
    if nlive:
        raise ValueError(f"{what}: {nlive} of its objects are still open")
    return 0


cdef int _is_closed(what) except -1:
    raise ValueError(f"{what} is closed")


@cython.final
@cython.no_gc
cdef class ProtectionDomain:
    """Memory and queue pairs that may work together: `ProtectionDomain.alloc(device)`."""

    def __init__(self):
        raise TypeError("use ProtectionDomain.alloc(device)")

    def __dealloc__(self):
        if self.pd is not NULL:
            self.table.dealloc_pd(self.pd)
            self.device.nlive -= 1

    @staticmethod
    def alloc(Device device not None):
        """A new domain of an open device. Raises VerbsError."""
        cdef hetccl_ibv_context_t* context = device.opened()
        cdef ProtectionDomain domain = ProtectionDomain.__new__(ProtectionDomain)
        cdef int error = 0
        domain.table = device.verbs.table
        domain.device = device
        with nogil:
            domain.pd = domain.table.alloc_pd(context)
            if domain.pd is NULL:
                error = hetccl_verbs_errno(-1)
        if domain.pd is NULL:
            verbs_raise("ibv_alloc_pd", error, device.name, 0, "")
        device.nlive += 1
        return domain

    cdef hetccl_ibv_pd_t* opened(self) except NULL:
        if self.pd is NULL:
            _is_closed(self)
        return self.pd

    def register(self, uintptr_t address, size_t nbytes, int access=0):
        """Register memory that stays mapped until the region is closed.

        address, nbytes : the range
        access          : enum ibv_access; 0: the peer may write
        Raises          : VerbsError (the message explains RLIMIT_MEMLOCK where that may be why)
        """
        cdef hetccl_ibv_pd_t* pd = self.opened()
        cdef MemoryRegion region = MemoryRegion.__new__(MemoryRegion)
        cdef int flags = access or HETCCL_IBV_ACCESS_LOCAL_WRITE | HETCCL_IBV_ACCESS_REMOTE_WRITE
        cdef int error = 0
        region.domain = self
        with nogil:
            region.mr = self.table.reg_mr(pd, <void*> address, nbytes, flags)
            if region.mr is NULL:
                error = hetccl_verbs_errno(-1)
        if region.mr is NULL:
            verbs_raise("ibv_reg_mr", error, self.device.name, 0, f"{nbytes} bytes at {address:#x}")
        self.nlive += 1
        return region

    def close(self):
        """Give the domain back; idempotent. Raises ValueError while regions or queue pairs of it are open."""
        _still_used(self, self.nlive)
        cdef hetccl_ibv_pd_t* pd = self.pd
        if pd is NULL:
            return
        self.pd = NULL
        self.device.nlive -= 1
        cdef int rc
        with nogil:
            rc = self.table.dealloc_pd(pd)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_dealloc_pd", rc, self.device.name, 0, "")

    def __repr__(self):
        return f"<ProtectionDomain of {self.device.name}>"


@cython.final
@cython.no_gc
cdef class MemoryRegion:
    """Registered memory: `domain.register(address, nbytes)`."""

    def __init__(self):
        raise TypeError("use domain.register(address, nbytes)")

    def __dealloc__(self):
        if self.mr is not NULL:
            self.domain.table.dereg_mr(self.mr)
            self.domain.nlive -= 1

    @property
    def lkey(self):
        """The key for this side's requests."""
        return self.opened().lkey

    @property
    def rkey(self):
        """The key for the peer's requests."""
        return self.opened().rkey

    cdef hetccl_ibv_mr_t* opened(self) except NULL:
        if self.mr is NULL:
            _is_closed(self)
        return self.mr

    def close(self):
        """Give the registration back; idempotent."""
        cdef hetccl_ibv_mr_t* mr = self.mr
        if mr is NULL:
            return
        self.mr = NULL
        self.domain.nlive -= 1
        cdef int rc
        with nogil:
            rc = self.domain.table.dereg_mr(mr)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_dereg_mr", rc, self.domain.device.name, 0, "")


@cython.final
@cython.no_gc
cdef class CompletionChannel:
    """A descriptor that becomes readable when an armed completion queue gets something: `CompletionChannel.open`."""

    def __init__(self):
        raise TypeError("use CompletionChannel.open(device)")

    def __dealloc__(self):
        if self.channel is not NULL:
            self.device.verbs.table.destroy_comp_channel(self.channel)
            self.device.nlive -= 1

    @staticmethod
    def open(Device device not None):
        """A new channel of an open device. Raises VerbsError."""
        cdef hetccl_ibv_context_t* context = device.opened()
        cdef CompletionChannel channel = CompletionChannel.__new__(CompletionChannel)
        cdef int error = 0
        channel.device = device
        with nogil:
            channel.channel = device.verbs.table.create_comp_channel(context)
            if channel.channel is NULL:
                error = hetccl_verbs_errno(-1)
        if channel.channel is NULL:
            verbs_raise("ibv_create_comp_channel", error, device.name, 0, "")
        device.nlive += 1
        return channel

    @property
    def fd(self):
        """The descriptor; -1 once closed."""
        return -1 if self.channel is NULL else self.channel.fd

    def close(self):
        """Give the channel back; idempotent. Raises ValueError while completion queues use it."""
        _still_used(self, self.nlive)
        cdef hetccl_ibv_comp_channel_t* channel = self.channel
        if channel is NULL:
            return
        self.channel = NULL
        self.device.nlive -= 1
        cdef int rc
        with nogil:
            rc = self.device.verbs.table.destroy_comp_channel(channel)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_destroy_comp_channel", rc, self.device.name, 0, "")


@cython.final
@cython.no_gc
cdef class CompletionQueue:
    """Where the completions of queue pairs go: `CompletionQueue.create(device, depth)`."""

    def __init__(self):
        raise TypeError("use CompletionQueue.create(device, depth)")

    def __dealloc__(self):
        if self.cq is not NULL:
            _cq_destroy(self)

    @staticmethod
    def create(Device device not None, int depth, CompletionChannel channel=None):
        """A new queue for `depth` completions at least; channel: where it announces them once it is armed.

        Raises : VerbsError (the message explains RLIMIT_MEMLOCK where that may be why)
        """
        cdef hetccl_ibv_context_t* context = device.opened()
        cdef CompletionQueue queue = CompletionQueue.__new__(CompletionQueue)
        cdef hetccl_ibv_comp_channel_t* announces = NULL if channel is None else channel.channel
        cdef int error = 0
        queue.device = device
        queue.channel = channel
        with nogil:
            queue.cq = device.verbs.table.create_cq(context, depth, NULL, announces, 0)
            if queue.cq is NULL:
                error = hetccl_verbs_errno(-1)
        if queue.cq is NULL:
            verbs_raise("ibv_create_cq", error, device.name, 0, f"{depth} entries")
        device.nlive += 1
        if channel is not None:
            channel.nlive += 1
        return queue

    cdef hetccl_ibv_cq_t* opened(self) except NULL:
        if self.cq is NULL:
            _is_closed(self)
        return self.cq

    @property
    def depth(self):
        """Completions that the queue can hold."""
        return self.opened().cqe

    def resize(self, int depth):
        """Make room for `depth` completions. Raises VerbsError, and the queue stays as it was."""
        cdef hetccl_ibv_cq_t* cq = self.opened()
        cdef int rc
        with nogil:
            rc = self.device.verbs.table.resize_cq(cq, depth)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_resize_cq", rc, self.device.name, 0, f"{cq.cqe} to {depth} entries")

    def close(self):
        """Give the queue back; idempotent. Raises ValueError while queue pairs use it."""
        _still_used(self, self.nlive)
        if self.cq is NULL:
            return
        cdef int rc
        with nogil:
            rc = _cq_destroy(self)
        if rc:
            verbs_raise("ibv_destroy_cq", rc, self.device.name, 0, "")


cdef int _cq_destroy(CompletionQueue queue) noexcept nogil:
    """0 or errno."""
    cdef const hetccl_verbs_t* table = queue.device.verbs.table
    cdef hetccl_ibv_cq_t* cq = queue.cq
    queue.cq = NULL
    queue.device.nlive -= 1
    if queue.channel is not None:
        queue.channel.nlive -= 1
    if queue.nevents:
        table.ack_cq_events(cq, queue.nevents)
        queue.nevents = 0
    cdef int rc = table.destroy_cq(cq)
    return hetccl_verbs_errno(rc) if rc else 0


@cython.final
@cython.no_gc
cdef class QueuePair:
    """One end of a reliable connection: `QueuePair.create(...)`, to_init, to_rtr, to_rts."""

    def __init__(self):
        raise TypeError("use QueuePair.create(domain, send_cq, recv_cq, ...)")

    def __dealloc__(self):
        if self.qp is not NULL:
            _qp_destroy(self)

    @staticmethod
    def create(
        ProtectionDomain domain not None, CompletionQueue send_cq not None, CompletionQueue recv_cq not None, *,
        unsigned send_depth, unsigned recv_depth, unsigned pieces=1, unsigned inline_nbytes=0,
    ):
        """A new queue pair in state RESET, whose sends are completed only where they ask for it.

        send_depth, recv_depth : work requests    pieces : of memory, of one send
        inline_nbytes          : bytes that a send may carry in its request
        Raises                 : VerbsError (more than the device has; memory that may not be locked)
        """
        cdef hetccl_ibv_pd_t* pd = domain.opened()
        cdef hetccl_ibv_qp_init_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.send_cq = send_cq.opened()
        attr.recv_cq = recv_cq.opened()
        attr.qp_type = HETCCL_IBV_QPT_RC
        attr.cap.max_send_wr, attr.cap.max_recv_wr = send_depth, recv_depth
        attr.cap.max_send_sge, attr.cap.max_recv_sge = pieces, 1
        attr.cap.max_inline_data = inline_nbytes
        cdef QueuePair pair = QueuePair.__new__(QueuePair)
        cdef int error = 0
        pair.domain, pair.send_cq, pair.recv_cq = domain, send_cq, recv_cq
        with nogil:
            pair.qp = domain.table.create_qp(pd, &attr)
            if pair.qp is NULL:
                error = hetccl_verbs_errno(-1)
        if pair.qp is NULL:
            asked = f"{send_depth} sends of {pieces} pieces and {inline_nbytes} inline bytes, {recv_depth} receives"
            verbs_raise("ibv_create_qp", error, domain.device.name, 0, asked)
        pair.cap = attr.cap
        domain.nlive += 1
        send_cq.nlive += 1
        recv_cq.nlive += 1
        return pair

    cdef hetccl_ibv_qp_t* opened(self) except NULL:
        if self.qp is NULL:
            _is_closed(self)
        return self.qp

    @property
    def number(self):
        """What the peer's end connects to, 24 bits."""
        return self.opened().qp_num

    @property
    def depths(self):
        """What the device gave: dict of "send_depth", "recv_depth", "pieces", "inline_nbytes"."""
        self.opened()
        return {
            "send_depth": self.cap.max_send_wr, "recv_depth": self.cap.max_recv_wr, "pieces": self.cap.max_send_sge,
            "inline_nbytes": self.cap.max_inline_data,
        }

    cdef int modify(self, hetccl_ibv_qp_attr_t* attr, int mask, str what) except -1:
        cdef hetccl_ibv_qp_t* qp = self.opened()
        cdef int rc
        with nogil:
            rc = self.domain.table.modify_qp(qp, attr, mask)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_modify_qp", rc, self.domain.device.name, self.port, f"queue pair {qp.qp_num} {what}")
        return 0

    def to_init(self, uint8_t port, *, int pkey_index=0):
        """RESET to INIT: receives can be posted; the peer will be allowed to write."""
        cdef hetccl_ibv_qp_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = HETCCL_IBV_QPS_INIT
        attr.port_num = port
        attr.pkey_index = pkey_index
        attr.qp_access_flags = HETCCL_IBV_ACCESS_REMOTE_WRITE
        self.port = port
        self.modify(
            &attr,
            HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_PKEY_INDEX | HETCCL_IBV_QP_PORT | HETCCL_IBV_QP_ACCESS_FLAGS, "to INIT",
        )

    def to_rtr(
        self, *, uint32_t number, uint32_t psn, int mtu, bytes gid=None, int gid_index=0, int lid=0, int hop_limit=64,
        int traffic_class=0, int service_level=0, int min_rnr_timer=12, int rd_atomic=1,
    ):
        """INIT to RTR: what the peer's end sends is taken.

        number, psn : the peer's queue pair and first packet number
        mtu         : bytes of payload of a packet, a power of two from 256 to 4096, the same at both ends
        gid         : None (InfiniBand, one subnet: lid alone counts) | 16 bytes, the peer's; gid_index: this side's
        """
        if gid is not None and len(gid) != 16:
            raise ValueError(f"gid: {len(gid)} bytes; a GID has 16")
        if mtu not in MTUS:
            raise ValueError(f"mtu: {mtu}; it is one of {', '.join(map(str, MTUS))}")
        cdef hetccl_ibv_qp_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = HETCCL_IBV_QPS_RTR
        attr.path_mtu = MTUS.index(mtu) + 1
        attr.dest_qp_num, attr.rq_psn = number, psn
        attr.max_dest_rd_atomic, attr.min_rnr_timer = rd_atomic, min_rnr_timer
        attr.ah_attr.dlid, attr.ah_attr.sl, attr.ah_attr.port_num = lid, service_level, self.port
        if gid is not None:
            attr.ah_attr.is_global = 1
            memcpy(attr.ah_attr.grh.dgid.raw, <const char*> gid, 16)
            attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit = gid_index, hop_limit
            attr.ah_attr.grh.traffic_class = traffic_class
        self.modify(
            &attr,
            HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_AV | HETCCL_IBV_QP_PATH_MTU | HETCCL_IBV_QP_DEST_QPN
            | HETCCL_IBV_QP_RQ_PSN | HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC | HETCCL_IBV_QP_MIN_RNR_TIMER,
            f"to RTR, the peer's is {number}",
        )

    def to_rts(self, *, uint32_t psn, int timeout=18, int retry_cnt=6, int rnr_retry=6, int rd_atomic=1):
        """RTR to RTS: sends go out. psn : this side's first packet number"""
        cdef hetccl_ibv_qp_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = HETCCL_IBV_QPS_RTS
        attr.sq_psn = psn
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = timeout, retry_cnt, rnr_retry, rd_atomic
        self.modify(
            &attr,
            HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_TIMEOUT | HETCCL_IBV_QP_RETRY_CNT
            | HETCCL_IBV_QP_RNR_RETRY | HETCCL_IBV_QP_MAX_QP_RD_ATOMIC,
            "to RTS",
        )

    def to_error(self):
        """Any state to ERR: what is posted is completed as flushed, and nothing comes in any more."""
        cdef hetccl_ibv_qp_attr_t attr
        memset(&attr, 0, sizeof(attr))
        attr.qp_state = HETCCL_IBV_QPS_ERR
        self.modify(&attr, HETCCL_IBV_QP_STATE, "to ERR")

    def attributes(self):
        """What the device has noted: dict of "state" and the connection's numbers, as to_rtr and to_rts name them."""
        cdef hetccl_ibv_qp_t* qp = self.opened()
        cdef hetccl_ibv_qp_attr_t attr
        cdef hetccl_ibv_qp_init_attr_t init
        cdef int rc, mask = HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_AV | HETCCL_IBV_QP_PATH_MTU | HETCCL_IBV_QP_CAP
        mask |= HETCCL_IBV_QP_TIMEOUT | HETCCL_IBV_QP_RETRY_CNT | HETCCL_IBV_QP_RNR_RETRY | HETCCL_IBV_QP_DEST_QPN
        mask |= HETCCL_IBV_QP_MIN_RNR_TIMER | HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_RQ_PSN
        memset(&attr, 0, sizeof(attr))
        with nogil:
            rc = self.domain.table.query_qp(qp, &attr, mask, &init)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_query_qp", rc, self.domain.device.name, self.port, f"queue pair {qp.qp_num}")
        return {
            "state": STATES[attr.qp_state], "mtu": 128 << attr.path_mtu, "number": attr.dest_qp_num,
            "timeout": attr.timeout, "retry_cnt": attr.retry_cnt, "rnr_retry": attr.rnr_retry,
            "min_rnr_timer": attr.min_rnr_timer, "gid_index": attr.ah_attr.grh.sgid_index,
            "traffic_class": attr.ah_attr.grh.traffic_class, "service_level": attr.ah_attr.sl,
            "hop_limit": attr.ah_attr.grh.hop_limit,
        }

    def close(self):
        """Give the queue pair back; idempotent. What it has posted is not completed any more."""
        if self.qp is NULL:
            return
        cdef int rc
        with nogil:
            rc = _qp_destroy(self)
        if rc:
            verbs_raise("ibv_destroy_qp", rc, self.domain.device.name, self.port, "")


cdef int _qp_destroy(QueuePair pair) noexcept nogil:
    """0 or errno."""
    cdef hetccl_ibv_qp_t* qp = pair.qp
    pair.qp = NULL
    pair.domain.nlive -= 1
    pair.send_cq.nlive -= 1
    pair.recv_cq.nlive -= 1
    cdef int rc = pair.domain.table.destroy_qp(qp)
    return hetccl_verbs_errno(rc) if rc else 0
