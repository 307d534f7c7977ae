"""Layer L3: how far a stream is: an event behind a call's work, asked and waited for. Waits release the GIL."""

from libc.stdint cimport int64_t

from hetccl._watched cimport hetccl_now_ns, hetccl_pause, LOOK_NS

from hetccl._calls import CALLS
from hetccl.errors import CommTimeout

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    # A wait asks the runtime without a pause for so long, then with pauses.
    EAGER_NS = 20000
    PAUSE_NS = 20000


cdef void* mark_end(WatchedComm vendor, void* event, void* stream) except NULL:
    cdef void* saved = NULL
    cdef int code = 0
    vendor.runtime.check(vendor.gpu.enter(vendor.device, &saved), "enter")
    if event == NULL:
        code = vendor.gpu.event_create(&event)
    if code == 0:
        code = vendor.gpu.event_record(event, stream)
    vendor.gpu.leave(saved)
    vendor.runtime.check(code, "event_record")
    return event


cdef void mark_free(const hetccl_runtime_t* gpu, int device, void* event) noexcept nogil:
    cdef void* saved = NULL
    if gpu.enter(device, &saved) == 0:
        gpu.event_destroy(event)
        gpu.leave(saved)


cdef int query(WatchedComm vendor, void* event) noexcept nogil:
    """The event's state, from whatever thread."""
    cdef void* saved = NULL
    cdef int code = vendor.gpu.enter(vendor.device, &saved)
    if code == 0:
        code = vendor.gpu.event_query(event)
        vendor.gpu.leave(saved)
    return code


cdef bint mark_is_reached(WatchedComm vendor, void* event, int call) except -1:
    cdef int code
    if vendor.lost:
        vendor.usable(CALLS[call])
    code = query(vendor, event)
    if code == vendor.gpu.not_ready:
        return False
    vendor.runtime.check(code, "event_query")
    return True


cdef int mark_await(WatchedComm vendor, void* event, int call) except -1:
    cdef int64_t began = hetccl_now_ns(), looked, now
    cdef int code
    while True:
        with nogil:
            looked = hetccl_now_ns()
            while True:
                code = query(vendor, event)
                now = hetccl_now_ns()
                if code != vendor.gpu.not_ready or vendor.lost or now - looked > LOOK_NS:
                    break
                if now - began > EAGER_NS:
                    hetccl_pause(PAUSE_NS)
        if code != vendor.gpu.not_ready:
            return vendor.runtime.check(code, "event_query")
        if vendor.lost:
            vendor.usable(CALLS[call])
        PyErr_CheckSignals()
        if now - began > vendor.timeout_ns:
            raise CommTimeout(
                f"{CALLS[call]}: rank {vendor.rank} waited {vendor.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT) for the GPU: "
                "a rank has not called it, or the stream is still busy with earlier work",
                call=CALLS[call], rank=vendor.rank,
            )
