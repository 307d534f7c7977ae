"""Layer L4: who runs a call. Host buffers are the engine's, or oneCCL's if the user wants that; device buffers are the
island's vendor's. The kind of memory and the call decide, so that all ranks come to the same.

The vendor's communicator is made when the first device buffer comes: a program that has none never loads a driver, and
that buffer's device is the communicator's. The GIL is held.
"""

from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy, memset

from hetccl._abi cimport (
    HETCCL_AVG, HETCCL_BOOL, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2, HETCCL_FLOAT16, HETCCL_MAX, HETCCL_MEM_CUDA,
    HETCCL_MEM_HIP, HETCCL_MEM_HOST, HETCCL_MIN, HETCCL_SUM, HETCCL_UINT8,
)
from hetccl._arguments cimport refuse_function, refuse_stream
from hetccl._array cimport DEVICE_UNKNOWN
from hetccl._buffer cimport dtype_name, is_in_place, span_clear, span_ends_before, span_of, span_release
from hetccl._calls cimport (
    ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLTOALLW, BARRIER, BCAST, CONNECT, EXSCAN, GATHER, GATHERV,
    RECV, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCATTER, SCATTERV, SEND,
)
from hetccl._crossing_messages cimport crossing_new
from hetccl._endpoint cimport has_ended
from hetccl._ferry cimport LONGEST_WHOLE
from hetccl._launch cimport NO_PEER, Launch, launch_run
from hetccl._layout cimport Part
from hetccl._mailbox cimport ANY
from hetccl._marks cimport mark_await
from hetccl._mr_notes cimport buffer_note, register_begin, register_end
from hetccl._op cimport KIND_BUILTIN, KIND_PREMUL, KIND_USER, op_of
from hetccl._passage cimport NO_UNIT, Passage
from hetccl._reducible cimport launch_reduces
from hetccl._request cimport Letter
from hetccl._stream cimport stream_for
from hetccl._watched cimport WatchedComm

from hetccl._calls import CALLS
from hetccl.errors import CommClosed

cdef dict VENDORS = {HETCCL_MEM_CUDA: "nvidia", HETCCL_MEM_HIP: "amd"}
cdef tuple NAMES = ("host", "CUDA", "HIP", "oneAPI")  # by HETCCL_MEM_*

cdef tuple NAMES_OF_SPANS = ("recvbuf", "sendbuf")
cdef tuple ONE_BUFFER = (BCAST, SEND, RECV)
# Calls in which every rank has one unit for each rank in IN, or in OUT; those whose result, or data, are at the root.
cdef tuple MANY_IN = (REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, ALLTOALL, ALLTOALLV, ALLTOALLW)
cdef tuple MANY_OUT = (ALLTOALL, ALLTOALLV, ALLTOALLW)
cdef tuple TO_ROOT = (REDUCE, GATHER, GATHERV)
cdef tuple FROM_ROOT = (BCAST, SCATTER, SCATTERV)

# What the libraries for host buffers have as one function; the engine has all.
cdef tuple HOST_CALLS = (ALLREDUCE, REDUCE, BCAST, ALLGATHER, REDUCE_SCATTER_BLOCK, ALLTOALL, SCATTER)


cdef class Placement(Endpoint):
    """Adds the vendors' libraries to an endpoint."""

    def __cinit__(self, membership):
        self.registrations = set()
        self.note_bytes = membership.note_bytes

    cdef bint place(self, Request request) except -1:
        cdef Span* send = &request.send
        cdef Span* recv = &request.recv
        cdef int kind
        if request.vendor is not None:
            return request.is_queued() and not request.crosses
        kind = recv.kind if recv.owner != NULL else send.kind if send.owner != NULL else HETCCL_MEM_HOST
        if send.owner != NULL and send.kind != kind:
            raise ValueError(f"sendbuf: is {NAMES[send.kind]} memory, recvbuf {NAMES[kind]} memory; one call works "
                             "on one kind")
        if kind == HETCCL_MEM_HOST:
            refuse_stream(request.stream)
            if self.note_bytes:
                self.note_buffers(request)
            return False
        self.place_on_device(request, kind)
        return not request.crosses

    cdef int note_buffers(self, Request request) except -1:
        """Let RDMA devices reach large buffers directly, if it is known how long their memory stays."""
        cdef Span* spans[2]
        cdef Span* span
        cdef int64_t nbytes
        cdef int i
        spans[0], spans[1] = &request.send, &request.recv
        for i in range(2):
            span = spans[i]
            nbytes = span.count * <int64_t>span.itemsize if request.parts == NULL else span.nbytes
            if span.owner != NULL and span.layout == NULL and nbytes >= self.note_bytes:
                buffer_note(<object>span.owner, span.ptr, nbytes)
        return 0

    cdef int place_on_device(self, Request request, int kind) except -1:
        cdef Span* spans[2]
        cdef Span* span
        cdef int i
        spans[0], spans[1] = &request.recv, &request.send
        span = spans[0] if spans[0].owner != NULL else spans[1]
        if self.gpu is None:
            device = span.device
            if device == DEVICE_UNKNOWN:
                device = self.membership.device_of(VENDORS.get(kind), <uintptr_t>span.ptr)
            self.connect(kind, device, request.work.call)
        request.crosses = self.crossing is not None
        for i in range(2):
            if spans[i].owner != NULL:
                self.check_device(spans[i], "buf" if request.work.call in ONE_BUFFER else NAMES_OF_SPANS[i])
        request.vendor, request.gpu, request.device = self.gpu, self.gpu.gpu, self.gpu.device
        request.take_stream()
        return 0

    cdef int check_device(self, Span* span, str argument) except -1:
        cdef WatchedComm vendor = self.gpu
        device = span.device
        # __cuda_array_interface__ is HIP's too.
        if span.kind != vendor.runtime.kind and device != DEVICE_UNKNOWN:
            raise ValueError(f"{argument}: is {NAMES[span.kind]} memory, the communicator's GPUs are "
                             f"{vendor.runtime.name}'s")
        if device == DEVICE_UNKNOWN and span.count:
            about = vendor.runtime.pointer(<uintptr_t>span.ptr)
            device = about["device"]
            if about["kind"] == "host" and not about["registered"]:
                raise ValueError(f"{argument}: {vendor.runtime.name} does not know its memory, which "
                                 "__cuda_array_interface__ says is a GPU's")
            # Not by the allocation's length: one may be mapped in pieces.
            last = vendor.runtime.pointer(<uintptr_t>span.ptr + span.nbytes - 1)
            if (last["kind"], last["registered"]) != (about["kind"], about["registered"]):
                raise ValueError(f"{argument}: its {span.nbytes} bytes reach beyond the memory that "
                                 f"{vendor.runtime.name} knows")
        if device != vendor.device and device != DEVICE_UNKNOWN:
            raise ValueError(f"{argument}: is on device {device}, the communicator's is {vendor.device}: the first "
                             "call on GPU memory chose it, or hetccl.Comm(comm, device=...)")
        if span.layout != NULL:
            raise NotImplementedError(f"{argument}: a datatype with gaps is not packed in GPU memory by this version; "
                                      "copy the elements together first")
        return 0

    cdef bint queue_quickly(self, int call, object sendbuf, object recvbuf, object op, object stream) except -1:
        """Queue a blocking call without making a request, if it is of the common kind: two arrays of the communicator's
        device, whose library keeps them. False: nothing was done, and nothing found wrong; the usual way tells."""
        cdef Span send, recv
        cdef Launch launch
        cdef bint queued = False
        if self.closed or has_ended or self.check or self.batch is not None or self.deferred.requests or \
                is_in_place(sendbuf):
            return False
        span_clear(&send)
        span_clear(&recv)
        try:
            span_of(recvbuf, &recv, "recvbuf", True, self.size if call in (ALLGATHER, ALLTOALL) else 1)
            if recv.kind == self.vendor.runtime.kind:
                span_of(sendbuf, &send, "sendbuf", False, self.size if call in (REDUCE_SCATTER_BLOCK, ALLTOALL) else 1)
                queued = self.prepare_quickly(call, &send, &recv, op, &launch)
                if queued:
                    launch.stream = stream_for(stream, <object>recv.owner, <object>send.owner, self.vendor.runtime,
                                               self.vendor.device, &queued)
                if queued:
                    launch_run(self.vendor, &launch)
        finally:
            span_release(&send)
            span_release(&recv)
        return queued

    cdef bint prepare_quickly(self, int call, Span* send, Span* recv, object op, Launch* launch) except -1:
        cdef OpChoice choice
        cdef int64_t count = recv.count
        if send.kind != recv.kind or send.device != recv.device or recv.device != self.vendor.device:
            return False
        if send.layout != NULL or recv.layout != NULL or send.dtype != recv.dtype or send.fortran != recv.fortran:
            return False
        if call == ALLGATHER or call == ALLTOALL:
            count //= self.size
        if send.itemsize != recv.itemsize or send.count != (recv.count if call == ALLTOALL else count * self.size if
                                                            call == REDUCE_SCATTER_BLOCK else count):
            return False
        if not (span_ends_before(send, recv) or span_ends_before(recv, send)):
            return False
        memset(launch, 0, sizeof(Launch))
        launch.call, launch.source, launch.target = call, <uint8_t*>send.ptr, <uint8_t*>recv.ptr
        if call == ALLGATHER or call == ALLTOALL:
            launch.dtype, launch.lanes, launch.count, launch.itemsize = HETCCL_UINT8, 1, count * recv.itemsize, 1
            return True
        launch.count, launch.itemsize = count, recv.itemsize
        if recv.dtype >= HETCCL_FLOAT8_E4M3:
            return False
        op_of(op, recv.dtype, &choice)
        return launch_reduces(launch, recv.dtype, &choice, self.size)

    cdef int reduce_on_device(self, Request request, Op op, OpChoice* choice, Span* given) except -1:
        name = self.vendor.ccl.name
        if choice.kind == KIND_USER:
            refuse_function()
        if not launch_reduces(&request.launch, given.dtype, choice, self.size):
            raise TypeError(f"op: {name} has no {op.name} of {dtype_name(given.dtype)}, and the buffers are in GPU "
                            "memory; reduce host copies instead")
        if given.dtype in (HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2) and self.vendor.float8 != "ocp":
            raise TypeError(f"op: {name} would take {dtype_name(given.dtype)}, which is OCP's format, for the FNUZ "
                            "format of a GPU of this island")
        return 0

    cdef int offer_reduction(self, Request request, int dtype, const OpChoice* choice) except -1:
        cdef OpChoice plain = choice[0]
        if self.host_vendor is None or request.work.call not in HOST_CALLS or dtype == HETCCL_BOOL:
            return 0
        if choice.kind == KIND_PREMUL or choice.code == HETCCL_AVG:  # scaled before, or divided after
            plain.kind, plain.code = KIND_BUILTIN, HETCCL_SUM
        if not launch_reduces(&request.launch, dtype, &plain, self.size):
            return 0
        # oneCCL drops NaNs, on one rank or the other, and has no float8.
        drops_nan = request.launch.dtype >= HETCCL_FLOAT16 and plain.code in (HETCCL_MIN, HETCCL_MAX)
        if request.launch.dtype < HETCCL_FLOAT8_E4M3 and not drops_nan:
            request.vendor = self.host_vendor
            if choice.code == HETCCL_AVG:
                request.launch.divide, request.launch.divisor = choice.reduce, self.size
        return 0

    cdef int offer_movement(self, Request request) except -1:
        # An Alltoall in place would be a group of messages, which our table of oneCCL has not.
        cdef bint is_exchange_in_place = request.work.call == ALLTOALL and request.send.owner == NULL
        if self.host_vendor is not None and request.work.call in HOST_CALLS and not is_exchange_in_place:
            request.vendor = self.host_vendor
        return 0

    cdef int aim(self, Request request, int plan, int root, void* source, void* target, int64_t count, size_t itemsize,
                 bint in_place) except -1:
        if request.vendor is not None and not request.crosses:
            self.fill_launch(request, root, source, target, count, itemsize, in_place)
            if request.is_queued():
                return self.aim_comparison(request)
        Endpoint.aim(self, request, plan, root, source, target, count, itemsize, in_place)
        if request.crosses:
            self.aim_across(request, root, in_place)
        return 0

    cdef int aim_across(self, Request request, int root, bint in_place) except -1:
        """Which units of a collective come from the GPU, and which go back."""
        cdef Passage* passage = &request.passage
        cdef int call = request.work.call
        cdef bint at_root = self.rank == root
        cdef bint gathers = call == ALLGATHER or call == ALLGATHERV or (at_root and (call == GATHER or call == GATHERV))
        cdef bint scatters = at_root and (call == SCATTER or call == SCATTERV)
        passage.ring, passage.alias = self.crossing.ring, in_place
        passage.nin = self.size if scatters or call in MANY_IN else 1
        passage.nout = self.size if gathers or call in MANY_OUT else 1
        if call in TO_ROOT and not at_root:
            passage.nout = 0
        elif call in FROM_ROOT and not at_root:
            passage.nin = 0
        elif call == BCAST:
            passage.nout = 0
        passage.own = self.rank if request.send.owner == NULL and passage.nout > 1 else NO_UNIT
        # A part in place at the root of a scatter stays, and so does what the first rank of an Exscan has.
        passage.returns = request.recv.owner != NULL and not (call == EXSCAN and self.rank == 0)
        request.collective.passage = passage
        return 0

    cdef int aim_parts(self, Request request, int plan, int root, int nin, int nout, size_t itemsize,
                       bint in_place) except -1:
        cdef Part* parts = request.parts
        cdef int i
        cdef bint by_library = self.place(request)
        for i in range(nin + nout if by_library or request.crosses else 0):
            if parts[i].layout != NULL:
                raise NotImplementedError("datatypes: one with gaps is not packed in GPU memory by this version")
        if not by_library:
            Endpoint.aim_parts(self, request, plan, root, nin, nout, itemsize, in_place)
            if request.crosses:
                request.passage.staged = <Part*>calloc(max(1, nin + nout), sizeof(Part))
                if request.passage.staged == NULL:
                    raise MemoryError()
                memcpy(request.passage.staged, parts, (nin + nout) * sizeof(Part))
            return 0
        self.fill_launch(request, root, NULL, request.recv.ptr, 1, itemsize, in_place)
        request.launch.in_parts = parts if nin else NULL
        request.launch.out_parts = parts + nin if nout else NULL
        return self.aim_comparison(request)

    cdef int aim_comparison(self, Request request) except -1:
        """HETCCL_CHECK: declare() needs a collective of the engine's."""
        if not self.check:
            return 0
        return Endpoint.aim(self, request, BARRIER, 0, &request.tokens[0], &request.tokens[1], 1, 1, False)

    cdef int fill_launch(self, Request request, int root, void* source, void* target, int64_t count, size_t itemsize,
                         bint in_place) except -1:
        cdef Launch* launch = &request.launch
        launch.call, launch.root, launch.count, launch.itemsize = request.work.call, root, count, itemsize
        launch.source, launch.target, launch.in_place = <uint8_t*>source, <uint8_t*>target, in_place
        if launch.lanes == 0:
            launch.dtype, launch.lanes = HETCCL_UINT8, 1
        if launch.call == BCAST:
            launch.source = launch.target = <uint8_t*>(target if source == NULL else source)
        elif launch.call == REDUCE_SCATTER_BLOCK and source == target:
            launch.in_place = self.size > 1
        return 0

    cdef int aim_messages(self, Request request, bint in_place) except -1:
        cdef Letter* letter
        cdef int i
        if request.work.nmessages == 0:  # to or from nobody
            if request.send.kind == HETCCL_MEM_HOST and request.recv.kind == HETCCL_MEM_HOST:
                refuse_stream(request.stream)
            return 0
        if not self.place(request) and not request.crosses:
            for i in range(request.work.nmessages if self.crosses else 0):
                request.letters[i].cut = request.letters[i].sending and request.letters[i].nbytes > LONGEST_WHOLE
            return 0
        if request.crosses:
            request.launch.in_place, request.deferred = in_place, self.deferred
            return 0
        self.fill_launch(request, 0, NULL, NULL, 0, 1, in_place)
        request.launch.dest = request.launch.source_rank = NO_PEER
        for i in range(request.work.nmessages):
            letter = &request.letters[i]
            if letter.sending:
                request.launch.dest, request.launch.source = letter.peer, letter.ptr
                request.launch.count = letter.nbytes
            elif letter.peer == ANY:
                raise ValueError("source: ANY_SOURCE is for host buffers; a message in GPU memory comes from a rank "
                                 "that is named")
            else:
                request.launch.source_rank, request.launch.target = letter.peer, letter.ptr
                request.launch.room = letter.nbytes
        request.work.messages, request.work.nmessages = NULL, 0
        request.deferred = self.deferred
        return 0

    cdef int connect(self, int kind, object device, int call) except -1:
        name = VENDORS.get(kind)
        if name is None:
            raise NotImplementedError(f"{CALLS[call]}: buffers in the memory of this kind of GPU are not supported")
        if len(self.islands) > 1:
            runtime, device = self.membership.open_device(name, device)
            self.gpu = self.crossing = crossing_new(self.executor, runtime, device)
        else:
            self.gpu = self.vendor = self.membership.open_island(name, device, self._exchange, CALLS[call])
        return 0

    def _exchange(self, bytes mine):
        """Every rank's bytes, in rank order, by the engine."""
        cdef list lengths = self.tell(CONNECT, len(mine))
        cdef Request request = self.request(Request, CONNECT, None)
        cdef Part* parts = self.parts_for(request, 1, self.size)
        cdef uint8_t* place
        cdef int r
        everything = bytearray(sum(lengths) + 1)
        place = <uint8_t*><char*>everything
        parts[0].ptr, parts[0].nbytes = <uint8_t*><char*>mine, len(mine)
        for r in range(self.size):
            parts[1 + r].ptr, parts[1 + r].nbytes = place, lengths[r]
            place += parts[1 + r].nbytes
        Endpoint.aim_parts(self, request, ALLGATHERV, 0, 1, self.size, 1, False)
        request.run(None)
        starts = [sum(lengths[:r]) for r in range(self.size)]
        return [bytes(everything[start : start + length]) for start, length in zip(starts, lengths)]

    def _connect(self, device):
        """Set the vendor's library up for this device. Collective."""
        # A rank that shows no GPU hears from the loader what is missing, and so do the others.
        kind = HETCCL_MEM_HIP if self.members[self.rank].vendor == "amd" else HETCCL_MEM_CUDA
        self.connect(kind, device, CONNECT)

    def _use_host_library(self):
        """Set oneCCL up for host buffers, if the user wants it. Collective."""
        if self.membership.settings.host_ccl == "oneccl" and len(self.islands) == 1 and self.size > 1:
            self.host_vendor = self.membership.open_island("host", 0, self._exchange, CALLS[CONNECT])

    cdef VendorComm split_vendor(self, object child, object color, object key):
        """The part of the vendor's communicator that Split makes; None if the library leaves that to a new one."""
        if self.vendor is None or not self.vendor.ccl.supports("split"):
            return None
        return self.vendor.Split(-1 if color is None else color, key, self.membership.peers_of(child))

    cdef int await_queued(self) except -1:
        cdef Request request
        for vendor in (self.vendor, self.host_vendor, self.crossing):
            if vendor is not None and (<WatchedComm>vendor).handle != NULL:
                (<WatchedComm>vendor).lock("Free")
                (<WatchedComm>vendor).unlock()
        self.deferred.flush(None)
        for request in list(self.executor.inflight.values()):
            if request.crosses and request.deferred is not None and not request.pending and not request.vendor.lost:
                # What was sent lies in this rank's memory until its receiver takes it.
                request.work.awaited = NULL
                self.executor.wait(&request.work)
            if request.is_queued() and not request.crosses and request.event != NULL and not request.vendor.lost:
                mark_await(request.vendor, request.event, request.work.call)
        if self.crossing is not None:
            self.crossing.await_streams()
        return 0

    cdef int leave_vendors(self) except -1:
        failure = None
        for part in (*self.registrations, self.vendor, self.host_vendor, self.crossing):
            try:
                if isinstance(part, Registration):
                    part.Free()
                elif part is not None:
                    part.close()
            except Exception as error:  # noqa: BLE001 - the others are left all the same
                failure = failure or error
        if failure is not None:
            raise failure
        return 0

    def supports(self, name):
        """Whether the library that runs calls on GPU buffers has a function.

        name    : "all_to_all", "split", "register_buffer" ... (docs/vendor-ccls.md)
        Returns : bool; False until the library is set up, by the first call on GPU buffers or by
                  hetccl.Comm(comm, device=...)
        """
        return self.vendor is not None and self.vendor.ccl.supports(name)

    def register(self, array):
        """Register an array, so that calls on it need no copies of their own: GPU memory with the vendor's library,
        host memory with the RDMA devices.

        array   : contiguous array in GPU memory of the communicator's device, or in host memory; held until Free. Host
                  memory must stay where it is until then, which arrays without a buffer export (ctypes) do not ensure
        Returns : Registration; `with comm.register(x):` or its Free() ends it
        Raises  : CommClosed (GPU memory, before the first call on it), SymbolNotFound (the library lacks it),
                  ValueError, BufferError
        Source  : ncclCommRegister; ibv_reg_mr
        """
        self.usable(CONNECT)
        return Registration(self, array)


cdef class Registration:
    """An array that the vendor's library or the RDMA devices know; made by Comm.register."""

    def __init__(self, Placement comm not None, array):
        span_of(array, &self.span, "array", False, 1)
        if self.span.kind != HETCCL_MEM_HOST and comm.vendor is None:
            raise CommClosed("register: the vendor's library is set up by the first call on GPU buffers, or by "
                             "hetccl.Comm(comm, device=...)", call="register")
        if self.span.kind != HETCCL_MEM_HOST:
            comm.check_device(&self.span, "array")
        if self.span.count == 0:
            raise ValueError("array: is empty; there is nothing to register")
        if self.span.kind != HETCCL_MEM_HOST:
            self.begin_with_vendor(comm)
        elif comm.note_bytes:
            self.begin_with_devices(comm)
        self.others = comm.registrations
        self.others.add(self)

    cdef int begin_with_vendor(self, Placement comm) except -1:
        self.handle = comm.vendor.register(<uintptr_t>self.span.ptr, <size_t>self.span.count * self.span.itemsize)
        self.vendor = comm.vendor
        return 0

    cdef int begin_with_devices(self, Placement comm) except -1:
        self.range = register_begin(<object>self.span.owner, self.span.ptr,
                                    <size_t>self.span.count * self.span.itemsize, &self.ndevices)
        return 0

    @property
    def devices(self):
        """int, how many RDMA devices took host memory; 0 if none did, or this communicator has none."""
        return self.ndevices

    def Free(self):
        """End the registration. A second call does nothing, nor does one after the communicator's Free."""
        vendor, self.vendor = self.vendor, None
        try:
            if vendor is not None and vendor.handle != NULL:
                vendor.deregister(self.handle)
        finally:
            if self.others is not None:
                self.others.discard(self)
            self.end_with_devices()
            span_release(&self.span)

    cdef void end_with_devices(self) noexcept:
        cdef hetccl_mr_range_t* range = self.range
        self.range = NULL
        self.ndevices = 0
        if range != NULL:
            register_end(range)

    def __dealloc__(self):
        self.end_with_devices()
        span_release(&self.span)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.Free()
