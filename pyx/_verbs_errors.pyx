"""The errors of libibverbs in words: failed calls, failed completions, events; layer L1.

Everything here is called with the GIL and touches no library.
"""

import errno
import os
import resource

from hetccl.errors import VerbsError

# enum hetccl_ibv_wc_status, in its order: name, and what it means for a user.
COMPLETIONS = (
    ("SUCCESS", ""),
    ("LOC_LEN_ERR", "A request was longer than the queue pair takes"),
    ("LOC_QP_OP_ERR", "This host's device could not carry out the request: its link or network interface may be down"),
    ("LOC_EEC_OP_ERR", ""),
    ("LOC_PROT_ERR", "This rank's memory is not registered with the key in use: was it unmapped?"),
    ("WR_FLUSH_ERR", "The queue pair had been closed by an earlier fault"),
    ("MW_BIND_ERR", ""),
    ("BAD_RESP_ERR", "The peer's device answered what the request does not allow: compare the firmware of both"),
    ("LOC_ACCESS_ERR", "This rank's memory does not allow what the peer asked for"),
    ("REM_INV_REQ_ERR", "The peer's device refuses such a request"),
    ("REM_ACCESS_ERR", "The peer's memory is not registered with the key in use: was it unmapped, or registered anew?"),
    ("REM_OP_ERR", "The peer's device could not carry out the request"),
    (
        "RETRY_EXC_ERR",
        "The peer does not answer: its process or host has ended, a port or cable is down, the network drops packets "
        "(RoCE needs a lossless or well-tuned one), or the two GIDs do not reach each other (HETCCL_IB_GID_INDEX, "
        "HETCCL_IB_HCA); for slow networks raise HETCCL_IB_TIMEOUT",
    ),
    (
        "RNR_RETRY_EXC_ERR",
        "The peer is there, and has not taken in what came before: it may be stopped; HETCCL_IB_RNR_RETRY and "
        "HETCCL_IB_MIN_RNR_TIMER say how long to wait for it",
    ),
    ("LOC_RDD_VIOL_ERR", ""),
    ("REM_INV_RD_REQ_ERR", ""),
    ("REM_ABORT_ERR", "The peer's device gave the request up"),
    ("INV_EECN_ERR", ""),
    ("INV_EEC_STATE_ERR", ""),
    ("FATAL_ERR", "The device has failed: see the kernel's log (dmesg)"),
    ("RESP_TIMEOUT_ERR", "The peer's device answered too late"),
    ("GENERAL_ERR", "The device reports a fault of its own: see vendor error, and the kernel's log (dmesg)"),
)

# enum hetccl_ibv_event_type, in its order.
EVENTS = (
    "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
    "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
    "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
)

# Of linux/capability.h: who has it may lock any amount of memory.
CAP_IPC_LOCK = 14

# Calls whose memory counts against RLIMIT_MEMLOCK, and the errors that say so.
LOCKING = ("ibv_reg_mr", "ibv_reg_dmabuf_mr", "ibv_create_cq", "ibv_resize_cq", "ibv_create_qp")
LOCKED_OUT = (errno.ENOMEM, errno.EPERM, errno.EAGAIN)

# What to do, by call and error.
ADVICE = {
    ("ibv_open_device", errno.EACCES): "This user may not open the device's file in /dev/infiniband: see its "
    "permissions and udev's rules",
    ("ibv_open_device", errno.ENOENT): "The device has no file in /dev/infiniband: load ib_uverbs; in a container, "
    "pass the folder on (--device=/dev/infiniband)",
    ("ibv_reg_mr", errno.EFAULT): "The range is not all mapped and writable memory of this process; a GPU's memory "
    "needs a peer-memory module in the kernel (nvidia-peermem, amdgpu with peer-to-peer)",
    ("ibv_create_cq", errno.EINVAL): "The device has no completion queue as long as that",
    ("ibv_create_qp", errno.EINVAL): "The device has no queue pair with as many work requests, pieces or inline bytes: "
    "lower HETCCL_IB_SEND_QUEUE",
    ("ibv_modify_qp", errno.EINVAL): "The device refuses the connection's attributes: look at HETCCL_IB_*, and whether "
    "the GIDs of both sides are of one type",
    ("ibv_modify_qp", errno.ETIMEDOUT): "The peer's GID could not be resolved to an Ethernet address: do both ports "
    "lie in one network?",
    ("ibv_modify_qp", errno.ENETUNREACH): "There is no route from this port's GID to the peer's",
    ("ibv_modify_qp", errno.EHOSTUNREACH): "There is no route from this port's GID to the peer's",
}


cdef str error_text(int error):
    return f"{errno.errorcode.get(error, error)} ({os.strerror(error)})"


cdef int verbs_raise(str call, int error, str device, int port, str what) except -1:
    where = f" on {device}" if device else ""
    if port:
        where += f" port {port}"
    detail = f": {what}" if what else ""
    advice = memlock_advice() if call in LOCKING and error in LOCKED_OUT else ADVICE.get((call, error), "")
    raise VerbsError(
        f"{call} failed{where} with {error_text(error)}{detail}{f'. {advice}' if advice else ''}", call=call, code=error
    )


def memlock_text():
    """How much memory this process may lock, RLIMIT_MEMLOCK, in words: "64 KiB", "unlimited"."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if limit >= 1 << shift:
            return f"{limit / (1 << shift):.4g} {unit}"
    return f"{limit} bytes"


def may_lock_all(path="/proc/self/status"):
    """Whether the process has CAP_IPC_LOCK. In a container's user namespace the kernel does not count that: then
    registering fails at the limit, as where others have locked memory. Source: capabilities(7), proc(5) CapEff."""
    with open(path) as file:
        held = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return bool(int(held, 16) >> CAP_IPC_LOCK & 1)


def memlock_advice():
    """What to do where memory could not be registered: one or two sentences without the last full stop."""
    limit = memlock_text()
    if limit == "unlimited":
        return (
            "RLIMIT_MEMLOCK is unlimited, so that it is the machine's memory, the device's, or a control group's limit "
            "that is exhausted"
        )
    return (
        f"Registered memory counts against RLIMIT_MEMLOCK, which is {limit} here. Raise it where the job starts: "
        f"`ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in the unit of sshd or "
        f"slurmd, --ulimit memlock=-1 for a container"
    )


def completion_text(int status, unsigned vendor_err, str device, int port, str gid="", peer=None, str host=""):
    """A failed work completion in words: what, where, to whom, what it may mean.

    status : enum ibv_wc_status    gid : of this side's port, as people write it    peer : None | int, rank
    host   : the peer's, "" if not known
    """
    known = 0 <= status < len(COMPLETIONS)
    name, meaning = COMPLETIONS[status] if known else (f"status {status}", "")
    where = f"{device} port {port}{f', GID {gid}' if gid else ''}"
    whom = "" if peer is None else f" to rank {peer}{f' on {host}' if host else ''}"
    return (
        f"{name} (completion status {status}, vendor error {vendor_err:#x}) on {where}{whom}"
        f"{f'. {meaning}' if meaning else ''}"
    )


def event_text(int event, str device, int port=0):
    """An asynchronous event of a device in words. event : enum ibv_event_type; port : 0: of none"""
    name = EVENTS[event] if 0 <= event < len(EVENTS) else f"event {event}"
    return f"{name} on {device}{f' port {port}' if port else ''}"
