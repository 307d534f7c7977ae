"""Layer L3: calls on device memory that must be queued together.

On a stream each message would wait for its peer's before the next one begins, so that two ranks which both send first
would wait for ever. As one group of the vendor's library they do not; nor do they between islands, where their copies
are queued in turns (_crossing_messages). The GIL is held.
"""

import time

from libc.stdlib cimport calloc, free

from hetccl._calls cimport NCOLLECTIVES
from hetccl._crossing_messages cimport Haul, MessageCrossing
from hetccl._launch cimport launch_group_begin, launch_group_finish, launch_groups, launch_in_group, launch_run
from hetccl._mailbox cimport MESSAGE_TOO_LONG, Message
from hetccl._passage cimport HETCCL_RING_PIECES, Transit, transit_place
from hetccl._request cimport Letter
from hetccl._shm cimport HETCCL_MSG_SYNC
from hetccl._vendor cimport VendorComm

from hetccl._calls import CALLS
from hetccl.errors import CommTimeout

# Between two looks at whether another thread has queued a message.
QUEUEING_S = 1e-4


cdef class Burst(Deferred):
    """Messages in device memory that have been started and wait to be queued."""

    def __cinit__(self):
        self.requests = []

    cdef int post(self, Lists request) except -1:
        if (<Request>request).crosses:
            post_across(<Request>request, 1 + len(self.requests), False)
        return 0

    cdef int run(self, Lists last, bint heeded) except -1:
        cdef Request request = <Request>last
        if not request.crosses:
            return self.flush(last)
        post_across(request, 1 + len(self.requests), heeded)
        if heeded and request.receives >= 0:
            self.flush(None)
            request.work.matched_only = True
            try:
                request.executor.wait(&request.work)
            finally:
                request.work.matched_only = False
        self.flush(last)
        if request.receives < 0 and request.work.awaited != NULL:
            request.executor.wait(&request.work)
        return 0

    cdef bint queue(self, Lists request, bint waits) except -1:
        cdef Request message = <Request>request
        self.flush(None)
        if message.pending and is_patient(message):
            if waits:
                message.executor.wait(&message.work)
            elif not message.executor.poll_once(&message.work):
                return False
            if any(other is request for other in self.requests):
                self.flush(request)
        cdef str name = CALLS[message.work.call]
        cdef double until = time.monotonic() + message.vendor.timeout_s
        while message.pending:
            message.vendor.lock(name)
            message.vendor.unlock()
            time.sleep(QUEUEING_S)
            if time.monotonic() > until:
                raise CommTimeout(f"{name}: another thread, or what a signal handler interrupted, has been queueing "
                                  f"the message for {message.vendor.timeout_s:g} s (HETCCL_TIMEOUT)", call=name)
        return True

    cdef int flush_with(self, list last) except -1:
        cdef list started = self.requests, requests = []
        cdef Request request
        cdef set chosen = {id(request) for request in last}
        self.requests = []
        for request in started:
            if is_patient(request) and id(request) not in chosen:
                self.requests.append(request)
            else:
                requests.append(request)
                chosen.discard(id(request))
        requests += [request for request in last if id(request) in chosen]
        if not requests:
            return 0
        try:
            if (<Request>requests[0]).crosses:
                queue_across(requests)
            else:
                queue_together(requests)
        except BaseException as error:
            for request in requests:
                request.failure = error
            raise
        finally:
            for request in requests:
                request.pending = False
        return 0


cdef bint is_patient(Request request) noexcept:
    """Whether a message can stay unqueued until it is waited for. On a stream it would wait for its peer, and with it
    what the program calls next. A receive between islands whose ring holds all of it ends in the engine without."""
    cdef int i = request.receives
    if not request.crosses or request.blocking or i < 0 or request.work.nmessages != 1:
        return False
    return request.transits[i].nportions <= HETCCL_RING_PIECES


cdef int post_across(Request request, int nsharing, bint heeded) except -1:
    """Give a request's messages to the engine, with pinned memory. heeded: what is received may be shorter"""
    cdef MessageCrossing crossing = <MessageCrossing>request.vendor
    cdef Transit* transit
    cdef int i
    # A persistent send may still be on its way from its last start.
    if request.work.awaited == NULL and request.messages[0].state != 0 and \
            not request.executor.has_let_go(&request.work):
        request.executor.wait(&request.work)
    request.build_messages()
    request.work.awaited = NULL
    try:
        for i in range(request.work.nmessages):
            transit = &request.transits[i]
            transit.ring, transit.sending = NULL, request.letters[i].sending
            crossing.berth(transit, request.letters[i].nbytes, request.launch.stream, nsharing, request.blocking,
                           CALLS[request.work.call])
            address(request, i, heeded)
        request.executor.start(&request.work, True)
        request.executor.detach()
    except BaseException:
        for i in range(request.work.nmessages):
            crossing.let_go(&request.transits[i])
        raise
    return 0


cdef int address(Request request, int i, bint heeded) except -1:
    """Tell the engine where a message's bytes pass."""
    cdef Message* message = &request.messages[i]
    cdef Letter* letter = &request.letters[i]
    cdef Transit* transit = &request.transits[i]
    message.transit = transit
    message.cut = letter.sending and letter.nbytes > 0
    message.msg.ptr = NULL if letter.nbytes == 0 else transit_place(transit, 0)
    transit.open_length = not letter.sending and (heeded or is_patient(request))
    if not letter.sending or letter.flags & HETCCL_MSG_SYNC:
        request.work.awaited = message
    return 0


cdef int queue_across(list requests) except -1:
    """Queue the copies of messages between islands."""
    cdef Request request
    cdef MessageCrossing crossing = <MessageCrossing>(<Request>requests[0]).vendor
    cdef Haul* hauls = <Haul*>calloc(2 * len(requests), sizeof(Haul))
    cdef int nhauls = 0
    try:
        if hauls == NULL:
            raise MemoryError("messages to be queued")
        for request in requests:
            nhauls += list_hauls(request, crossing, hauls + nhauls)
        crossing.queue_hauls(hauls, nhauls, CALLS[(<Request>requests[0]).work.call])
        for request in requests:
            request.note_queued(request.blocking)
    finally:
        free(hauls)
    return 0


cdef int list_hauls(Request request, MessageCrossing crossing, Haul* hauls) except -1:
    cdef Transit* transit
    cdef Message* message
    cdef int i, n = 0
    for i in range(request.work.nmessages):
        transit, message = &request.transits[i], &request.messages[i]
        if transit.open_length and message.state == MESSAGE_TOO_LONG:
            crossing.let_go(transit)
            continue
        if transit.open_length:
            transit.nbytes, transit.open_length = message.msg.nbytes, False
            transit.nportions = (transit.nbytes + transit.portion - 1) // transit.portion
        if transit.nportions == 0:
            crossing.let_go(transit)
            continue
        hauls[n].transit, hauls[n].ptr, hauls[n].user = transit, request.letters[i].ptr, request.launch.stream
        hauls[n].follows = n == 1 and request.launch.in_place
        n += 1
    return n


cdef int queue_together(list requests) except -1:
    cdef Request request
    cdef VendorComm vendor
    cdef bint messages
    check_own_messages(requests)
    for request in requests:
        request.compare()
    vendor = <VendorComm>(<Request>requests[0]).vendor
    launch_group_begin(vendor)
    try:
        # Collectives first, whose order is the same on all ranks; messages are exchanged together.
        for messages in (False, True):
            for request in requests:
                if launch_groups(&request.launch) and messages == (request.work.call >= NCOLLECTIVES):
                    launch_in_group(vendor, &request.launch)
    finally:
        launch_group_finish(vendor, (<Request>requests[0]).work.call)
    for request in requests:
        if not launch_groups(&request.launch):
            launch_run(vendor, &request.launch)
        request.note_queued(request.blocking)
    return 0


cdef int check_own_messages(list requests) except -1:
    """A rank's messages to itself need both sides in the group; the library would wait for ever."""
    cdef Request request
    cdef int rank = (<Request>requests[0]).executor.rank, balance = 0
    for request in requests:
        if request.work.call >= NCOLLECTIVES:
            balance += (request.launch.dest == rank) - (request.launch.source_rank == rank)
    if balance:
        call = CALLS[(<Request>requests[0]).work.call]
        raise ValueError(f"{call}: a message in GPU memory from rank {rank} to itself needs its other side in the same "
                         "burst or group: Isend and Irecv, or Sendrecv")
    return 0
