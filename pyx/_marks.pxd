"""How far a stream is."""

from hetccl._runtime cimport hetccl_runtime_t
from hetccl._watched cimport WatchedComm

# Mark the stream's end, so far; event: an event to use again, or NULL. Returns the event.
cdef void* mark_end(WatchedComm vendor, void* event, void* stream) except NULL
cdef void mark_free(const hetccl_runtime_t* gpu, int device, void* event) noexcept nogil
cdef bint mark_is_reached(WatchedComm vendor, void* event, int call) except -1
# Wait for a mark, with the time-out. The GIL is released meanwhile.
cdef int mark_await(WatchedComm vendor, void* event, int call) except -1
