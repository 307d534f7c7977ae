"""Which stream a call's device work is queued on, and what that stream must wait for.

obj is the array itself, never a spec; device its index. The legacy default stream is NULL.
"""

from hetccl._runtime cimport Runtime

# The stream that `stream`, the call's argument, stands for: an int, CuPy's, torch's, anything with __cuda_stream__. For
# None: the current stream, on this device, of the library that made obj. TypeError, ValueError.
cdef void* stream_of(object stream, object obj, Runtime runtime, int device) except? NULL

# Whether `stream` is the current one of obj's library: then the library itself orders the reuse of obj's memory behind
# the call's work, and nobody needs to hold obj. False for a library that has no current stream.
cdef bint stream_is_current(void* stream, object obj, Runtime runtime, int device) except -1

# Let stream wait for what produces obj, where its protocol says so (the DLPack stream argument, the `stream` key of
# __cuda_array_interface__). Nothing for arrays whose library has a current stream. The device must be entered.
# BufferError (the exporter refuses), ValueError (a stream key of 0), GpuError.
cdef int stream_await(void* stream, object obj, Runtime runtime) except -1

# All of that for the buffers of one call, at the least cost: the stream, after it was made to wait for what produces
# both. obj: what receives, or the one buffer there is, whose library's current stream is taken; other: the other one,
# or None. library_holds: stream_is_current of both. No device need be entered.
cdef void* stream_for(
    object stream, object obj, object other, Runtime runtime, int device, bint* library_holds,
) except? NULL
