"""Which stream a call's device work is queued on, and what that stream must wait for; layer L2."""


cdef void* stream_of(object stream, object obj, Runtime runtime, int device) except? NULL:
    return NULL


cdef bint stream_is_current(void* stream, object obj, Runtime runtime, int device) except -1:
    return True


cdef int stream_await(void* stream, object obj, Runtime runtime) except -1:
    return 0
