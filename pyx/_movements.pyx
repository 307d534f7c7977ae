"""Layer L4: the collectives of a communicator that move data. Each call is read and checked here once, for its three
forms. Their units are counted in bytes, so that all ranks cut alike whatever their datatypes."""

from libc.stdint cimport uint8_t

from hetccl._arguments cimport (
    match, match_kinds, parts_check_apart, span_bytes, span_cut,
)
from hetccl._buffer cimport is_in_place, span_of
from hetccl._calls cimport (
    ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, BARRIER, BCAST, GATHER, GATHERV, SCATTER, SCATTERV,
)
from hetccl._compose cimport Move, Unpack, temporary
from hetccl._dtype cimport dtype_itemsize
from hetccl._layout cimport Part
from hetccl._request cimport Prequest
from hetccl._spec cimport parts_of, parts_of_w

cdef enum:
    NO_OP = -1


cdef class Movements(Reductions):
    """Adds broadcast, gathers, scatters, all-to-alls and the barrier to an endpoint."""

    def Bcast(self, buf, root=0, *, stream=None):
        """Copy root's buffer to all ranks.

        buf     : buffer or spec, n elements; the same n and dtype on all ranks; may be read-only at root
        root    : rank
        stream  : None; for device buffers
        Blocks  : until the data are there; at root, until buf may be changed
        Raises  : BufferError (layout), TypeError (dtype), ValueError (root), HetcclError subclasses
        Source  : MPI 4.1, section 6.4
        """
        self.finish(self.bcast(Request, buf, root, stream), None)

    def Ibcast(self, buf, root=0, *, stream=None):
        """Nonblocking Bcast; returns a Request. Source : MPI 4.1, section 6.12.2"""
        return self.bcast(Request, buf, root, stream).go()

    def Bcast_init(self, buf, root=0, info=None, *, stream=None):
        """Persistent Bcast; returns a Prequest. Source : MPI 4.1, section 6.13.2"""
        return self.bcast(Prequest, buf, root, stream)

    cdef Request bcast(self, type kind, object buf, object root, object stream):
        cdef Request request = self.request(kind, BCAST, stream)
        cdef int source = self.rank_of(root, "root")
        cdef bint sends = self.rank == source
        span_of(buf, &request.send if sends else &request.recv, "buf", not sends, 1)
        return self.movement(request, source, sends, not sends,
                             span_bytes(&request.send if sends else &request.recv), False)

    def Gather(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Put the ranks' buffers one after another at root.

        sendbuf : buffer or spec, n elements; IN_PLACE at root: its part is in recvbuf already
        recvbuf : at root buffer or spec, size * n elements, in rank order; elsewhere not looked at, may be None
        root, stream, Blocks, Raises : as Bcast; ValueError (n, overlap)
        Source  : MPI 4.1, section 6.5
        """
        self.finish(self.gather(Request, GATHER, sendbuf, recvbuf, root, stream), None)

    def Igather(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Nonblocking Gather; returns a Request. Source : MPI 4.1, section 6.12.3"""
        return self.gather(Request, GATHER, sendbuf, recvbuf, root, stream).go()

    def Gather_init(self, sendbuf, recvbuf, root=0, info=None, *, stream=None):
        """Persistent Gather; returns a Prequest. Source : MPI 4.1, section 6.13.3"""
        return self.gather(Prequest, GATHER, sendbuf, recvbuf, root, stream)

    def Gatherv(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Put the ranks' buffers, of lengths of their own, where root wants them.

        sendbuf : as Gather
        recvbuf : at root vector spec, [data, counts], [data, (counts, displs)], [data, counts, displs, datatype] ...;
                  elsewhere not looked at, may be None
        root, stream, Blocks, Raises : as Gather; ValueError for counts and displacements: how many, negative, beyond
                  the buffer, overlapping
        Source  : MPI 4.1, section 6.5
        """
        self.finish(self.gather(Request, GATHERV, sendbuf, recvbuf, root, stream), None)

    def Igatherv(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Nonblocking Gatherv; returns a Request. Source : MPI 4.1, section 6.12.3"""
        return self.gather(Request, GATHERV, sendbuf, recvbuf, root, stream).go()

    def Gatherv_init(self, sendbuf, recvbuf, root=0, info=None, *, stream=None):
        """Persistent Gatherv; returns a Prequest. Source : MPI 4.1, section 6.13.3"""
        return self.gather(Prequest, GATHERV, sendbuf, recvbuf, root, stream)

    cdef Request gather(self, type kind, int call, object sendbuf, object recvbuf, object root, object stream):
        cdef Request request = self.request(kind, call, stream)
        cdef int to = self.rank_of(root, "root"), nout = self.size if self.rank == to else 0
        cdef bint in_place = is_in_place(sendbuf)
        cdef Part* parts
        cdef int r
        if in_place and self.rank != to:
            raise ValueError(f"sendbuf: IN_PLACE is for the root, rank {to}; this is rank {self.rank}")
        if not in_place:
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
        if call == GATHER:
            if nout:
                span_of(recvbuf, &request.recv, "recvbuf", True, self.size)
                if not in_place:
                    match(&request.send, &request.recv, span_bytes(&request.recv) // self.size)
            return self.movement(request, to, 1, nout,
                                 span_bytes(&request.recv) // self.size if nout else span_bytes(&request.send),
                                 in_place)
        parts = self.parts_for(request, 1, nout)
        if nout:
            parts_of(recvbuf, &request.recv, "recvbuf", True, self.size, parts + 1)
            parts[0] = parts[1 + self.rank]
        if not in_place:
            span_cut(&request.send, 1, parts)
            if nout:
                self.match_own(request, parts, &parts[1 + self.rank])
                parts_check_apart(parts, 1, parts + 1, nout)
        self.aim_parts(request, call, to, 1, nout, 1, False)
        self.declare(request, to, NO_OP, &request.recv if nout else &request.send, -1)
        for r in range(self.size):
            self.expect(request, r, parts[0].nbytes if r == to else 0, parts[1 + r].nbytes if nout else 0)
        return request

    def Scatter(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Give each rank its part of root's buffer.

        sendbuf : at root buffer or spec, size * n elements, in rank order; elsewhere not looked at, may be None
        recvbuf : buffer or spec, n elements; IN_PLACE at root: its part stays where it is
        root, stream, Blocks, Raises : as Gather
        Source  : MPI 4.1, section 6.6
        """
        self.finish(self.scatter(Request, SCATTER, sendbuf, recvbuf, root, stream), None)

    def Iscatter(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Nonblocking Scatter; returns a Request. Source : MPI 4.1, section 6.12.4"""
        return self.scatter(Request, SCATTER, sendbuf, recvbuf, root, stream).go()

    def Scatter_init(self, sendbuf, recvbuf, root=0, info=None, *, stream=None):
        """Persistent Scatter; returns a Prequest. Source : MPI 4.1, section 6.13.4"""
        return self.scatter(Prequest, SCATTER, sendbuf, recvbuf, root, stream)

    def Scatterv(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Give each rank its part, of a length of its own, of root's buffer.

        sendbuf : at root vector spec, as Gatherv's recvbuf, but parts may overlap; elsewhere not looked at, may be None
        recvbuf : as Scatter
        root, stream, Blocks, Raises : as Gatherv
        Source  : MPI 4.1, section 6.6
        """
        self.finish(self.scatter(Request, SCATTERV, sendbuf, recvbuf, root, stream), None)

    def Iscatterv(self, sendbuf, recvbuf, root=0, *, stream=None):
        """Nonblocking Scatterv; returns a Request. Source : MPI 4.1, section 6.12.4"""
        return self.scatter(Request, SCATTERV, sendbuf, recvbuf, root, stream).go()

    def Scatterv_init(self, sendbuf, recvbuf, root=0, info=None, *, stream=None):
        """Persistent Scatterv; returns a Prequest. Source : MPI 4.1, section 6.13.4"""
        return self.scatter(Prequest, SCATTERV, sendbuf, recvbuf, root, stream)

    cdef Request scatter(self, type kind, int call, object sendbuf, object recvbuf, object root, object stream):
        cdef Request request = self.request(kind, call, stream)
        cdef int source = self.rank_of(root, "root"), nin = self.size if self.rank == source else 0
        cdef bint in_place = is_in_place(recvbuf)
        cdef Part* parts
        cdef int r
        if in_place and self.rank != source:
            raise ValueError(f"recvbuf: IN_PLACE is for the root, rank {source}; this is rank {self.rank}")
        if not in_place:
            span_of(recvbuf, &request.recv, "recvbuf", True, 1)
        if call == SCATTER:
            if nin:
                span_of(sendbuf, &request.send, "sendbuf", False, self.size)
                if not in_place:
                    match(&request.send, &request.recv, span_bytes(&request.recv) * self.size)
            return self.movement(request, source, nin, 1,
                                 span_bytes(&request.send) // self.size if nin else span_bytes(&request.recv), in_place)
        parts = self.parts_for(request, nin, 1)
        if nin:
            parts_of(sendbuf, &request.send, "sendbuf", False, self.size, parts)
            parts[nin] = parts[self.rank]
        if not in_place:
            span_cut(&request.recv, 1, parts + nin)
            if nin:
                self.match_own(request, &parts[self.rank], parts + nin)
                parts_check_apart(parts, nin, parts + nin, 1)
        self.aim_parts(request, call, source, nin, 1, 1, False)
        self.declare(request, source, NO_OP, &request.send if nin else &request.recv, -1)
        for r in range(self.size):
            self.expect(request, r, parts[r].nbytes if nin else 0, parts[nin].nbytes if r == source else 0)
        return request

    def Allgather(self, sendbuf, recvbuf, *, stream=None):
        """Put the ranks' buffers one after another; every rank gets them all.

        sendbuf : buffer or spec, n elements; IN_PLACE: this rank's part is in recvbuf already
        recvbuf : buffer or spec, size * n elements, in rank order
        stream, Blocks, Raises : as Gather
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.7
        """
        if self.vendor is None or not self.queue_quickly(ALLGATHER, sendbuf, recvbuf, None, stream):
            self.finish(self.allgather(Request, sendbuf, recvbuf, stream), None)

    def Iallgather(self, sendbuf, recvbuf, *, stream=None):
        """Nonblocking Allgather; returns a Request. Source : MPI 4.1, section 6.12.5"""
        return self.allgather(Request, sendbuf, recvbuf, stream).go()

    def Allgather_init(self, sendbuf, recvbuf, info=None, *, stream=None):
        """Persistent Allgather; returns a Prequest. Source : MPI 4.1, section 6.13.5"""
        return self.allgather(Prequest, sendbuf, recvbuf, stream)

    cdef Request allgather(self, type kind, object sendbuf, object recvbuf, object stream):
        cdef Request request = self.request(kind, ALLGATHER, stream)
        cdef int64_t nbytes
        span_of(recvbuf, &request.recv, "recvbuf", True, self.size)
        nbytes = span_bytes(&request.recv) // self.size
        if not is_in_place(sendbuf):
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
            match(&request.send, &request.recv, nbytes)
        return self.movement(request, 0, 1, self.size, nbytes, is_in_place(sendbuf))

    def Allgatherv(self, sendbuf, recvbuf, *, stream=None):
        """Put the ranks' buffers, of lengths of their own, together; every rank gets them all.

        sendbuf : as Allgather
        recvbuf : vector spec, as Gatherv's; the counts are the same on all ranks
        stream, Blocks, Raises : as Gatherv
        Cost    : all but this rank's bytes received per rank
        Source  : MPI 4.1, section 6.7
        """
        self.finish(self.allgatherv(Request, sendbuf, recvbuf, stream), None)

    def Iallgatherv(self, sendbuf, recvbuf, *, stream=None):
        """Nonblocking Allgatherv; returns a Request. Source : MPI 4.1, section 6.12.5"""
        return self.allgatherv(Request, sendbuf, recvbuf, stream).go()

    def Allgatherv_init(self, sendbuf, recvbuf, info=None, *, stream=None):
        """Persistent Allgatherv; returns a Prequest. Source : MPI 4.1, section 6.13.5"""
        return self.allgatherv(Prequest, sendbuf, recvbuf, stream)

    cdef Request allgatherv(self, type kind, object sendbuf, object recvbuf, object stream):
        cdef Request request = self.request(kind, ALLGATHERV, stream)
        cdef Part* parts = self.parts_for(request, 1, self.size)
        cdef int r
        parts_of(recvbuf, &request.recv, "recvbuf", True, self.size, parts + 1)
        parts[0] = parts[1 + self.rank]
        if not is_in_place(sendbuf):
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
            span_cut(&request.send, 1, parts)
            self.match_own(request, parts, &parts[1 + self.rank])
            parts_check_apart(parts, 1, parts + 1, self.size)
        self.aim_parts(request, ALLGATHERV, 0, 1, self.size, 1, False)
        self.declare(request, 0, NO_OP, &request.recv, -1)
        for r in range(self.size):
            self.expect(request, r, parts[0].nbytes, parts[1 + r].nbytes)
        return request

    def Alltoall(self, sendbuf, recvbuf, *, stream=None):
        """Send block r of sendbuf to rank r; receive its block for this rank into block r of recvbuf.

        sendbuf : buffer or spec, size * n elements; IN_PLACE: they are in recvbuf
        recvbuf : buffer or spec, size * n elements, same dtype
        stream, Blocks, Raises : as Gather
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.8
        """
        if self.vendor is None or not self.queue_quickly(ALLTOALL, sendbuf, recvbuf, None, stream):
            self.finish(self.alltoall(Request, sendbuf, recvbuf, stream), None)

    def Ialltoall(self, sendbuf, recvbuf, *, stream=None):
        """Nonblocking Alltoall; returns a Request. Source : MPI 4.1, section 6.12.6"""
        return self.alltoall(Request, sendbuf, recvbuf, stream).go()

    def Alltoall_init(self, sendbuf, recvbuf, info=None, *, stream=None):
        """Persistent Alltoall; returns a Prequest. Source : MPI 4.1, section 6.13.6"""
        return self.alltoall(Prequest, sendbuf, recvbuf, stream)

    cdef Request alltoall(self, type kind, object sendbuf, object recvbuf, object stream):
        cdef Request request = self.request(kind, ALLTOALL, stream)
        cdef bint in_place = is_in_place(sendbuf)
        span_of(recvbuf, &request.recv, "recvbuf", True, self.size)
        if not in_place:
            span_of(sendbuf, &request.send, "sendbuf", False, self.size)
            match(&request.send, &request.recv, span_bytes(&request.recv))
        return self.movement(request, 0, self.size, self.size, span_bytes(&request.recv) // self.size, in_place)

    def Alltoallv(self, sendbuf, recvbuf, *, stream=None):
        """Send part r of sendbuf to rank r; receive its part for this rank into part r of recvbuf.

        sendbuf : vector spec, [data, counts], [data, (counts, displs)], [data, counts, displs, datatype] ...; parts may
                  overlap; IN_PLACE: the parts of recvbuf are sent
        recvbuf : vector spec; part r is as long as what rank r sends here
        stream, Blocks, Raises : as Gatherv
        Source  : MPI 4.1, section 6.8
        """
        self.finish(self.alltoallv(Request, ALLTOALLV, sendbuf, recvbuf, stream), None)

    def Ialltoallv(self, sendbuf, recvbuf, *, stream=None):
        """Nonblocking Alltoallv; returns a Request. Source : MPI 4.1, section 6.12.6"""
        return self.alltoallv(Request, ALLTOALLV, sendbuf, recvbuf, stream).go()

    def Alltoallv_init(self, sendbuf, recvbuf, info=None, *, stream=None):
        """Persistent Alltoallv; returns a Prequest. Source : MPI 4.1, section 6.13.6"""
        return self.alltoallv(Prequest, ALLTOALLV, sendbuf, recvbuf, stream)

    def Alltoallw(self, sendbuf, recvbuf, *, stream=None):
        """As Alltoallv, with a datatype of its own for each part: subarrays, say, packed while they are copied.

        sendbuf, recvbuf : spec [data, datatypes], [data, (counts, displs), datatypes] or [data, counts, displs,
                  datatypes]; displacements in bytes; one datatype per rank; sendbuf may be IN_PLACE
        stream, Blocks, Raises : as Gatherv; TypeError (a datatype that cannot be packed)
        Source  : MPI 4.1, section 6.8
        """
        self.finish(self.alltoallv(Request, ALLTOALLW, sendbuf, recvbuf, stream), None)

    def Ialltoallw(self, sendbuf, recvbuf, *, stream=None):
        """Nonblocking Alltoallw; returns a Request. Source : MPI 4.1, section 6.12.6"""
        return self.alltoallv(Request, ALLTOALLW, sendbuf, recvbuf, stream).go()

    def Alltoallw_init(self, sendbuf, recvbuf, info=None, *, stream=None):
        """Persistent Alltoallw; returns a Prequest. Source : MPI 4.1, section 6.13.6"""
        return self.alltoallv(Prequest, ALLTOALLW, sendbuf, recvbuf, stream)

    cdef Request alltoallv(self, type kind, int call, object sendbuf, object recvbuf, object stream):
        cdef Request request = self.request(kind, call, stream)
        cdef bint in_place = is_in_place(sendbuf)
        cdef Part* parts = self.parts_for(request, self.size, self.size)
        cdef int r
        self.read_parts(request, call, recvbuf, &request.recv, "recvbuf", parts + self.size)
        for r in range(self.size if in_place else 0):
            parts[r] = parts[self.size + r]
        if not in_place:
            self.read_parts(request, call, sendbuf, &request.send, "sendbuf", parts)
            self.match_own(request, &parts[self.rank], &parts[self.size + self.rank])
            parts_check_apart(parts, self.size, parts + self.size, self.size)
        self.aim_parts(request, call, 0, self.size, self.size, 1, in_place)
        self.declare(request, 0, NO_OP, NULL if call == ALLTOALLW else &request.recv, -1)
        for r in range(self.size):
            self.expect(request, r, parts[r].nbytes, parts[self.size + r].nbytes)
        return request

    cdef int read_parts(self, Request request, int call, object spec, Span* span, str argument, Part* parts) except -1:
        cdef bint receives = span == &request.recv
        if call == ALLTOALLV:
            return parts_of(spec, span, argument, receives, self.size, parts)
        if request.kept is None:
            request.kept = []
        return parts_of_w(spec, span, argument, receives, self.size, parts, request.kept)

    def Barrier(self):
        """Return once every rank has called it.

        Raises : HetcclError subclasses
        Source : MPI 4.1, section 6.3
        """
        self.finish(self.barrier(Request, BARRIER), None)

    def Ibarrier(self):
        """Nonblocking Barrier; returns a Request. Source : MPI 4.1, section 6.12.1"""
        return self.barrier(Request, BARRIER).go()

    def Barrier_init(self, info=None):
        """Persistent Barrier; returns a Prequest. Source : MPI 4.1, section 6.13.1"""
        return self.barrier(Prequest, BARRIER)

    cdef Request barrier(self, type kind, int call):
        cdef Request request = self.request(kind, call, None)
        self.aim(request, BARRIER, 0, &request.tokens[0], &request.tokens[1], 1, 1, False)
        self.declare(request, 0, NO_OP, NULL, 1)
        return request

    cdef Request movement(self, Request request, int root, int nin, int nout, int64_t unit_nbytes, bint in_place):
        """Set a request up to move units alike: nin of `send`, nout of `recv`."""
        cdef Span* given = &request.recv if request.recv.owner != NULL else &request.send
        cdef void* source = request.send.ptr
        cdef void* target = request.recv.ptr
        cdef int call = request.work.call
        cdef bint with_parts = request.send.layout != NULL or request.recv.layout != NULL
        cdef bint overwrites = in_place and call == ALLTOALL
        if not self.place(request):
            self.offer_movement(request)
            if with_parts and request.vendor is not None:
                self.packed(request, &source, &target, in_place)
                with_parts = False
        if with_parts:
            self.parts_of_units(request, nin, nout, in_place)
            self.aim_parts(request, call, root, nin, nout, 1, overwrites)
        else:
            if in_place and call == SCATTER:
                target = <uint8_t*>source + self.rank * unit_nbytes
            elif in_place and nin == 1:
                source = <uint8_t*>target + self.rank * unit_nbytes
            elif in_place:
                source = target
            self.aim(request, call, root, source, target, unit_nbytes, 1, overwrites)
        # In elements of the base type: ranks may describe the same data by different datatypes.
        self.declare(request, root, NO_OP, given, unit_nbytes // max(<int64_t>1, <int64_t>dtype_itemsize(given.dtype)))
        return request

    cdef int packed(self, Request request, void** source, void** target, bint in_place) except -1:
        """Give a library that knows no layouts packed copies."""
        cdef Move pack
        cdef Unpack unpack
        cdef Span* span
        cdef void** place
        cdef bint receives
        for receives in (False, True):
            span = &request.recv if receives else &request.send
            place = target if receives else source
            if span.owner == NULL or span.layout == NULL:
                continue
            place[0] = temporary(request, span_bytes(span))
            if not receives or in_place:
                pack = Move.__new__(Move)
                pack.first, pack.target, pack.nbytes = True, place[0], span_bytes(span)
                pack.source, pack.layout = span.ptr, span.layout
                request.add(pack)
            if receives:
                unpack = Unpack.__new__(Unpack)
                unpack.target, unpack.layout, unpack.nbytes = span.ptr, span.layout, span_bytes(span)
                unpack.source = <uint8_t*>place[0]
                request.add(unpack)
        return 0

    cdef int parts_of_units(self, Request request, int nin, int nout, bint in_place) except -1:
        """The same units as parts, since a datatype with gaps is among them."""
        cdef Part* parts = self.parts_for(request, nin, nout)
        cdef int r
        if nin and request.send.owner != NULL:
            span_cut(&request.send, nin, parts)
        if nout and request.recv.owner != NULL:
            span_cut(&request.recv, nout, parts + nin)
        if not in_place:
            return 0
        if nout == 1:
            parts[nin] = parts[self.rank]
        elif nin == 1:
            parts[0] = parts[1 + self.rank]
        else:
            for r in range(nin):
                parts[r] = parts[nin + r]
        return 0

    cdef int match_own(self, Request request, const Part* given, const Part* wanted) except -1:
        """A rank's part of its own data: as long on both sides."""
        match_kinds(&request.send, &request.recv)
        if given.nbytes != wanted.nbytes:
            raise ValueError(f"sendbuf: has {given.nbytes} bytes for this rank itself, rank {self.rank}; recvbuf's "
                             f"part for it has {wanted.nbytes}")
        return 0
