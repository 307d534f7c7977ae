"""Which stream a call's device work is queued on, and what that stream must wait for."""

from hetccl._runtime cimport Runtime

# The stream of one call, after it was made to wait for what produces the buffers, where their protocols say so (the
# DLPack stream argument, the `stream` key of __cuda_array_interface__). The legacy default stream is NULL.
#
# stream: the call's argument, an int, CuPy's, torch's, anything with __cuda_stream__, or None: the current stream, on
# this device, of the library that made obj. obj: the array, never a spec, that receives, or the one buffer there is;
# other: the other one, or None. library_holds: the stream is the current one of both libraries, which then order the
# reuse of the memory behind the call's work themselves, so that nobody needs to hold the arrays. No device need be
# entered. TypeError, ValueError (a stream key of 0), BufferError (the exporter refuses), GpuError.
cdef void* stream_for(
    object stream, object obj, object other, Runtime runtime, int device, bint* library_holds,
) except? NULL
