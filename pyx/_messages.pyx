"""Layer L4: the point-to-point calls of a communicator, matched as MPI matches them (_mailbox)."""

from cpython.number cimport PyIndex_Check

from hetccl._abi cimport HETCCL_MEM_HOST
from hetccl._arguments cimport span_bytes, tag_of
from hetccl._buffer cimport span_check_overlap, span_of
from hetccl._calls cimport PROBE, RECV, SEND, SENDRECV
from hetccl._compose cimport Deliver, Move, temporary
from hetccl._mailbox cimport ANY
from hetccl._request cimport Letter, Prequest
from hetccl._shm cimport HETCCL_MSG_SYNC

cdef enum:
    PLAIN = 0                            # no flag of a message


cdef class Messages(Movements):
    """Adds sends, receives and probes to an endpoint."""

    def Send(self, buf, dest, tag=0, *, stream=None):
        """Send a message to one rank.

        buf     : buffer or spec
        dest    : rank, or MPI.PROC_NULL (nothing is sent)
        tag     : 0..2^31-1
        stream  : None; for device buffers
        Blocks  : until buf may be changed; a message above 32 KiB waits for its receiver, and so does a smaller one
                  that finds no room in the ring
        Raises  : BufferError (layout), TypeError, ValueError (dest, tag), HetcclError subclasses
        Source  : MPI 4.1, section 3.2.1
        """
        self.finish(self.send(Request, buf, dest, tag, PLAIN, stream), None)

    def Ssend(self, buf, dest, tag=0, *, stream=None):
        """Send a message, and wait until its receive has begun.

        buf, dest, tag, stream : as Send
        Blocks  : until a receive has taken the message
        Raises  : as Send
        Source  : MPI 4.1, section 3.4
        """
        self.finish(self.send(Request, buf, dest, tag, HETCCL_MSG_SYNC, stream), None)

    def Bsend(self, buf, dest, tag=0, *, stream=None):
        """Send a copy of a message: never waits for the receiver.

        The copy is made in memory that hetccl allocates; buffers attached by MPI.Attach_buffer are not used.

        buf, dest, tag, stream, Raises : as Send; MemoryError
        Source  : MPI 4.1, section 3.4
        """
        self.finish(self.buffered(Request, buf, dest, tag, stream), None)

    def Rsend(self, buf, dest, tag=0, *, stream=None):
        """Send a message whose receive is known to be posted: as Send.

        buf, dest, tag, stream, Blocks, Raises : as Send
        Source  : MPI 4.1, section 3.4
        """
        self.finish(self.send(Request, buf, dest, tag, PLAIN, stream), None)

    def Isend(self, buf, dest, tag=0, *, stream=None):
        """Nonblocking Send; returns a Request. Source : MPI 4.1, section 3.7.2"""
        return self.send(Request, buf, dest, tag, PLAIN, stream).go()

    def Issend(self, buf, dest, tag=0, *, stream=None):
        """Nonblocking Ssend; returns a Request. Source : MPI 4.1, section 3.7.2"""
        return self.send(Request, buf, dest, tag, HETCCL_MSG_SYNC, stream).go()

    def Ibsend(self, buf, dest, tag=0, *, stream=None):
        """Nonblocking Bsend; returns a Request, complete. Source : MPI 4.1, section 3.7.2"""
        return self.buffered(Request, buf, dest, tag, stream).go()

    def Irsend(self, buf, dest, tag=0, *, stream=None):
        """Nonblocking Rsend; returns a Request. Source : MPI 4.1, section 3.7.2"""
        return self.send(Request, buf, dest, tag, PLAIN, stream).go()

    def Send_init(self, buf, dest, tag=0, *, stream=None):
        """Persistent Send; returns a Prequest. Source : MPI 4.1, section 3.9"""
        return self.send(Prequest, buf, dest, tag, PLAIN, stream)

    def Ssend_init(self, buf, dest, tag=0, *, stream=None):
        """Persistent Ssend; returns a Prequest. Source : MPI 4.1, section 3.9"""
        return self.send(Prequest, buf, dest, tag, HETCCL_MSG_SYNC, stream)

    def Bsend_init(self, buf, dest, tag=0, *, stream=None):
        """Persistent Bsend; returns a Prequest. Source : MPI 4.1, section 3.9"""
        return self.buffered(Prequest, buf, dest, tag, stream)

    def Rsend_init(self, buf, dest, tag=0, *, stream=None):
        """Persistent Rsend; returns a Prequest. Source : MPI 4.1, section 3.9"""
        return self.send(Prequest, buf, dest, tag, PLAIN, stream)

    cdef Request send(self, type kind, object buf, object dest, object tag, int flags, object stream):
        cdef Request request = self.request(kind, SEND, stream)
        if buf is not None or not self.is_nobody(dest):
            span_of(buf, &request.send, "buf", False, 1)
        self.post_send(request, dest, tag, "tag", flags)
        self.aim_messages(request, False)
        return request

    cdef Request buffered(self, type kind, object buf, object dest, object tag, object stream):
        cdef Request request = self.request(kind, SEND, stream)
        cdef Deliver task
        if buf is not None or not self.is_nobody(dest):
            span_of(buf, &request.send, "buf", False, 1)
        self.post_send(request, dest, tag, "tag", PLAIN)
        self.aim_messages(request, False)
        if request.work.nmessages > 0 and not request.crosses:
            task = Deliver.__new__(Deliver)
            task.letter, task.executor, task.membership = request.letters[0], self.executor, self.membership
            request.work.nmessages = 0
            request.add(task)
        return request

    def Recv(self, buf, source=None, tag=None, status=None, *, stream=None):
        """Receive a message.

        buf     : buffer or spec, at least as long as the message
        source  : rank, MPI.PROC_NULL, or MPI.ANY_SOURCE (the default)
        tag     : 0..2^31-1, or MPI.ANY_TAG (the default)
        status  : MPI.Status to fill, or None
        stream  : None; for device buffers
        Blocks  : until the message is there
        Raises  : ValueError if the message is longer than buf (it stays for the next receive); else as Send
        Source  : MPI 4.1, section 3.2.4
        """
        self.finish(self.recv(Request, buf, source, tag, stream), status)

    def Irecv(self, buf, source=None, tag=None, *, stream=None):
        """Nonblocking Recv; returns a Request. Source : MPI 4.1, section 3.7.2"""
        return self.recv(Request, buf, source, tag, stream).go()

    def Recv_init(self, buf, source=None, tag=None, *, stream=None):
        """Persistent Recv; returns a Prequest. Source : MPI 4.1, section 3.9"""
        return self.recv(Prequest, buf, source, tag, stream)

    cdef Request recv(self, type kind, object buf, object source, object tag, object stream):
        cdef Request request = self.request(kind, RECV, stream)
        if buf is not None or not self.is_nobody(source):
            span_of(buf, &request.recv, "buf", True, 1)
        self.post_recv(request, source, tag, "tag")
        self.aim_messages(request, False)
        return request

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=None, recvtag=None, status=None, *, stream=None):
        """Send one message and receive another at the same time; neither waits for the other.

        sendbuf, dest, sendtag           : as Send
        recvbuf, source, recvtag, status : as Recv
        stream, Blocks, Raises : as Send and Recv; ValueError if the buffers overlap
        Source  : MPI 4.1, section 3.10
        """
        self.finish(self.sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, stream), status)

    def Isendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=None, recvtag=None, *, stream=None):
        """Nonblocking Sendrecv; returns a Request. Source : MPI 4.1, section 3.10"""
        return self.sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, stream).go()

    cdef Request sendrecv(self, object sendbuf, object dest, object sendtag, object recvbuf, object source,
                          object recvtag, object stream):
        cdef Request request = self.request(Request, SENDRECV, stream)
        if sendbuf is not None or not self.is_nobody(dest):
            span_of(sendbuf, &request.send, "sendbuf", False, 1)
        if recvbuf is not None or not self.is_nobody(source):
            span_of(recvbuf, &request.recv, "recvbuf", True, 1)
        span_check_overlap(&request.send, &request.recv, "sendbuf", "recvbuf")
        self.post_send(request, dest, sendtag, "sendtag", PLAIN)
        self.post_recv(request, source, recvtag, "recvtag")
        self.aim_messages(request, False)
        return request

    def Sendrecv_replace(self, buf, dest, sendtag=0, source=None, recvtag=None, status=None, *, stream=None):
        """Send what is in buf, and receive another message into it.

        buf           : buffer or spec, writable
        dest, sendtag : as Send
        source, recvtag, status : as Recv
        stream, Blocks, Raises  : as Sendrecv
        Source        : MPI 4.1, section 3.10
        """
        self.finish(self.replace(buf, dest, sendtag, source, recvtag, stream), status)

    def Isendrecv_replace(self, buf, dest, sendtag=0, source=None, recvtag=None, *, stream=None):
        """Nonblocking Sendrecv_replace; returns a Request. Source : MPI 4.1, section 3.10"""
        return self.replace(buf, dest, sendtag, source, recvtag, stream).go()

    cdef Request replace(self, object buf, object dest, object sendtag, object source, object recvtag, object stream):
        cdef Request request = self.request(Request, SENDRECV, stream)
        cdef Letter* letter = &request.letters[0]
        cdef Move task
        if buf is not None or not (self.is_nobody(dest) and self.is_nobody(source)):
            span_of(buf, &request.recv, "buf", True, 1)
        if not self.is_nobody(dest):
            request.post(True, self.rank_of(dest, "dest"), tag_of(sendtag, "sendtag"), &request.recv, PLAIN)
        if not self.is_nobody(dest) and not self.place(request) and not request.crosses:
            task = Move.__new__(Move)
            task.first, task.source, task.layout, task.nbytes = True, letter.ptr, letter.layout, letter.nbytes
            task.target = letter.ptr = temporary(request, letter.nbytes)
            letter.layout = NULL
            request.add(task)
        self.post_recv(request, source, recvtag, "recvtag")
        self.aim_messages(request, request.work.nmessages == 2)
        return request

    def Probe(self, source=None, tag=None, status=None):
        """Wait for a message, and say what it is; it stays for a receive.

        source, tag, status : as Recv; status tells source, tag and length
        Returns : True
        Blocks  : until there is one
        Raises  : ValueError (source, tag), HetcclError subclasses
        Source  : MPI 4.1, section 3.8.1
        """
        cdef Probed probed
        self.look(source, tag, &probed, NULL, True)
        self.tell_probed(status, True, &probed)
        return True

    def Iprobe(self, source=None, tag=None, status=None):
        """Whether there is a message.

        source, tag, status, Raises : as Probe
        Source  : MPI 4.1, section 3.8.1
        """
        cdef Probed probed
        cdef bint found = self.look(source, tag, &probed, NULL, False)
        self.tell_probed(status, found, &probed)
        return found

    def Mprobe(self, source=None, tag=None, status=None):
        """Wait for a message, and take it: no other receive can get it.

        source, tag, status : as Probe
        Returns : Message
        Blocks, Raises : as Probe
        Source  : MPI 4.1, section 3.8.2
        """
        cdef Message message = Message.__new__(Message)
        self.look(source, tag, &message.probed, &message.bound, True)
        self.tell_probed(status, True, &message.probed)
        return self.taken(message)

    def Improbe(self, source=None, tag=None, status=None):
        """Take a message if there is one.

        source, tag, status : as Probe
        Returns : Message, or None
        Raises  : as Probe
        Source  : MPI 4.1, section 3.8.2
        """
        cdef Message message = Message.__new__(Message)
        cdef bint found = self.look(source, tag, &message.probed, &message.bound, False)
        self.tell_probed(status, found, &message.probed)
        return self.taken(message) if found else None

    cdef Message taken(self, Message message):
        message.endpoint = self
        message.from_nobody = message.probed.source == <int>self.membership.proc_null
        return message

    cdef int post_send(self, Request request, object dest, object tag, str tag_name, int flags) except -1:
        cdef int64_t number = tag_of(tag, tag_name)
        if not self.is_nobody(dest):
            request.post(True, self.rank_of(dest, "dest"), number, &request.send, flags)
        return 0

    cdef int post_recv(self, Request request, object source, object tag, str tag_name) except -1:
        cdef int64_t number = self.tag_or_any(tag, tag_name)
        if self.is_nobody(source):
            request.from_nobody = True
        else:
            request.post(False, self.source_of(source), number, &request.recv, PLAIN)
        return 0

    cdef bint is_nobody(self, object peer) except -1:
        return PyIndex_Check(peer) and peer == self.membership.proc_null

    cdef int source_of(self, object source) except -100:
        if source is None or source == self.membership.any_source:
            return ANY
        return self.rank_of(source, "source")

    cdef int64_t tag_or_any(self, object tag, str tag_name) except -2:
        return ANY if tag is None or tag == self.membership.any_tag else tag_of(tag, tag_name)

    cdef bint look(self, object source, object tag, Probed* probed, Bound* bound, bint wait) except -1:
        """Look for a message; bound: what takes it, or NULL."""
        cdef int64_t number = self.tag_or_any(tag, "tag")
        self.usable(PROBE)
        if self.crosses and self.deferred.requests:
            self.deferred.flush(None)
        if self.is_nobody(source):
            probed.source, probed.tag, probed.nbytes = self.membership.proc_null, self.membership.any_tag, 0
            return True
        if wait:
            self.executor.await_message(self.source_of(source), number, probed, bound)
            return True
        return self.executor.probe(self.source_of(source), number, probed, bound)

    cdef int tell_probed(self, object status, bint found, Probed* probed) except -1:
        if status is None:
            return 0
        if found:
            self.membership.fill_status(status, probed.source, probed.tag, probed.nbytes)
        else:
            self.membership.fill_status(status, self.membership.any_source, self.membership.any_tag, 0)
        return 0


cdef class Message:
    """A message that Mprobe or Improbe took. `Message()` is the null message, as a received one is."""

    def Recv(self, buf, status=None):
        """Receive the message.

        buf     : buffer or spec, at least as long
        status  : MPI.Status to fill, or None
        Blocks  : until the message is there
        Raises  : ValueError (the message is longer, and stays; or is received already), BufferError, TypeError,
                  HetcclError subclasses
        Source  : MPI 4.1, section 3.8.3
        """
        self.receive(buf).run(status)

    def Irecv(self, buf):
        """Nonblocking Recv; returns a Request. Source : MPI 4.1, section 3.8.3"""
        return self.receive(buf).go()

    cdef Request receive(self, object buf):
        cdef Request request
        cdef Messages endpoint = self.endpoint
        if endpoint is None:
            raise ValueError("Recv: the message has been received already, or is the null message")
        request = endpoint.request(Request, RECV, None)
        if buf is not None or not self.from_nobody:
            span_of(buf, &request.recv, "buf", True, 1)
            if request.recv.kind != HETCCL_MEM_HOST:
                raise ValueError("buf: is GPU memory; a message that Mprobe took goes into host memory")
        # Reading the buffer may have let another thread in.
        if self.endpoint is None:
            raise ValueError("Recv: the message has been received already")
        if self.from_nobody:
            request.from_nobody = True
        elif span_bytes(&request.recv) < <int64_t>self.probed.nbytes:
            raise ValueError(f"Recv: buf: the message from rank {self.probed.source} has {self.probed.nbytes} bytes, "
                             f"the buffer {span_bytes(&request.recv)}")
        else:
            request.post(False, self.probed.source, self.probed.tag, &request.recv, PLAIN)
            request.messages[0] = self.bound
            request.bound = True
        self.endpoint = None
        return request

    @classmethod
    def Probe(cls, comm, source=None, tag=None, status=None):
        """As Comm.Mprobe."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(cls, comm, source=None, tag=None, status=None):
        """As Comm.Improbe."""
        return comm.Improbe(source, tag, status)

    def __bool__(self):
        return self.endpoint is not None

    def __reduce__(self):
        raise ValueError("a Message cannot be pickled")

    def __repr__(self):
        what = f"{self.probed.nbytes} bytes from rank {self.probed.source}" if self else "null"
        return f"<hetccl.Message {what}>"
