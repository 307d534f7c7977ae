"""Who runs a call: the engine, or the library of the ranks' vendor."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._crossing_messages cimport MessageCrossing
from hetccl._endpoint cimport Endpoint
from hetccl._launch cimport Launch
from hetccl._mr_cache cimport hetccl_mr_range_t
from hetccl._op cimport Op, OpChoice
from hetccl._request cimport Request
from hetccl._vendor cimport VendorComm
from hetccl._watched cimport WatchedComm


cdef class Placement(Endpoint):
    cdef VendorComm vendor               # runs calls on device buffers; None until the first, and between islands
    cdef MessageCrossing crossing             # has the engine run them, between islands; None until the first
    cdef WatchedComm gpu                 # whichever of the two there is
    cdef set registrations               # Registration; those that may be in use
    cdef VendorComm host_vendor          # runs some calls on host buffers (HETCCL_HOST_CCL), or None
    cdef int64_t note_bytes              # host buffers from here on may be registered with RDMA devices; 0: none may

    # Whether the call's buffers are device memory; if so, the request gets vendor and stream. Refuses mixtures.
    cdef bint place(self, Request request) except -1
    cdef int place_on_device(self, Request request, int kind) except -1
    cdef bint queue_quickly(self, int call, object sendbuf, object recvbuf, object op, object stream) except -1
    cdef bint prepare_quickly(self, int call, Span* send, Span* recv, object op, Launch* launch) except -1
    cdef int note_buffers(self, Request request) except -1
    cdef int check_device(self, Span* span, str argument) except -1
    # Tell the library which reduction it is; TypeError if it has none for the buffers' dtype.
    cdef int reduce_on_device(self, Request request, Op op, OpChoice* choice, Span* given) except -1
    # Let the library for host buffers run it, if there is one that can. Whatever is decided is so on all ranks.
    cdef int offer_reduction(self, Request request, int dtype, const OpChoice* choice) except -1
    cdef int offer_movement(self, Request request) except -1
    cdef int fill_launch(self, Request request, int root, void* source, void* target, int64_t count, size_t itemsize,
                         bint in_place) except -1
    cdef int aim_across(self, Request request, int root, bint in_place) except -1
    cdef int aim_comparison(self, Request request) except -1
    # Let the library run the request's messages if they are device memory, or between islands the engine. in_place:
    # one arrives where one is sent.
    cdef int aim_messages(self, Request request, bint in_place) except -1
    # Meet the other ranks in the vendor's library. A collective.
    cdef int connect(self, int kind, object device, int call) except -1
    # child: the MPI communicator of those that give this color; color, key: as MPI_Comm_split's
    cdef VendorComm split_vendor(self, object child, object color, object key)
    # Wait until streams have done with what they hold.
    cdef int await_queued(self) except -1
    cdef int leave_vendors(self) except -1


cdef class Registration:
    cdef VendorComm vendor               # None: ended, or host memory
    cdef hetccl_mr_range_t* range        # NULL: ended, or device memory
    cdef int ndevices
    cdef Span span
    cdef object handle
    cdef set others                      # the communicator's

    cdef int begin_with_vendor(self, Placement comm) except -1
    cdef int begin_with_devices(self, Placement comm) except -1
    cdef void end_with_devices(self) noexcept
