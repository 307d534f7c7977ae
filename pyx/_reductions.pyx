"""Layer L4: the reductions of a communicator. Each call is read and checked here once, for its three forms."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from hetccl._abi cimport HETCCL_AVG, HETCCL_RAW
from hetccl._arguments cimport datatype_in, match, match_kinds, reducible, refuse_function, span_bytes, whole
from hetccl._buffer cimport is_in_place, span_check_overlap, span_of
from hetccl._calls cimport (
    ALLGATHER, ALLREDUCE, ALLTOALL, ALLTOALLV, EXSCAN, GATHER, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN,
)
from hetccl._compose cimport Fold, Move, Scale, temporary
from hetccl._endpoint cimport PORTION_BYTES
from hetccl._kernels cimport FACTOR_BYTES
from hetccl._layout cimport Part
from hetccl._op cimport KIND_PREMUL, KIND_USER, op_of
from hetccl._request cimport Prequest

from hetccl._calls import CALLS
from hetccl._op import SUM


cdef class Reductions(Placement):
    """Adds the reductions to an endpoint."""

    def Allreduce(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over all ranks; every rank gets the result.

        sendbuf, recvbuf : buffer or spec, n elements each, same dtype and memory order; sendbuf may be IN_PLACE
        op      : SUM, PROD, MIN, MAX, AVG, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC, premul_sum(factor), an Op
                  of Op.Create, or MPI's
        stream  : None; for device buffers
        Blocks  : until the result is there
        Raises  : BufferError (layout), TypeError (dtype, op), ValueError (n, overlap), HetcclError subclasses
        Cost    : 2 (p-1)/p n itemsize bytes received per rank; one island, large n
        Source  : MPI 4.1, section 6.9.6
        """
        if self.vendor is None or not self.queue_quickly(ALLREDUCE, sendbuf, recvbuf, op, stream):
            self.finish(self.allreduce(Request, sendbuf, recvbuf, op, stream), None)

    def Iallreduce(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Nonblocking Allreduce; returns a Request. Source : MPI 4.1, section 6.12.8"""
        return self.allreduce(Request, sendbuf, recvbuf, op, stream).go()

    def Allreduce_init(self, sendbuf, recvbuf, op=SUM, info=None, *, stream=None):
        """Persistent Allreduce; returns a Prequest. Source : MPI 4.1, section 6.13.8"""
        return self.allreduce(Prequest, sendbuf, recvbuf, op, stream)

    cdef Request allreduce(self, type kind, object sendbuf, object recvbuf, object op, object stream):
        cdef Request request = self.request(kind, ALLREDUCE, stream)
        cdef OpChoice choice
        cdef void* source
        source = self.read_both(request, sendbuf, recvbuf)
        op = self.op_for(op, &request.recv, "recvbuf", &choice, datatype_in(recvbuf))
        return self.reduction(request, op, &choice, 0, source, request.recv.count, request.recv.count, &request.recv,
                              datatype_in(recvbuf))

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0, *, stream=None):
        """Reduce elementwise over all ranks; root gets the result.

        sendbuf : buffer or spec, n elements; IN_PLACE at root: the operand is in recvbuf
        recvbuf : at root buffer or spec, n elements, same dtype; elsewhere not looked at, may be None
        root    : rank
        op, stream, Blocks, Raises : as Allreduce; ValueError for a root outside 0..size-1
        Source  : MPI 4.1, section 6.9.1
        """
        self.finish(self.reduce(Request, sendbuf, recvbuf, op, root, stream), None)

    def Ireduce(self, sendbuf, recvbuf, op=SUM, root=0, *, stream=None):
        """Nonblocking Reduce; returns a Request. Source : MPI 4.1, section 6.12.7"""
        return self.reduce(Request, sendbuf, recvbuf, op, root, stream).go()

    def Reduce_init(self, sendbuf, recvbuf, op=SUM, root=0, info=None, *, stream=None):
        """Persistent Reduce; returns a Prequest. Source : MPI 4.1, section 6.13.7"""
        return self.reduce(Prequest, sendbuf, recvbuf, op, root, stream)

    cdef Request reduce(self, type kind, object sendbuf, object recvbuf, object op, object root, object stream):
        cdef Request request = self.request(kind, REDUCE, stream)
        cdef int to = self.rank_of(root, "root")
        cdef Span* given = &request.send
        cdef OpChoice choice
        if self.rank == to:
            span_of(recvbuf, &request.recv, "recvbuf", True, 1)
            reducible(&request.recv, "recvbuf")
            given = &request.recv
        if not is_in_place(sendbuf):
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
            reducible(&request.send, "sendbuf")
            if self.rank == to:
                match(&request.send, &request.recv, span_bytes(&request.recv))
        elif self.rank != to:
            raise ValueError(f"sendbuf: IN_PLACE is for the root, rank {to}; this is rank {self.rank}")
        datatype = datatype_in(recvbuf if self.rank == to else sendbuf)
        op = self.op_for(op, given, "recvbuf" if self.rank == to else "sendbuf", &choice, datatype)
        return self.reduction(request, op, &choice, to, given.ptr if is_in_place(sendbuf) else request.send.ptr,
                              given.count, given.count, given, datatype)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over all ranks; rank r gets block r of the result.

        sendbuf : buffer or spec, size * n elements; IN_PLACE: they are in recvbuf
        recvbuf : buffer or spec, n elements; in place size * n, of which the first n receive
        op, stream, Blocks, Raises : as Allreduce
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.10.1
        """
        if self.vendor is None or not self.queue_quickly(REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, stream):
            self.finish(self.scatter_block(Request, sendbuf, recvbuf, op, stream), None)

    def Ireduce_scatter_block(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Nonblocking Reduce_scatter_block; returns a Request. Source : MPI 4.1, section 6.12.9"""
        return self.scatter_block(Request, sendbuf, recvbuf, op, stream).go()

    def Reduce_scatter_block_init(self, sendbuf, recvbuf, op=SUM, info=None, *, stream=None):
        """Persistent Reduce_scatter_block; returns a Prequest. Source : MPI 4.1, section 6.13.9"""
        return self.scatter_block(Prequest, sendbuf, recvbuf, op, stream)

    cdef Request scatter_block(self, type kind, object sendbuf, object recvbuf, object op, object stream):
        cdef Request request = self.request(kind, REDUCE_SCATTER_BLOCK, stream)
        cdef bint in_place = is_in_place(sendbuf)
        cdef OpChoice choice
        cdef int64_t count
        span_of(recvbuf, &request.recv, "recvbuf", True, self.size if in_place else 1)
        reducible(&request.recv, "recvbuf")
        count = request.recv.count // self.size if in_place else request.recv.count
        if not in_place:
            span_of(sendbuf, &request.send, "sendbuf", False, self.size)
            reducible(&request.send, "sendbuf")
            match(&request.send, &request.recv, span_bytes(&request.recv) * self.size)
        op = self.op_for(op, &request.recv, "recvbuf", &choice, datatype_in(recvbuf))
        return self.reduction(request, op, &choice, 0, request.recv.ptr if in_place else request.send.ptr,
                              count * self.size, count, &request.recv, datatype_in(recvbuf))

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=SUM, *, stream=None):
        """Reduce elementwise over all ranks; rank r gets the r-th part of the result, of recvcounts[r] elements.

        sendbuf    : buffer or spec, sum(recvcounts) elements; IN_PLACE: they are in recvbuf
        recvbuf    : buffer or spec, recvcounts[rank] elements; in place sum(recvcounts), of which the first receive
        recvcounts : size whole numbers, the same on all ranks; None: the elements are divided as evenly as in mpi4py
        op, stream, Blocks, Raises : as Allreduce; ValueError for counts that are negative, too few, or beyond
                     the buffer
        Source     : MPI 4.1, section 6.10.2
        """
        self.finish(self.scatter_uneven(Request, sendbuf, recvbuf, recvcounts, op, stream), None)

    def Ireduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=SUM, *, stream=None):
        """Nonblocking Reduce_scatter; returns a Request. Source : MPI 4.1, section 6.12.10"""
        return self.scatter_uneven(Request, sendbuf, recvbuf, recvcounts, op, stream).go()

    def Reduce_scatter_init(self, sendbuf, recvbuf, recvcounts=None, op=SUM, info=None, *, stream=None):
        """Persistent Reduce_scatter; returns a Prequest. Source : MPI 4.1, section 6.13.10"""
        return self.scatter_uneven(Prequest, sendbuf, recvbuf, recvcounts, op, stream)

    cdef Request scatter_uneven(self, type kind, object sendbuf, object recvbuf, object recvcounts, object op,
                                object stream):
        cdef Request request = self.request(kind, REDUCE_SCATTER, stream)
        cdef bint in_place = is_in_place(sendbuf)
        cdef Span* given = &request.recv
        cdef OpChoice choice
        cdef Part* parts = self.parts_for(request, self.size, 1)
        cdef Move move
        cdef bint on_device
        cdef void* source
        cdef int r
        span_of(recvbuf, &request.recv, "recvbuf", True, 1)
        reducible(&request.recv, "recvbuf")
        if not in_place:
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
            reducible(&request.send, "sendbuf")
            match_kinds(&request.send, &request.recv)
            span_check_overlap(&request.send, &request.recv, "sendbuf", "recvbuf")
            given = &request.send
        op = self.op_for(op, &request.recv, "recvbuf", &choice, datatype_in(recvbuf))
        counts = self.counts_for(recvcounts, request.recv.count, given.count, in_place)
        source = given.ptr
        on_device = self.place(request)
        if on_device:
            self.reduce_on_device(request, op, &choice, given)
        elif choice.kind == KIND_PREMUL:
            source = self.scaled(request, &choice, given.ptr, given.count, given.itemsize)
        for r in range(self.size):
            parts[r].ptr = <uint8_t*>source
            parts[r].nbytes = <int64_t>counts[r] * <int64_t>given.itemsize
            source = <uint8_t*>source + parts[r].nbytes
        parts[self.size].nbytes = parts[self.rank].nbytes
        if choice.kind == KIND_USER and not on_device:
            return self.folded_uneven(request, op, &choice, datatype_in(recvbuf))
        parts[self.size].ptr = <uint8_t*>request.recv.ptr
        if in_place and not on_device and not request.crosses:
            # The result lies over the first units, which the peers may still read.
            parts[self.size].ptr = temporary(request, parts[self.rank].nbytes)
            move = Move.__new__(Move)
            move.target, move.source, move.nbytes = request.recv.ptr, parts[self.size].ptr, parts[self.rank].nbytes
            request.add(move)
        self.aim_parts(request, REDUCE_SCATTER, 0, self.size, 1, given.itemsize, in_place and on_device)
        if not on_device:
            self.use(request, &choice)
        self.declare_parts(request, choice.code)
        return request

    cdef list counts_for(self, object recvcounts, int64_t received, int64_t given, bint in_place):
        """The checked recvcounts of a Reduce_scatter."""
        if recvcounts is None and not in_place:
            recvcounts = self.tell(ALLGATHER, received)
        if not hasattr(recvcounts, "__len__") or len(recvcounts) != self.size:
            n = f"{len(recvcounts)} of them" if hasattr(recvcounts, "__len__") else type(recvcounts).__name__
            kind = ValueError if hasattr(recvcounts, "__len__") else TypeError
            raise kind(f"recvcounts: expected {self.size} counts, one for each rank, got {n}")
        counts = [whole(count, f"recvcounts[{r}]") for r, count in enumerate(recvcounts)]
        for r, count in enumerate(counts):
            if count < 0:
                raise ValueError(f"recvcounts[{r}]: {count} is negative")
        if sum(counts) != given:
            name = "recvbuf" if in_place else "sendbuf"
            raise ValueError(f"{name}: has {given} elements, recvcounts {sum(counts)} together")
        if not in_place and counts[self.rank] != received:
            raise ValueError(f"recvbuf: has {received} elements, recvcounts[{self.rank}] is {counts[self.rank]}")
        return counts

    cdef int declare_parts(self, Request request, int64_t op) except -1:
        """All ranks must mean the same counts."""
        cdef int r
        self.declare(request, 0, op, &request.recv, -1)
        for r in range(self.size):
            self.expect(request, r, request.parts[r].nbytes, request.parts[self.rank].nbytes)
        return 0

    def Scan(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over this rank and those before it.

        sendbuf, recvbuf : buffer or spec, n elements each, same dtype and memory order; sendbuf may be IN_PLACE
        op      : as for Allreduce, but AVG
        stream, Blocks, Raises : as Allreduce
        Cost    : rank n itemsize bytes received by a rank, for small n; n itemsize for large n
        Source  : MPI 4.1, section 6.11.1
        """
        self.finish(self.scan(Request, SCAN, sendbuf, recvbuf, op, stream), None)

    def Iscan(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Nonblocking Scan; returns a Request. Source : MPI 4.1, section 6.12.11"""
        return self.scan(Request, SCAN, sendbuf, recvbuf, op, stream).go()

    def Scan_init(self, sendbuf, recvbuf, op=SUM, info=None, *, stream=None):
        """Persistent Scan; returns a Prequest. Source : MPI 4.1, section 6.13.11"""
        return self.scan(Prequest, SCAN, sendbuf, recvbuf, op, stream)

    def Exscan(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over the ranks before this one; rank 0's recvbuf stays as it is.

        sendbuf, recvbuf, op, stream, Blocks, Raises, Cost : as Scan
        Source  : MPI 4.1, section 6.11.2
        """
        self.finish(self.scan(Request, EXSCAN, sendbuf, recvbuf, op, stream), None)

    def Iexscan(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Nonblocking Exscan; returns a Request. Source : MPI 4.1, section 6.12.12"""
        return self.scan(Request, EXSCAN, sendbuf, recvbuf, op, stream).go()

    def Exscan_init(self, sendbuf, recvbuf, op=SUM, info=None, *, stream=None):
        """Persistent Exscan; returns a Prequest. Source : MPI 4.1, section 6.13.12"""
        return self.scan(Prequest, EXSCAN, sendbuf, recvbuf, op, stream)

    cdef Request scan(self, type kind, int call, object sendbuf, object recvbuf, object op, object stream):
        cdef Request request = self.request(kind, call, stream)
        cdef OpChoice choice
        cdef void* source
        source = self.read_both(request, sendbuf, recvbuf)
        op = self.op_for(op, &request.recv, "recvbuf", &choice, datatype_in(recvbuf))
        if choice.code == HETCCL_AVG:
            raise TypeError(f"op: {CALLS[call]} has no {(<Op>op).name}: the number of operands differs by rank")
        return self.reduction(request, op, &choice, 0, source, request.recv.count, request.recv.count, &request.recv,
                              datatype_in(recvbuf))

    cdef void* read_both(self, Request request, object sendbuf, object recvbuf) except? NULL:
        """Read buffers of as many elements each; returns where the operand is."""
        span_of(recvbuf, &request.recv, "recvbuf", True, 1)
        reducible(&request.recv, "recvbuf")
        if not is_in_place(sendbuf):
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
            reducible(&request.send, "sendbuf")
            match(&request.send, &request.recv, span_bytes(&request.recv))
            return request.send.ptr
        return request.recv.ptr

    cdef Op op_for(self, object op, Span* span, str argument, OpChoice* choice, object datatype):
        """The op, if it is defined on the buffer's elements."""
        try:
            return op_of(op, span.dtype, choice, datatype)
        except TypeError:
            if span.dtype != HETCCL_RAW:
                raise
            raise TypeError(f"{argument}: elements of this dtype ({span.itemsize} bytes each) can be moved, not "
                            "reduced") from None

    cdef Request reduction(self, Request request, Op op, OpChoice* choice, int root, void* source, int64_t operand,
                           int64_t count, Span* given, object datatype):
        """Set a request up to reduce units of `count` elements; `operand` elements of this rank's are at source."""
        cdef int call = request.work.call
        if self.place(request):
            self.reduce_on_device(request, op, choice, given)
            self.aim(request, call, root, source, request.recv.ptr, count, given.itemsize, False)
        elif choice.kind == KIND_USER:
            self.folded(request, op, root, source, count, given, datatype)
        else:
            if choice.kind == KIND_PREMUL:
                source = self.scaled(request, choice, source, operand, given.itemsize)
            self.offer_reduction(request, given.dtype, choice)
            self.aim(request, call, root, source, request.recv.ptr, count, given.itemsize, False)
            self.use(request, choice)
        self.declare(request, root, choice.code, given, count)
        return request

    cdef int use(self, Request request, OpChoice* choice) except -1:
        """Let the engine reduce with a loop of its own."""
        cdef int64_t portion = PORTION_BYTES // <int64_t>request.collective.itemsize
        request.collective.reduce = choice.reduce
        request.collective.divisor = self.size if choice.code == HETCCL_AVG else 0
        request.collective.portion = min(max(<int64_t>1, portion), request.collective.portion)
        return 0

    cdef void* scaled(self, Request request, OpChoice* choice, void* source, int64_t operand,
                      size_t itemsize) except? NULL:
        """Where this rank's operands, times its factor, will lie."""
        cdef Scale task
        if request.crosses:
            request.passage.scale = choice.scale
            memcpy(&request.passage.factor[0], &choice.factor[0], FACTOR_BYTES)
            return source
        task = Scale.__new__(Scale)
        task.scale, task.source, task.count = choice.scale, source, operand
        memcpy(&task.factor[0], &choice.factor[0], FACTOR_BYTES)
        task.target = temporary(request, operand * itemsize)
        request.add(task)
        return task.target

    cdef int folded(self, Request request, Op op, int root, void* source, int64_t count, Span* given,
                    object datatype) except -1:
        """Let the engine bring the operands together, and fold them here: the function is Python's or MPI's."""
        cdef Fold task = self.fold_of(request, op, count, given, datatype)
        cdef int call = request.work.call, movement = ALLGATHER
        task.target = request.recv.ptr
        task.noperands = self.size
        if call == REDUCE:
            movement = GATHER
            task.noperands = self.size if self.rank == root else 0
        elif call == REDUCE_SCATTER_BLOCK:
            movement = ALLTOALL
        elif call == SCAN or call == EXSCAN:
            task.noperands = self.rank + (call == SCAN)
        task.operands = temporary(request, self.size * count * given.itemsize)
        request.add(task)
        self.aim(request, movement, root, source, task.operands, count * <int64_t>given.itemsize, 1, False)
        return 0

    cdef Request folded_uneven(self, Request request, Op op, OpChoice* choice, object datatype):
        """As folded, for units of unequal length."""
        cdef int64_t nbytes = request.parts[self.rank].nbytes
        cdef Fold task = self.fold_of(request, op, nbytes // <int64_t>request.recv.itemsize, &request.recv,
                                      datatype)
        cdef Part* parts = <Part*>calloc(2 * self.size, sizeof(Part))
        cdef int r
        if parts == NULL:
            raise MemoryError()
        memcpy(parts, request.parts, self.size * sizeof(Part))
        free(request.parts)
        request.parts = parts
        task.operands = temporary(request, self.size * nbytes)
        task.noperands, task.target = self.size, request.recv.ptr
        for r in range(self.size):
            parts[self.size + r].ptr, parts[self.size + r].nbytes = task.operands + r * nbytes, nbytes
        request.add(task)
        self.aim_parts(request, ALLTOALLV, 0, self.size, self.size, 1, False)
        self.declare_parts(request, choice.code)
        return request

    cdef Fold fold_of(self, Request request, Op op, int64_t count, Span* given, object datatype):
        cdef Fold task = Fold.__new__(Fold)
        if request.crosses:
            refuse_function()
        task.op, task.count, task.itemsize, task.dtype = op, count, given.itemsize, given.dtype
        task.datatype = datatype
        return task
