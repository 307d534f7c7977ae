"""libibverbs behind one table (include/hetccl/verbs.h), and its devices; layer L1.

Opened once per process, on first use; nothing is ever linked with it. Everything here is called with the GIL, which is
released while the library talks to the kernel. Calls through the table need neither GIL nor lock.
"""

import io
import os
import socket

cimport cython
from libc.errno cimport ENODEV, ENOSYS, errno
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl.errors import VerbsError

from hetccl._dl cimport Library
from hetccl._verbs_errors cimport error_text, verbs_raise

SONAMES = ("libibverbs.so.1",)

PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
GID_TYPES = {
    HETCCL_IBV_GID_TYPE_IB: "IB",
    HETCCL_IBV_GID_TYPE_ROCE_V1: "RoCE v1",
    HETCCL_IBV_GID_TYPE_ROCE_V2: "RoCE v2",
}
# hetccl_ibv_port_attr_t.active_width and active_speed: lanes, and Gb/s of a lane.
WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
SPEEDS = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}

cdef Verbs the_verbs = None
cdef hetccl_verbs_t the_table


@cython.final
cdef class Verbs:
    """libibverbs, opened: `open()`.

    library   : hetccl._dl.Library
    fork_safe : bool, whether a child process leaves registered memory as it is
    fork      : str, why
    """

    def __init__(self):
        raise TypeError("use hetccl._verbs.open()")

    def missing(self):
        """The functions that hetccl does without where the library lacks them: tuple of (name, version)."""
        cdef int i
        rows = []
        for i in range(HETCCL_VERBS_NSYMBOLS):
            row = &hetccl_verbs_symbols[i]
            if (<void**> (<char*> self.table + row.offset))[0] is NULL:
                rows.append((row.name.decode(), row.version.decode()))
        return tuple(rows)

    def __repr__(self):
        return f"<Verbs {self.library.path}>"


def open(override=None):
    """The library of this process; the same Verbs each time.

    override : None | str, path or name of the library; it counts for the first call
    Raises   : LibraryNotFound (with each path tried), SymbolNotFound (older than the first rdma-core)
    """
    return verbs_open(override)


cdef Verbs verbs_open(str override):
    global the_verbs
    if the_verbs is not None:
        return the_verbs
    cdef Library library = Library.open(SONAMES, override=override)
    # The loader has released the GIL: another thread may have been as far.
    if the_verbs is not None:
        return the_verbs
    cdef int i
    for i in range(HETCCL_VERBS_NSYMBOLS):
        row = &hetccl_verbs_symbols[i]
        slot = <void**> (<char*> &the_table + row.offset)
        if row.needed:
            slot[0] = library.symbol(row.name, row.version)
        else:
            slot[0] = library.find(row.name, row.version)
    cdef Verbs verbs = Verbs.__new__(Verbs)
    verbs.table = &the_table
    verbs.library = library
    _make_fork_safe(verbs)
    the_verbs = verbs
    return verbs


cdef int _make_fork_safe(Verbs verbs) except -1:
    """Before the first registration: afterwards it is too late."""
    cdef int status = HETCCL_IBV_FORK_DISABLED
    if verbs.table.is_fork_initialized is not NULL:
        status = verbs.table.is_fork_initialized()
    verbs.fork_safe = True
    if status == HETCCL_IBV_FORK_UNNEEDED:
        verbs.fork = "the kernel copies registered memory when a process forks"
        return 0
    if status == HETCCL_IBV_FORK_ENABLED:
        verbs.fork = "the program has called ibv_fork_init: registered pages are kept from child processes"
        return 0
    cdef int rc = verbs.table.fork_init()
    if rc == 0:
        verbs.fork = "ibv_fork_init: registered pages are kept from child processes"
        return 0
    error = hetccl_verbs_errno(rc)
    verbs.fork_safe = False
    verbs.fork = (
        f"ibv_fork_init failed: {error_text(error)}. Another library has registered memory before, or the kernel "
        f"cannot: a fork may disturb transfers under way; multiprocessing's spawn does not"
    )
    return 0


@cython.final
@cython.no_gc
cdef class Device:
    """An RDMA device, opened: `Device.open("mlx5_0")`.

    Close it after what was made of it. A device that is forgotten closes itself.
    """

    def __cinit__(self):
        self.context = NULL

    def __init__(self):
        raise TypeError("use Device.open(name)")

    def __dealloc__(self):
        if self.context is not NULL:
            self.verbs.table.close_device(self.context)

    @staticmethod
    def open(str name, override=None):
        """Open a device by its name; override as for hetccl._verbs.open.

        Raises : VerbsError (it may not be opened), ValueError (there is none of this name), LibraryNotFound
        """
        cdef Verbs verbs = verbs_open(override)
        cdef int count = 0
        cdef hetccl_ibv_device_t** listed = device_list(verbs, &count)
        names = []
        try:
            for i in range(count):
                one = verbs.table.get_device_name(listed[i]).decode()
                names.append(one)
                if one == name:
                    return device_open(verbs, listed[i], name)
        finally:
            if listed is not NULL:
                verbs.table.free_device_list(listed)
        raise ValueError(f"name: there is no RDMA device {name!r}; there are: {', '.join(names) or 'none'}")

    cdef hetccl_ibv_context_t* opened(self) except NULL:
        if self.context is NULL:
            raise ValueError(f"{self.name} is closed")
        return self.context

    def close(self):
        """Give the device back; idempotent. Raises VerbsError."""
        cdef hetccl_ibv_context_t* context = self.context
        self.context = NULL
        if context is NULL:
            return
        cdef int rc
        with nogil:
            rc = self.verbs.table.close_device(context)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_close_device", rc, self.name, 0, "")

    def __repr__(self):
        return f"<Device {self.name}{'' if self.context is not NULL else ' closed'}>"


cdef hetccl_ibv_device_t** device_list(Verbs verbs, int* count_p) except? NULL:
    """The list, to be freed; NULL and no error where the kernel knows no RDMA at all."""
    cdef hetccl_ibv_device_t** listed
    cdef int error
    with nogil:
        listed = verbs.table.get_device_list(count_p)
        error = errno
    if listed is NULL:
        count_p[0] = 0
        if error and error != ENOSYS:
            verbs_raise("ibv_get_device_list", error, "", 0, "")
    return listed


cdef Device device_open(Verbs verbs, hetccl_ibv_device_t* listed, str name):
    cdef hetccl_ibv_context_t* context
    cdef int error = 0
    with nogil:
        context = verbs.table.open_device(listed)
        if context is NULL:
            error = errno
    if context is NULL:
        verbs_raise("ibv_open_device", error or ENODEV, name, 0, "")
    cdef Device device = Device.__new__(Device)
    device.verbs = verbs
    device.context = context
    device.name = name
    return device


def devices(override=None, problems=None):
    """Every port of every RDMA device that hetccl could use, by name and number: list of dict.

    device, port : "mlx5_0", 1
    state        : "ACTIVE", "DOWN", ...      link_layer : "InfiniBand" | "Ethernet"
    active_mtu   : bytes of payload           rate       : "100 Gb/sec (4X EDR)", or "100 Gb/sec"
    lid, sm_lid  : int, 0 on Ethernet         guid       : "506b:4b03:00d1:6a5c"
    max_qp, max_mr, max_qp_wr, max_sge, max_qp_rd_atom, npkeys : int
    gids         : [{"index", "gid" (32 hexadecimal digits), "type" ("IB" | "RoCE v1" | "RoCE v2"), "netdev"}]
    ngids        : length of the table, of which gids are the entries that are not zero
    sys, numa    : folder of the PCI device in sysfs, "" without one; its NUMA node, -1: none or not known

    override : as for hetccl._verbs.open
    problems : None | list, to which a line is added for each device that cannot be asked or used
    Raises   : LibraryNotFound, SymbolNotFound, VerbsError (the library cannot list devices)
    """
    cdef Verbs verbs = verbs_open(override)
    cdef int i, count = 0
    cdef hetccl_ibv_device_t** listed = device_list(verbs, &count)
    found, troubles = [], []
    try:
        for i in range(count):
            name = verbs.table.get_device_name(listed[i]).decode()
            if listed[i].transport_type != HETCCL_IBV_TRANSPORT_IB:
                troubles.append(f"{name} is not used: iWARP and other transports need a connection manager")
                continue
            try:
                found += _ports_of(verbs, listed[i], name)
            except VerbsError as error:
                troubles.append(str(error))
    finally:
        if listed is not NULL:
            verbs.table.free_device_list(listed)
    if problems is not None:
        problems += troubles
    return sorted(found, key=lambda port: (port["device"], port["port"]))


cdef list _ports_of(Verbs verbs, hetccl_ibv_device_t* listed, str name):
    device = device_open(verbs, listed, name)
    try:
        return _ports(device)
    finally:
        device.close()


cdef list _ports(Device device):
    cdef hetccl_ibv_context_t* context = device.opened()
    cdef hetccl_ibv_device_attr_t limits
    cdef hetccl_ibv_port_attr_t attr
    cdef int rc, port
    memset(&limits, 0, sizeof(limits))
    with nogil:
        rc = device.verbs.table.query_device(context, &limits)
        rc = hetccl_verbs_errno(rc) if rc else 0
    if rc:
        verbs_raise("ibv_query_device", rc, device.name, 0, "")
    folder = context.device.ibdev_path.decode()
    pci = _pci_folder(folder)
    common = {
        "guid": _guid_text(device.verbs.table.get_device_guid(context.device)), "max_qp": limits.max_qp,
        "max_mr": limits.max_mr, "max_qp_wr": limits.max_qp_wr, "max_sge": limits.max_sge,
        "max_qp_rd_atom": limits.max_qp_rd_atom, "sys": pci, "numa": _number(f"{pci}/numa_node") if pci else -1,
    }
    ports = []
    for port in range(1, limits.phys_port_cnt + 1):
        memset(&attr, 0, sizeof(attr))
        with nogil:
            rc = device.verbs.table.query_port(context, port, &attr)
            rc = hetccl_verbs_errno(rc) if rc else 0
        if rc:
            verbs_raise("ibv_query_port", rc, device.name, port, "")
        ports.append({
            "device": device.name, "port": port,
            "state": PORT_STATES[attr.state] if 0 <= attr.state < len(PORT_STATES) else f"state {attr.state}",
            "link_layer": "Ethernet" if attr.link_layer == HETCCL_IBV_LINK_LAYER_ETHERNET else "InfiniBand",
            "active_mtu": 128 << attr.active_mtu, "lid": attr.lid, "sm_lid": attr.sm_lid,
            "rate": _text(f"{folder}/ports/{port}/rate") or _rate_text(attr.active_width, attr.active_speed),
            "npkeys": attr.pkey_tbl_len, "ngids": attr.gid_tbl_len, "gids": [], **common,
        })
    for port, gid in _gids(device, ports):
        ports[port - 1]["gids"].append(gid)
    return ports


cdef list _gids(Device device, list ports):
    """(port, entry) of the GIDs of all ports that are not zero."""
    found = _gids_by_table(device, ports) if device.verbs.table.query_gid_table is not NULL else None
    if found is None:
        found = _gids_by_index(device, ports)
    return [(port, entry) for port, entry in found if int(entry["gid"], 16)]


cdef list _gids_by_table(Device device, list ports):
    """The same in one call; None if the kernel or the library cannot."""
    cdef size_t nentries = sum(port["ngids"] for port in ports)
    cdef hetccl_ibv_gid_entry_t* entries = <hetccl_ibv_gid_entry_t*> calloc(nentries + 1, sizeof(entries[0]))
    cdef ssize_t i, got
    if entries is NULL:
        raise MemoryError
    try:
        with nogil:
            got = device.verbs.table.query_gid_table(device.context, entries, nentries + 1, 0, sizeof(entries[0]))
        if got < 0:
            return None
        found = []
        for i in range(got):
            entry = &entries[i]
            found.append((entry.port_num, {
                "index": entry.gid_index, "gid": (<bytes> entry.gid.raw[:16]).hex(),
                "type": GID_TYPES.get(entry.gid_type, f"type {entry.gid_type}"),
                "netdev": _netdev(entry.ndev_ifindex),
            }))
        return found
    finally:
        free(entries)


cdef list _gids_by_index(Device device, list ports):
    cdef hetccl_ibv_gid_t gid
    cdef int rc, index
    cdef uint8_t port
    found = []
    folder = device.context.device.ibdev_path.decode()
    for about in ports:
        port = about["port"]
        attrs = f"{folder}/ports/{port}/gid_attrs"
        for index in range(about["ngids"]):
            rc = device.verbs.table.query_gid(device.context, port, index, &gid)
            if rc or (gid.half[0] == 0 and gid.half[1] == 0):
                continue
            # The kernel's text for type 0 is "IB/RoCE v1", whichever it is.
            kind = _text(f"{attrs}/types/{index}")
            if kind != "RoCE v2":
                kind = "RoCE v1" if about["link_layer"] == "Ethernet" else "IB"
            found.append((port, {
                "index": index, "gid": (<bytes> gid.raw[:16]).hex(), "type": kind,
                "netdev": _text(f"{attrs}/ndevs/{index}"),
            }))
    return found


cdef str _netdev(unsigned ifindex):
    """The interface's name; "" if there is none, or it lies in another network namespace."""
    try:
        return socket.if_indextoname(ifindex) if ifindex else ""
    except OSError:
        return ""


cdef str _guid_text(uint64_t guid):
    """guid : big endian, as it lies in memory"""
    digits = (<bytes> (<char*> &guid)[:8]).hex()
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


cdef str _rate_text(int width, int speed):
    return f"{WIDTHS.get(width, 0) * SPEEDS.get(speed, 0):g} Gb/sec"


cdef str _pci_folder(str folder):
    """Where the device of a folder in /sys/class/infiniband hangs; "" if it is not a real one."""
    path = f"{folder}/device"
    return os.path.realpath(path) if folder and os.path.exists(path) else ""


cdef int _number(str path) noexcept:
    try:
        return int(_text(path) or -1)
    except ValueError:
        return -1


cdef str _text(str path):
    """A small file's text, stripped; "" if it is missing."""
    try:
        with io.open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
