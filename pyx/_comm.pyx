"""Layer L4: the communicator that users hold: reads the arguments, refuses what is wrong, hands over to the executor.

The GIL is held while arguments are read and released while data move. Calls of one class of traffic (collectives,
sends, receives) are serialised by a lock each, so that threads may share a communicator; the order in which threads
enter must then be the same on all ranks, as in MPI.
"""

import os

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from hetccl._abi cimport HETCCL_AVG, HETCCL_UINT8
from hetccl._agree cimport Signature, agree
from hetccl._arguments cimport host_span, match, refuse_stream, tag_of, whole
from hetccl._buffer cimport is_in_place, span_check_overlap, span_release
from hetccl._exchange cimport ANY, REFUSED_TAG
from hetccl._kernels cimport hetccl_reduce_fn, reduce_for
from hetccl._op cimport op_code

from hetccl._executor import CALLS
from hetccl._op import SUM
from hetccl.errors import CommClosed

# Indices into _executor.CALLS.
cdef enum:
    ALLREDUCE = 0
    REDUCE = 1
    BCAST = 2
    ALLGATHER = 3
    REDUCE_SCATTER_BLOCK = 4
    ALLTOALL = 5
    BARRIER = 6
    SEND = 7
    RECV = 8
    SENDRECV = 9

# The in-place all-to-all has plans of its own: it must save a block before it overwrites it.
cdef enum:
    ALLTOALL_IN_PLACE = 7

# The op of a collective that only moves data.
cdef enum:
    NO_OP = -1

# The collectives' names in hetccl.plan, by call.
PLANS = ("allreduce", "reduce", "bcast", "allgather", "reduce_scatter_block", "alltoall", "barrier")

# How often this process has come out of a fork; a communicator works only in the process that built it.
cdef int forks = 0
# Why no call is possible any more in this process, or None.
cdef str ended = None


def count_fork():
    global forks
    forks += 1


def end(reason):
    """From now on every call is refused: this process has left all its communicators."""
    global ended
    ended = reason


os.register_at_fork(after_in_child=count_fork)


cdef class Comm:
    """See hetccl.Comm, which adds how the ranks meet.

    membership : bootstrap.Membership
    """

    def __cinit__(self, membership):
        self.membership = membership
        self.mpi = membership.mpi
        self.rank = membership.rank
        self.size = membership.size
        self.islands = membership.islands
        self.members = membership.members
        settings = membership.settings
        self.executor = Executor(membership.segment, settings.timeout, settings.spin_us, membership.crowded)
        self.choices = [None] * ((ALLTOALL_IN_PLACE + 1) * self.size)
        self.collective_lock = Lock()
        self.send_lock = Lock()
        self.recv_lock = Lock()
        self.check = settings.check
        self.generation = forks

    def Allreduce(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over all ranks; every rank gets the result.

        sendbuf, recvbuf : buffer or spec, n elements each, same dtype and memory order; sendbuf may be IN_PLACE
        op      : SUM, PROD, MIN, MAX, AVG, or MPI's
        stream  : None; for device buffers
        Blocks  : until the result is there
        Raises  : BufferError (layout), TypeError (dtype, op), ValueError (n, overlap), HetcclError subclasses
        Cost    : 2 (p-1)/p n itemsize bytes received per rank; one island, large n
        Source  : MPI 4.1, section 6.9.6
        """
        cdef Span send, recv
        clear(&send)
        clear(&recv)
        self.usable(ALLREDUCE)
        refuse_stream(stream)
        try:
            host_span(recvbuf, &recv, "recvbuf", True, 1)
            if not is_in_place(sendbuf):
                host_span(sendbuf, &send, "sendbuf", False, 1)
                match(&send, &recv, recv.count)
            self.collect(ALLREDUCE, 0, &send, &recv, recv.count, &recv, op_code(op, recv.dtype))
        finally:
            span_release(&send)
            span_release(&recv)

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0, *, stream=None):
        """Reduce elementwise over all ranks; root gets the result.

        sendbuf : buffer or spec, n elements; IN_PLACE at root: the operand is in recvbuf
        recvbuf : at root buffer or spec, n elements, same dtype; elsewhere not looked at, may be None
        op, stream, Blocks, Raises : as Allreduce; ValueError for a root outside 0..size-1
        Source  : MPI 4.1, section 6.9.1
        """
        cdef Span send, recv
        cdef Span* given = &send
        clear(&send)
        clear(&recv)
        self.usable(REDUCE)
        refuse_stream(stream)
        cdef int to = self.rank_of(root, "root")
        try:
            if self.rank == to:
                host_span(recvbuf, &recv, "recvbuf", True, 1)
                given = &recv
            if self.rank != to and is_in_place(sendbuf):
                raise ValueError(f"sendbuf: IN_PLACE is for the root, rank {to}; this is rank {self.rank}")
            if not is_in_place(sendbuf):
                host_span(sendbuf, &send, "sendbuf", False, 1)
                if self.rank == to:
                    match(&send, &recv, recv.count)
            self.collect(REDUCE, to, &send, &recv, given.count, given, op_code(op, given.dtype))
        finally:
            span_release(&send)
            span_release(&recv)

    def Bcast(self, buf, root=0, *, stream=None):
        """Copy root's buffer to all ranks.

        buf     : buffer or spec, n elements; the same n and dtype on all ranks; may be read-only at root
        root, stream, Blocks, Raises : as Reduce
        Source  : MPI 4.1, section 6.4
        """
        cdef Span span
        clear(&span)
        self.usable(BCAST)
        refuse_stream(stream)
        cdef int source = self.rank_of(root, "root")
        try:
            host_span(buf, &span, "buf", self.rank != source, 1)
            self.collect(BCAST, source, &span, &span, span.count, &span, NO_OP)
        finally:
            span_release(&span)

    def Allgather(self, sendbuf, recvbuf, *, stream=None):
        """Put the ranks' buffers one after another; every rank gets them all.

        sendbuf : buffer or spec, n elements; IN_PLACE: this rank's part is in recvbuf already
        recvbuf : buffer or spec, size * n elements, in rank order
        stream, Blocks, Raises : as Allreduce
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.7
        """
        cdef Span send, recv
        cdef int64_t count
        clear(&send)
        clear(&recv)
        self.usable(ALLGATHER)
        refuse_stream(stream)
        try:
            host_span(recvbuf, &recv, "recvbuf", True, self.size)
            count = recv.count // self.size
            if is_in_place(sendbuf):
                send.ptr = <char*>recv.ptr + <size_t>(self.rank * count) * recv.itemsize
            else:
                host_span(sendbuf, &send, "sendbuf", False, 1)
                match(&send, &recv, count)
            self.collect(ALLGATHER, 0, &send, &recv, count, &recv, NO_OP)
        finally:
            span_release(&send)
            span_release(&recv)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM, *, stream=None):
        """Reduce elementwise over all ranks; rank r gets block r of the result.

        sendbuf : buffer or spec, size * n elements; IN_PLACE: they are in recvbuf
        recvbuf : buffer or spec, n elements; in place size * n, of which the first n receive
        op, stream, Blocks, Raises : as Allreduce
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.10.1
        """
        cdef Span send, recv
        cdef int64_t count
        cdef bint in_place = is_in_place(sendbuf)
        clear(&send)
        clear(&recv)
        self.usable(REDUCE_SCATTER_BLOCK)
        refuse_stream(stream)
        try:
            host_span(recvbuf, &recv, "recvbuf", True, self.size if in_place else 1)
            count = recv.count // self.size if in_place else recv.count
            if not in_place:
                host_span(sendbuf, &send, "sendbuf", False, self.size)
                match(&send, &recv, count * self.size)
            self.collect(REDUCE_SCATTER_BLOCK, 0, &send, &recv, count, &recv, op_code(op, recv.dtype))
        finally:
            span_release(&send)
            span_release(&recv)

    def Alltoall(self, sendbuf, recvbuf, *, stream=None):
        """Send block r of sendbuf to rank r; receive its block for this rank into block r of recvbuf.

        sendbuf : buffer or spec, size * n elements; IN_PLACE: they are in recvbuf
        recvbuf : buffer or spec, size * n elements, same dtype
        stream, Blocks, Raises : as Allreduce
        Cost    : (p-1) n itemsize bytes received per rank
        Source  : MPI 4.1, section 6.8
        """
        cdef Span send, recv
        cdef bint in_place = is_in_place(sendbuf)
        clear(&send)
        clear(&recv)
        self.usable(ALLTOALL)
        refuse_stream(stream)
        try:
            host_span(recvbuf, &recv, "recvbuf", True, self.size)
            if not in_place:
                host_span(sendbuf, &send, "sendbuf", False, self.size)
                match(&send, &recv, recv.count)
            self.collect(ALLTOALL, 0, &send, &recv, recv.count // self.size, &recv, NO_OP, in_place)
        finally:
            span_release(&send)
            span_release(&recv)

    def Barrier(self):
        """Return once every rank has called it.

        Raises : HetcclError subclasses
        Source : MPI 4.1, section 6.3
        """
        cdef Span send, recv
        cdef char tokens[2]
        clear(&send)
        clear(&recv)
        self.usable(BARRIER)
        tokens[0] = tokens[1] = 0
        send.ptr, recv.ptr, recv.dtype, recv.itemsize = &tokens[0], &tokens[1], HETCCL_UINT8, 1
        self.collect(BARRIER, 0, &send, &recv, 1, &recv, NO_OP)

    def Send(self, buf, dest, tag=0, *, stream=None):
        """Send a message to one rank.

        buf     : buffer or spec
        dest    : rank, or MPI.PROC_NULL (nothing is sent)
        tag     : 0..2^31-1
        Blocks  : until buf may be changed; a message above 32 KiB waits for its receiver, and so does a smaller one
                  that finds no room in the ring
        Raises  : BufferError, TypeError, ValueError (dest, tag), HetcclError subclasses
        Source  : MPI 4.1, section 3.2.1
        """
        cdef Span span
        cdef Exchange exchange
        clear(&span)
        memset(&exchange, 0, sizeof(exchange))
        self.usable(SEND)
        refuse_stream(stream)
        try:
            host_span(buf, &span, "buf", False, 1)
            self.fill_send(&exchange, &span, dest, tag, "tag")
            self.talk(SEND, &exchange, None)
        finally:
            span_release(&span)

    def Recv(self, buf, source=None, tag=None, status=None, *, stream=None):
        """Receive a message.

        buf     : buffer or spec, at least as long as the message
        source  : rank, MPI.PROC_NULL, or MPI.ANY_SOURCE (the default)
        tag     : 0..2^31-1, or MPI.ANY_TAG (the default); messages of one sender are received in the order they were
                  sent
        status  : MPI.Status to fill, or None
        Blocks  : until the message is there
        Raises  : ValueError if the message at hand is longer than buf or, from a given source, has another tag (it
                  stays there for the next Recv); else as Send
        Source  : MPI 4.1, section 3.2.4
        """
        cdef Span span
        cdef Exchange exchange
        clear(&span)
        memset(&exchange, 0, sizeof(exchange))
        self.usable(RECV)
        refuse_stream(stream)
        try:
            host_span(buf, &span, "buf", True, 1)
            self.fill_recv(&exchange, &span, source, tag, "tag")
            self.talk(RECV, &exchange, status)
        finally:
            span_release(&span)

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=None, recvtag=None, status=None, *, stream=None):
        """Send one message and receive another at the same time; neither waits for the other.

        It waits for other threads' sends and receives on this communicator, as all calls do.

        sendbuf, dest, sendtag           : as Send
        recvbuf, source, recvtag, status : as Recv
        Blocks, Raises : as Send and Recv; ValueError if the buffers overlap
        Source  : MPI 4.1, section 3.10
        """
        cdef Span send, recv
        cdef Exchange exchange
        clear(&send)
        clear(&recv)
        memset(&exchange, 0, sizeof(exchange))
        self.usable(SENDRECV)
        refuse_stream(stream)
        try:
            host_span(sendbuf, &send, "sendbuf", False, 1)
            host_span(recvbuf, &recv, "recvbuf", True, 1)
            span_check_overlap(&send, &recv, "sendbuf", "recvbuf")
            self.fill_send(&exchange, &send, dest, sendtag, "sendtag")
            self.fill_recv(&exchange, &recv, source, recvtag, "recvtag")
            self.talk(SENDRECV, &exchange, status)
        finally:
            span_release(&send)
            span_release(&recv)

    def Get_rank(self):
        """This process's rank in the communicator."""
        return self.rank

    def Get_size(self):
        """Number of ranks."""
        return self.size

    def Free(self):
        """Give back what the communicator holds; the MPI communicator underneath is not touched.

        Local; a second call does nothing. Peers that still wait for this rank get PeerError.
        Blocks  : until the calls of other threads on this communicator have ended
        """
        if self.closed or self.generation != forks:
            return
        held = []
        try:
            for lock in (self.collective_lock, self.send_lock, self.recv_lock):
                (<Lock>lock).acquire()
                held.append(lock)
            self.closed = True
            self.executor.segment.close()
        finally:
            for lock in held:
                (<Lock>lock).release()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.Free()

    def __getattr__(self, name):
        if self.closed:
            raise CommClosed(f"{name}: the communicator has been freed", call=name)
        if ended is not None:
            raise CommClosed(f"{name}: {ended}", call=name)
        if not hasattr(self.mpi, name):
            raise AttributeError(f"neither hetccl.Comm nor {type(self.mpi).__name__} of mpi4py has {name!r}")
        return getattr(self.mpi, name)

    def __reduce__(self):
        raise TypeError("a Comm cannot be pickled; build one in each process")

    def __repr__(self):
        islands = "1 island" if len(self.islands) == 1 else f"{len(self.islands)} islands"
        state = "freed" if self.closed else f"rank {self.rank} of {self.size}, {islands}"
        return f"<hetccl.Comm {state}>"

    cdef int usable(self, int call) except -1:
        if self.closed:
            raise CommClosed(f"{CALLS[call]}: the communicator has been freed", call=CALLS[call])
        if ended is not None:
            raise CommClosed(f"{CALLS[call]}: {ended}", call=CALLS[call])
        if self.generation != forks:
            raise CommClosed(f"{CALLS[call]}: the communicator belongs to the parent of this forked process",
                             call=CALLS[call])
        return 0

    cdef int rank_of(self, object value, str argument) except -1:
        rank = whole(value, argument)
        if not 0 <= rank < self.size:
            raise ValueError(f"{argument}: {rank} is not a rank of this communicator (0..{self.size - 1})")
        return rank

    cdef Choice choose(self, int call, int root, bint in_place):
        """The programs for one collective and root; made when first needed and kept."""
        cdef int slot = (ALLTOALL_IN_PLACE if in_place else call) * self.size + root
        cdef Choice choice = self.choices[slot]
        if choice is None:
            choice = Choice(self.membership.plans(PLANS[call], root, in_place), self.rank)
            self.choices[slot] = choice
        return choice

    cdef int collect(self, int call, int root, Span* send, Span* recv, int64_t count, Span* given, int op,
                     bint in_place=False) except -1:
        """Run a collective on checked spans; a send span without address: the input is where the output goes."""
        cdef hetccl_reduce_fn reduce = NULL if op == NO_OP else reduce_for(given.dtype, op)
        cdef void* source = recv.ptr if send.ptr == NULL else send.ptr
        cdef size_t itemsize = given.itemsize
        cdef Choice choice = self.choose(call, root, in_place)
        cdef Signature mine
        self.collective_lock.acquire()
        try:
            self.usable(call)
            self.executor.enter(call)
            if self.check:
                mine.call, mine.root, mine.count = call, root, count
                mine.dtype, mine.op, mine.fortran = given.dtype, op, given.fortran
                agree(self.executor, self.choose(ALLGATHER, 0, False), &mine)
            self.executor.run(choice.pick(count * itemsize), call, source, recv.ptr, count, itemsize, reduce,
                              self.size if op == HETCCL_AVG else 0)
        finally:
            self.collective_lock.release()
        return 0

    cdef int fill_send(self, Exchange* exchange, Span* span, object dest, object tag, str tag_name) except -1:
        cdef int64_t number = tag_of(tag, tag_name)
        if whole(dest, "dest") == self.membership.proc_null:
            return 0
        exchange.dest = self.rank_of(dest, "dest")
        exchange.sending = True
        exchange.outgoing.ptr = <uint8_t*>span.ptr
        exchange.outgoing.nbytes = <size_t>span.count * span.itemsize
        exchange.outgoing.tag = <uint32_t>number
        return 0

    cdef int fill_recv(self, Exchange* exchange, Span* span, object source, object tag, str tag_name) except -1:
        exchange.tag = ANY if tag is None or tag == self.membership.any_tag else tag_of(tag, tag_name)
        if source is None or source == self.membership.any_source:
            exchange.source = ANY
        elif whole(source, "source") == self.membership.proc_null:
            exchange.source = self.membership.proc_null
            return 0
        else:
            exchange.source = self.rank_of(source, "source")
        exchange.receiving = True
        exchange.incoming.ptr = <uint8_t*>span.ptr
        exchange.capacity = <size_t>span.count * span.itemsize
        return 0

    cdef int talk(self, int call, Exchange* exchange, object status) except -1:
        """Run a point-to-point call under the locks of its halves, and report a message that does not fit."""
        cdef bint from_nobody = call != SEND and not exchange.receiving
        if call != RECV:
            self.send_lock.acquire()
        try:
            if call != SEND:
                self.recv_lock.acquire()
            try:
                self.usable(call)
                self.executor.exchange(exchange, call)
            finally:
                if call != SEND:
                    self.recv_lock.release()
        finally:
            if call != RECV:
                self.send_lock.release()
        prefix = "recv" if call == SENDRECV else ""
        if exchange.refusal == REFUSED_TAG:
            raise ValueError(f"{CALLS[call]}: {prefix}tag: the next message from rank {exchange.source} has tag "
                             f"{exchange.refused_tag}, not {exchange.tag}; messages of one sender are received in the "
                             "order they were sent. It was left there")
        if exchange.refusal:
            raise ValueError(f"{CALLS[call]}: {prefix}buf: the message from rank {exchange.source} has "
                             f"{exchange.refused_nbytes} bytes, the buffer {exchange.capacity}. It was left there")
        if status is not None and from_nobody:
            self.membership.fill_status(status, self.membership.proc_null, self.membership.any_tag, 0)
        elif status is not None:
            self.membership.fill_status(status, exchange.source, exchange.tag, exchange.incoming.nbytes)
        return 0


cdef inline void clear(Span* span) noexcept:
    memset(span, 0, sizeof(Span))
