"""Which stream a call's device work is queued on, and what that stream must wait for.

Layer L2, called with the GIL held; no other lock. How the arrays of a type tell their stream is found out once per type
(Producer) and kept. Libraries are looked up among the modules that the program has imported, never imported. The legacy
default stream is NULL here, whatever number it came with.
"""

import sys

cimport cython
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport intptr_t, uintptr_t

from hetccl._abi cimport HETCCL_MEM_CUDA, HETCCL_MEM_HIP, HETCCL_MEM_HOST
from hetccl._array cimport dlpack_await, exchange_of, hetccl_dlexchange_t, is_of
from hetccl._dtype cimport type_name
from hetccl._runtime cimport Runtime

cdef extern from "hetccl/arrays.h" nogil:
    enum:
        HETCCL_DL_CUDA
        HETCCL_DL_ROCM

cdef enum:
    TYPES_MAX = 1024      # classes made at run time must not pile up
    LEGACY = 1            # CU_STREAM_LEGACY, and hipStreamLegacy
    PER_THREAD = 2        # CU_STREAM_PER_THREAD, and hipStreamPerThread
    DEVICE_ANY = -1       # what CuPy says of its default and external streams
    PROTOCOL_VERSION = 0  # of __cuda_stream__
    HANDLE_BITS = 64

# Raises by an exception alone: cupy_backends declares it now with an error value, now without.
ctypedef intptr_t (*cupy_stream_t)(int device) except *
ctypedef void* (*current_t)(Producer producer, Runtime runtime, int device) except? NULL

cdef dict producers = {}  # type of an array -> Producer
cdef object last_type = None           # of the array that was asked last, with its producer
cdef Producer last_producer = None
cdef dict events = {}     # (runtime's kind, device) -> address of the event that orders two streams


@cython.final
cdef class Producer:
    """How the arrays of one type tell which stream their contents are made on."""

    cdef current_t current              # NULL: the library has no current stream
    cdef cupy_stream_t cupy_stream      # of current_cupy_fast
    cdef hetccl_dlexchange_t* exchange  # of current_exchange
    cdef object ask                     # the library's Python function, of current_cupy and current_torch
    cdef bint dlpack                    # the exporter itself orders a consumer's stream


cdef void* stream_for(
    object stream, object obj, object other, Runtime runtime, int device, bint* library_holds,
) except? NULL:
    cdef Producer producer = producer_of(type(obj)), second = producer
    cdef bint asked = stream is None and producer.current != NULL
    cdef void* handle = stream_of(stream, producer, runtime, device)
    library_holds[0] = order(producer, obj, handle, asked, runtime, device)
    if other is not None and other is not obj:
        if type(other) is not type(obj):
            second = producer_of(type(other))
        if not order(second, other, handle, asked and second is producer, runtime, device):
            library_holds[0] = False
    return handle


cdef inline void* stream_of(object stream, Producer producer, Runtime runtime, int device) except? NULL:
    """The stream that the call's argument stands for, with an array of this producer's."""
    if stream is not None:
        return stream_given(stream, device)
    return NULL if producer.current == NULL else producer.current(producer, runtime, device)


cdef bint order(Producer producer, object obj, void* stream, bint current, Runtime runtime, int device) except -1:
    """Let stream wait for what produces obj; True if obj's library orders what is done with its memory behind stream.

    current: stream is known to be the current one of obj's library, if it has any.
    """
    if producer.current != NULL:
        return current or producer.current(producer, runtime, device) == stream
    if runtime.kind == HETCCL_MEM_HOST:
        return False
    if producer.dlpack:
        await_dlpack(stream, obj, runtime, device)
    elif hasattr(obj, "__cuda_array_interface__"):
        await_cai(stream, obj, runtime, device)
    return False


cdef Producer producer_of(object cls):
    global last_type, last_producer
    cdef object found
    if cls is last_type:
        return last_producer
    found = producers.get(cls)
    if found is None:
        found = producer_new(cls)
        if len(producers) >= TYPES_MAX:
            producers.clear()
        producers[cls] = found
    last_type, last_producer = cls, <Producer> found
    return last_producer


cdef Producer producer_new(object cls):
    cdef Producer producer = Producer.__new__(Producer)
    producer.current = NULL
    producer.exchange = exchange_of(cls)
    producer.dlpack = hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__")
    if is_of(cls, "cupy", "ndarray"):
        producer.cupy_stream = cupy_function()
        producer.current = current_cupy if producer.cupy_stream == NULL else current_cupy_fast
        producer.ask = sys.modules["cupy"].cuda.get_current_stream
    elif producer.exchange != NULL and producer.exchange.current_stream != NULL:
        producer.current = current_exchange
    elif is_of(cls, "torch", "Tensor"):
        producer.current = current_torch
        producer.ask = sys.modules["torch"].cuda.current_stream
    return producer


cdef cupy_stream_t cupy_function() except? NULL:
    """CuPy's own C function, since 14; NULL for a version that lacks it, which is asked by its Python function."""
    functions = getattr(sys.modules.get("cupy_backends.cuda.stream"), "__pyx_capi__", {})
    capsule = functions.get("get_stream_ptr")
    if capsule is None or not PyCapsule_IsValid(capsule, "intptr_t (int)"):
        return NULL
    return <cupy_stream_t> PyCapsule_GetPointer(capsule, "intptr_t (int)")


cdef void* current_cupy_fast(Producer producer, Runtime runtime, int device) except? NULL:
    return canonical(producer.cupy_stream(device))


cdef void* current_cupy(Producer producer, Runtime runtime, int device) except? NULL:
    return canonical(producer.ask(device).ptr)


cdef void* current_exchange(Producer producer, Runtime runtime, int device) except? NULL:
    cdef void* stream = NULL
    cdef int kind = HETCCL_DL_ROCM if runtime.kind == HETCCL_MEM_HIP else HETCCL_DL_CUDA
    producer.exchange.current_stream(kind, device, &stream)
    return canonical(<intptr_t> stream)


cdef void* current_torch(Producer producer, Runtime runtime, int device) except? NULL:
    return canonical(producer.ask(device).cuda_stream)


cdef void* canonical(intptr_t handle) noexcept nogil:
    return NULL if handle == LEGACY else <void*> handle


cdef void* stream_given(object stream, int device) except? NULL:
    cdef object number = stream
    if not PyLong_CheckExact(stream):
        number = handle_of(stream)
        check_device(stream, device)
    if not PyIndex_Check(number) or isinstance(number, bool):
        raise TypeError(f"stream: {type_name(stream)} has the handle {number!r}, which is no integer")
    if number < 0 or number >> HANDLE_BITS:
        raise ValueError(f"stream: {number} is no handle; 0 is the default stream, 2 the per-thread one")
    return canonical(<intptr_t> <uintptr_t> number)


cdef object handle_of(object stream):
    answer = getattr(stream, "__cuda_stream__", None)
    if answer is not None:
        if callable(answer):  # as the protocol has it; some have it as a property
            answer = answer()
        if not isinstance(answer, tuple) or len(answer) != 2 or answer[0] != PROTOCOL_VERSION:
            raise TypeError(f"stream: __cuda_stream__ of {type_name(stream)} gives {answer!r}, not (0, handle)")
        return answer[1]
    if hasattr(stream, "cuda_stream"):
        return stream.cuda_stream
    if hasattr(stream, "ptr"):
        return stream.ptr
    if PyIndex_Check(stream) and not isinstance(stream, bool):
        return int(stream)
    raise TypeError(
        f"stream: {type_name(stream)} is no stream; accepted are None (the array library's current stream), an int "
        "(the handle), CuPy's and torch's streams, and objects with __cuda_stream__, .ptr or .cuda_stream"
    )


cdef int check_device(object stream, int device) except -1:
    where = getattr(stream, "device_id", None)
    if where is None:
        where = getattr(stream, "device_index", None)
    if where is not None and where != DEVICE_ANY and where != device:
        raise ValueError(f"stream: it is of device {where}, the buffers are on device {device}")
    return 0


cdef int await_dlpack(void* stream, object obj, Runtime runtime, int device) except -1:
    dlpack_await(obj, dlpack_number(stream, runtime.kind))
    if runtime.kind == HETCCL_MEM_HIP and <intptr_t> stream == PER_THREAD:
        stream_follow(stream, NULL, runtime, device)
    return 0


cdef object dlpack_number(void* stream, int kind):
    """The Array API standard's number of a consumer's stream.

    CUDA: 1 is the default stream, 2 the per-thread one, 0 is illegal. ROCm: 0 is the default stream, 1 and 2 are
    illegal, so that the per-thread one has no number: the exporter is given the default stream instead.
    """
    cdef uintptr_t number = <uintptr_t> stream
    if kind == HETCCL_MEM_CUDA and number == 0:
        return LEGACY
    if kind == HETCCL_MEM_HIP and number == PER_THREAD:
        return 0
    return number


cdef int await_cai(void* stream, object obj, Runtime runtime, int device) except -1:
    theirs = obj.__cuda_array_interface__.get("stream")
    if theirs is None:
        return 0
    if not PyIndex_Check(theirs) or theirs <= 0 or theirs >> HANDLE_BITS:
        raise ValueError(
            f"{type_name(obj)}: the stream of its __cuda_array_interface__ is {theirs!r}; None, 1 (the default "
            "stream), 2 (the per-thread one) and handles are allowed"
        )
    cdef void* other = canonical(<intptr_t> <uintptr_t> theirs)
    return 0 if other == stream else stream_follow(stream, other, runtime, device)


cdef int stream_follow(void* stream, void* other, Runtime runtime, int device) except -1:
    """Let what is queued on stream from now on wait for what is on `other` by now."""
    cdef void* before = NULL
    runtime.check(runtime.table.enter(device, &before), "enter")
    try:
        follow_by_event(stream, other, runtime, device)
    finally:
        runtime.table.leave(before)
    return 0


cdef int follow_by_event(void* stream, void* other, Runtime runtime, int device) except -1:
    """A wait refers to the event as it is when the wait is queued, so one event per device serves all calls.

    The GIL keeps recording and waiting together.
    """
    cdef void* event = NULL
    found = events.get((runtime.kind, device))
    if found is None:
        runtime.check(runtime.table.event_create(&event), "event_create")
        events[(runtime.kind, device)] = <uintptr_t> event
    else:
        event = <void*> <uintptr_t> found
    runtime.check(runtime.table.event_record(event, other), "event_record")
    runtime.check(runtime.table.stream_wait_event(stream, event), "stream_wait_event")
    return 0


def describe(stream, obj, Runtime runtime not None, int device):
    """What a call on obj would be queued on: {"handle": int, 0 is the legacy default stream; "current": bool}."""
    cdef Producer producer = producer_of(type(obj))
    cdef void* handle = stream_of(stream, producer, runtime, device)
    current = producer.current != NULL and order(producer, obj, handle, False, runtime, device)
    return {"handle": <uintptr_t> handle, "current": current}


def follow(stream, obj, Runtime runtime not None, int device, other=None):
    """Let the stream that a call on obj and other is queued on wait for what produces them.

    {"handle": int; "holds": bool, whether their libraries order what is done with their memory behind that stream}
    """
    cdef bint holds = False
    cdef void* handle = stream_for(stream, obj, other, runtime, device, &holds)
    return {"handle": <uintptr_t> handle, "holds": holds}


def dlpack_argument(uintptr_t handle, int kind):
    """What __dlpack__ is given for a stream; kind: HETCCL_MEM_CUDA (1) or HETCCL_MEM_HIP (2)."""
    return dlpack_number(<void*> handle, kind)
