"""Layer L3: calls on device memory that must be queued together.

On a stream each message would wait for its peer's before the next one begins, so that two ranks which both send first
would wait for ever. As one group of the vendor's library they do not. The GIL is held.
"""

from hetccl._calls cimport NCOLLECTIVES
from hetccl._launch cimport launch_group_begin, launch_group_finish, launch_groups, launch_in_group, launch_run
from hetccl._vendor cimport VendorComm

from hetccl._calls import CALLS


cdef class Burst(Deferred):
    """Messages in device memory that have been started and wait to be queued."""

    def __cinit__(self):
        self.requests = []

    cdef int flush_with(self, list last) except -1:
        cdef list requests = self.requests + last
        self.requests = []
        return queue_together(requests) if requests else 0


cdef int queue_together(list requests) except -1:
    cdef Request request
    cdef VendorComm vendor
    cdef bint messages
    try:
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
    except BaseException as error:
        for request in requests:
            request.failure = error
        raise
    finally:
        for request in requests:
            request.pending = False
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
