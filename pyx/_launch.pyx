"""Layer L3: the calls of an island's vendor CCL: which of its functions a collective is.

Most are one function of the library, on the caller's stream. What the library lacks is a group of its sends and
receives, or a short composition; these use the stream alone, so the host never waits. The GIL is held on entry and
released for the library, which may block when a stream's queue is full, if there is another thread to take it.
"""

from libc.stdlib cimport calloc, free

from hetccl._abi cimport HETCCL_UINT8
from hetccl._calls cimport (
    ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLTOALLW, BCAST, EXSCAN, GATHER, GATHERV, NCOLLECTIVES,
    REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, SCATTER, SCATTERV,
)
from hetccl._ccl cimport hetccl_ccl_t
from hetccl._runtime cimport HETCCL_MISSING
from hetccl._vendor cimport vendor_hold, vendor_release

from hetccl._calls import CALLS

cdef extern from *:
    """
    /* Nobody else wants the GIL: giving it up and taking it again costs as much as the rest of a call. */
    static int hetccl_is_alone(void)
    {
        PyThreadState *me = PyThreadState_Get();
        return PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(me)) == me && PyThreadState_Next(me) == NULL;
    }
    """
    bint hetccl_is_alone() noexcept

cdef enum:
    # ncclScalarHostImmediate: the factor is read during the call.
    HOST_IMMEDIATE = 1

# Names of the table's functions, for errors, by call.
cdef dict FUNCTIONS = {
    ALLREDUCE: "all_reduce", REDUCE: "reduce", BCAST: "broadcast", ALLGATHER: "all_gather",
    REDUCE_SCATTER_BLOCK: "reduce_scatter", ALLTOALL: "all_to_all", GATHER: "gather", SCATTER: "scatter",
}

# What no group of sends and receives stands in for: a library that lacks the function cannot do the call.
cdef tuple IRREPLACEABLE = (ALLREDUCE, REDUCE, BCAST, ALLGATHER, REDUCE_SCATTER_BLOCK)


cdef int launch_run(VendorComm vendor, Launch* launch) except -1:
    if hetccl_is_alone():
        return launch_in_group(vendor, launch)
    vendor.lock(CALLS[launch.call])
    try:
        launch_in_group(vendor, launch)
    finally:
        vendor.unlock()
    return 0


cdef int launch_in_group(VendorComm vendor, Launch* launch) except -1:
    if not vendor.is_usable():
        vendor.usable(CALLS[launch.call])
    launch.comm = vendor_hold(vendor)
    try:
        if launch.comm == NULL:
            vendor.usable(CALLS[launch.call])  # it has just been taken away: raises
        run(vendor, launch)
    finally:
        vendor_release(vendor)
    return 0


cdef int run(VendorComm vendor, Launch* launch) except -1:
    cdef int code
    if launch.count == 0 and launch.call < NCOLLECTIVES and launch.in_parts == NULL and launch.out_parts == NULL:
        return 0
    if not launch_groups(launch):
        return run_steps(vendor, launch)
    if hetccl_is_alone():
        code = function_of(vendor.functions, launch.comm, launch)
    else:
        with nogil:
            code = function_of(vendor.functions, launch.comm, launch)
    if code == HETCCL_MISSING and launch.call not in IRREPLACEABLE:
        return run_steps(vendor, launch)
    if code != 0:
        step(vendor, code, launch, FUNCTIONS[launch.call])
    if launch.divide != NULL and launch.target != NULL:
        divide(launch)
    return 0


cdef int run_steps(VendorComm vendor, Launch* launch) except -1:
    """A call that is more than one function of the library. The runtime's functions want the device to be entered."""
    cdef void* saved = NULL
    vendor.runtime.check(vendor.gpu.enter(vendor.device, &saved), "enter")
    try:
        if launch.scales:
            run_scaled(vendor, launch)
        elif launch.call == SCAN or launch.call == EXSCAN:
            run_scan(vendor, launch)
        elif launch.in_place:
            run_in_place(vendor, launch)
        else:
            run_parts(vendor, launch)
    finally:
        vendor.gpu.leave(saved)
    return 0


cdef void divide(Launch* launch) noexcept:
    cdef const void* sums = launch.target
    with nogil:
        launch.divide(launch.target, &sums, 1, launch.count, launch.divisor)


cdef int function_of(const hetccl_ccl_t* f, void* comm, Launch* launch) noexcept nogil:
    """The library's one function for the call; HETCCL_MISSING if there is none."""
    cdef const uint8_t* source = launch.source
    cdef uint8_t* target = launch.target
    cdef size_t n = launch.count * launch.lanes
    cdef int call = launch.call
    if call == ALLREDUCE:
        return f.all_reduce(source, target, n, launch.dtype, launch.op, comm, launch.stream)
    if call == ALLGATHER:
        return f.all_gather(source, target, n, launch.dtype, comm, launch.stream)
    if call == REDUCE_SCATTER_BLOCK:
        return f.reduce_scatter(source, target, n, launch.dtype, launch.op, comm, launch.stream)
    if call == BCAST:
        return f.broadcast(source, target, n, launch.dtype, launch.root, comm, launch.stream)
    if call == REDUCE:
        return f.reduce(source, target, n, launch.dtype, launch.op, launch.root, comm, launch.stream)
    if call == ALLTOALL:
        return f.all_to_all(source, target, n, launch.dtype, comm, launch.stream)
    if call == GATHER:
        return f.gather(source, target, n, launch.dtype, launch.root, comm, launch.stream)
    if call == SCATTER:
        return f.scatter(source, target, n, launch.dtype, launch.root, comm, launch.stream)
    return HETCCL_MISSING


cdef inline int step(VendorComm vendor, int code, Launch* launch, str function) except -1:
    """The outcome of one function of the library: what follows may rely on it being queued."""
    if code != 0:
        vendor.conclude(code, CALLS[launch.call], function)
    return 0


cdef int run_parts(VendorComm vendor, Launch* launch) except -1:
    """A call as sends and receives, or as reductions of parts, in one group."""
    cdef Part* parts
    if launch.call == REDUCE_SCATTER:
        return run_uneven(vendor, launch, launch.out_parts[0].ptr)
    parts = <Part*>calloc(2 * vendor.nranks, sizeof(Part))
    if parts == NULL:
        raise MemoryError()
    try:
        parts_of(launch, vendor.rank, vendor.nranks, parts, parts + vendor.nranks)
        exchange(vendor, launch, parts, parts + vendor.nranks)
    finally:
        free(parts)
    return 0


cdef inline Part unit(uint8_t* base, int64_t index, int64_t nbytes) noexcept nogil:
    cdef Part part
    part.ptr, part.nbytes, part.layout = base + index * nbytes, nbytes, NULL
    return part


cdef void parts_of(const Launch* launch, int rank, int nranks, Part* sends, Part* recvs) noexcept nogil:
    """What goes to and comes from each rank."""
    cdef int call = launch.call, root = launch.root, r
    cdef int64_t nbytes = launch.count * <int64_t>launch.itemsize
    cdef bint at_root = rank == root
    if call == GATHER:
        sends[root] = unit(launch.source, 0, nbytes)
    elif call == GATHERV:
        sends[root] = launch.in_parts[0]
    elif call == SCATTER:
        recvs[root] = unit(launch.target, 0, nbytes)
    elif call == SCATTERV:
        recvs[root] = launch.out_parts[0]
    elif call >= NCOLLECTIVES:
        if launch.dest != NO_PEER:
            sends[launch.dest] = unit(launch.source, 0, launch.count)
        if launch.source_rank != NO_PEER:
            recvs[launch.source_rank] = unit(launch.target, 0, launch.room)
        return
    for r in range(nranks):
        if call == ALLTOALL:
            sends[r], recvs[r] = unit(launch.source, r, nbytes), unit(launch.target, r, nbytes)
        elif call == ALLTOALLV or call == ALLTOALLW:
            sends[r], recvs[r] = launch.in_parts[r], launch.out_parts[r]
        elif call == ALLGATHERV:
            sends[r], recvs[r] = launch.in_parts[0], launch.out_parts[r]
        elif call == GATHER and at_root:
            recvs[r] = unit(launch.target, r, nbytes)
        elif call == GATHERV and at_root:
            recvs[r] = launch.out_parts[r]
        elif call == SCATTER and at_root:
            sends[r] = unit(launch.source, r, nbytes)
        elif call == SCATTERV and at_root:
            sends[r] = launch.in_parts[r]


cdef int exchange(VendorComm vendor, Launch* launch, const Part* sends, const Part* recvs) except -1:
    """Send and receive in one group; a rank's part for itself is a copy on the stream."""
    cdef const Part* own = &sends[vendor.rank]
    cdef const hetccl_ccl_t* f = vendor.functions
    cdef int code = 0, ended, i, peer, n = vendor.nranks
    # One side alone, inside a group of the user's: the other side is another call.
    cdef bint alone = launch.call >= NCOLLECTIVES and (own.ptr == NULL) != (recvs[vendor.rank].ptr == NULL)
    if own.nbytes > 0 and not alone and own.ptr != recvs[vendor.rank].ptr:
        copy(vendor, launch, recvs[vendor.rank].ptr, own.ptr, own.nbytes)
    with nogil:
        code = f.group_start()
        if code == 0:
            for i in range(0 if alone else 1, n):
                # Each rank begins with another peer, so that not all of them send to one.
                peer = (vendor.rank + i) % n
                if code == 0 and sends[peer].nbytes > 0:
                    code = f.send(sends[peer].ptr, sends[peer].nbytes, HETCCL_UINT8, peer, launch.comm, launch.stream)
                peer = (vendor.rank - i + n) % n
                if code == 0 and recvs[peer].nbytes > 0:
                    code = f.recv(recvs[peer].ptr, recvs[peer].nbytes, HETCCL_UINT8, peer, launch.comm, launch.stream)
            ended = f.group_end()
            if code == 0:
                code = ended
    return step(vendor, code, launch, "group_end")


cdef int run_uneven(VendorComm vendor, Launch* launch, uint8_t* target) except -1:
    """A reduce-scatter of unequal parts: a reduction to each rank, in one group."""
    cdef const hetccl_ccl_t* f = vendor.functions
    cdef const Part* part
    cdef int code, ended, r
    with nogil:
        code = f.group_start()
        if code == 0:
            for r in range(vendor.nranks):
                part = &launch.in_parts[r]
                if code == 0 and part.nbytes > 0:
                    code = f.reduce(part.ptr, target if r == vendor.rank else NULL,
                                    part.nbytes // <int64_t>launch.itemsize * launch.lanes, launch.dtype, launch.op, r,
                                    launch.comm, launch.stream)
            ended = f.group_end()
            if code == 0:
                code = ended
    return step(vendor, code, launch, "group_end")


cdef int run_scaled(VendorComm vendor, Launch* launch) except -1:
    """An op that scales lives in the library, for this communicator; the call keeps what it needs of it."""
    cdef Launch plain = launch[0]
    cdef int op = 0
    plain.scales = False
    code = vendor.functions.op_create(&op, &plain.factor[0], plain.dtype, HOST_IMMEDIATE, launch.comm)
    step(vendor, code, launch, "op_create")
    plain.op = op
    try:
        run(vendor, &plain)
    finally:
        vendor.functions.op_destroy(op, launch.comm)
    return 0


cdef int run_in_place(VendorComm vendor, Launch* launch) except -1:
    """Work on a copy: what is sent, or the result, lies where something else arrives or is still read."""
    cdef Launch apart = launch[0]
    cdef int64_t nbytes
    cdef uint8_t* memory
    apart.in_place = False
    if launch.call == REDUCE_SCATTER_BLOCK or launch.call == REDUCE_SCATTER:
        nbytes = launch.count * <int64_t>launch.itemsize
        if launch.call == REDUCE_SCATTER:
            nbytes = launch.in_parts[vendor.rank].nbytes
        memory = room(vendor, launch, nbytes)
        try:
            if launch.call == REDUCE_SCATTER:
                run_uneven(vendor, &apart, memory)
            else:
                apart.target = memory
                run(vendor, &apart)
            copy(vendor, launch, launch.target, memory, nbytes)
        finally:
            give_back(vendor, launch, memory)
        return 0
    return run_from_copy(vendor, &apart)


cdef int run_from_copy(VendorComm vendor, Launch* launch) except -1:
    cdef Part* parts = <Part*>calloc(2 * vendor.nranks, sizeof(Part))
    cdef Part* sends = parts
    cdef int64_t total = 0, offset = 0
    cdef uint8_t* memory = NULL
    cdef int r
    if parts == NULL:
        raise MemoryError()
    try:
        parts_of(launch, vendor.rank, vendor.nranks, sends, parts + vendor.nranks)
        # A rank's part for itself stays where it is.
        if launch.call < NCOLLECTIVES:
            sends[vendor.rank].nbytes = 0
        for r in range(vendor.nranks):
            total += sends[r].nbytes
        memory = room(vendor, launch, total)
        for r in range(vendor.nranks):
            copy(vendor, launch, memory + offset, sends[r].ptr, sends[r].nbytes)
            sends[r].ptr = memory + offset
            offset += sends[r].nbytes
        exchange(vendor, launch, sends, parts + vendor.nranks)
    finally:
        free(parts)
        give_back(vendor, launch, memory)
    return 0


cdef int run_scan(VendorComm vendor, Launch* launch) except -1:
    """A scan is a reduce-scatter to which each rank gives its operand for the ranks that it counts for, and the op's
    neutral number for the others."""
    cdef Launch scattered = launch[0]
    cdef size_t nbytes = launch.count * launch.itemsize, width = launch.itemsize // launch.lanes
    cdef uint8_t* memory = room(vendor, launch, nbytes * vendor.nranks)
    cdef int r, first = vendor.rank + (launch.call == EXSCAN)
    try:
        for r in range(vendor.nranks):
            if r >= first:
                copy(vendor, launch, memory + r * nbytes, launch.source, nbytes)
            else:
                fill(vendor, launch, memory + r * nbytes, width, launch.count * launch.lanes)
        scattered.call, scattered.source, scattered.in_place = REDUCE_SCATTER_BLOCK, memory, False
        if launch.call == EXSCAN and vendor.rank == 0:
            scattered.target = memory  # rank 0 keeps its recvbuf as it is
        run(vendor, &scattered)
    finally:
        give_back(vendor, launch, memory)
    return 0


cdef uint8_t* room(VendorComm vendor, Launch* launch, size_t nbytes) except? NULL:
    """Memory from the runtime's pool, in the order of the stream."""
    cdef void* memory = NULL
    if nbytes == 0:
        return NULL
    vendor.runtime.check(vendor.gpu.alloc_async(&memory, nbytes, launch.stream), "alloc_async")
    return <uint8_t*>memory


cdef int give_back(VendorComm vendor, Launch* launch, uint8_t* memory) except -1:
    if memory == NULL:
        return 0
    return vendor.runtime.check(vendor.gpu.dealloc_async(memory, launch.stream), "dealloc_async")


cdef int copy(VendorComm vendor, Launch* launch, void* target, const void* source, size_t nbytes) except -1:
    cdef int code
    if nbytes == 0:
        return 0
    with nogil:
        code = vendor.gpu.copy_async(target, source, nbytes, launch.stream)
    return vendor.runtime.check(code, "copy_async")


cdef int fill(VendorComm vendor, Launch* launch, void* target, size_t width, size_t count) except -1:
    if count == 0:
        return 0
    return vendor.runtime.check(vendor.gpu.fill_async(target, launch.identity, width, count, launch.stream),
                                "fill_async")


cdef bint launch_groups(const Launch* launch) noexcept nogil:
    return not (launch.in_place or launch.scales or launch.call == SCAN or launch.call == EXSCAN)


cdef int launch_group_begin(VendorComm vendor) except -1:
    vendor.usable("group")
    vendor.lock("group")
    try:
        vendor.ccl.check(vendor.functions.group_start(), "group", "group_start")
    except BaseException:
        vendor.unlock()
        raise
    return 0


cdef int launch_group_finish(VendorComm vendor, int call) except -1:
    cdef int code
    try:
        with nogil:
            code = vendor.functions.group_end()
        if code != 0:
            vendor.conclude(code, CALLS[call], "group_end")
    finally:
        vendor.unlock()
    return 0
