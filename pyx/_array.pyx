"""An array of any library -> where and how its elements lie.

Layer L2, called by _buffer with the GIL held; no locks. Each type is asked once which protocol it has, and the answer
is kept (Reader): nothing is tried and caught on the way of a call. No stream is waited for: whoever queues device work
orders it.
"""

import sys

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from libc.stdint cimport int64_t, uintptr_t

from hetccl._abi cimport (
    HETCCL_BFLOAT16, HETCCL_COMPLEX64, HETCCL_COMPLEX128, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2, HETCCL_MEM_CUDA,
    HETCCL_MEM_HIP, HETCCL_MEM_HOST, HETCCL_MEM_ONEAPI,
)
from hetccl._dtype cimport (
    BYTEORDER_SWAPPED, CODE_OPAQUE, CODE_SWAPPED, CODE_UNASKED, CODE_UNSUPPORTED, code_of, code_of_format, code_of_name,
    dtype_itemsize, type_name,
)
from hetccl._foreign cimport (
    TENSOR_PLAIN, TENSOR_TRACKED, TENSOR_UNKNOWN, CupyArray, cupy_layout_known, cupy_read, torch_layout_known,
    torch_state,
)

cdef extern from "hetccl/arrays.h" nogil:
    ctypedef struct hetccl_descr_t:
        char byteorder
        int type_num

    ctypedef struct hetccl_ndarray_t:
        char* data
        int ndim
        Py_ssize_t* shape
        Py_ssize_t* strides
        hetccl_descr_t* descr
        int flags

    enum:
        HETCCL_NPY_C
        HETCCL_NPY_F
        HETCCL_NPY_WRITEABLE
        HETCCL_DL_CPU
        HETCCL_DL_CUDA
        HETCCL_DL_CUDA_HOST
        HETCCL_DL_ROCM
        HETCCL_DL_ROCM_HOST
        HETCCL_DL_CUDA_MANAGED
        HETCCL_DL_ONEAPI
        HETCCL_DL_BFLOAT
        HETCCL_DL_FLOAT8_E4M3FN
        HETCCL_DL_FLOAT8_E5M2
        HETCCL_DL_READ_ONLY
        HETCCL_DL_IS_COPIED

    int hetccl_layout_order(int ndim, const int64_t* shape, const int64_t* strides, int64_t unit)

cdef enum:
    NUMPY_NUMS = 512     # NumPy's own type numbers are below 24, registered ones (ml_dtypes) count up from 256
    NUMPY_USER_NUM = 256
    READERS_MAX = 1024   # classes made at run time must not pile up
    DLPACK_MAJOR = 1
    # Array API standard, __dlpack__(stream=-1): do not synchronise, for CUDA and ROCm alike (None, 0, 1 and 2 differ).
    # JAX takes any number for a handle, which the driver would then follow; it waits for nothing if told of no stream.
    DLPACK_NO_SYNC = -1

ctypedef int (*reader_t)(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1

cdef tuple DLPACK_VERSION = (DLPACK_MAJOR, 3)  # newest that hetccl/arrays.h describes
cdef tuple REFUSALS = (BufferError, RuntimeError, TypeError, ValueError)  # what exporters raise that will not export

cdef const char* DL_KINDS = "iuf\0\0cb"  # DLPack's int, uint, float, -, -, complex, bool as NumPy's kind letters
cdef int[NUMPY_NUMS] numpy_codes  # NumPy type number -> HETCCL_<dtype> or CODE_*
cdef object numpy_ndarray = None  # numpy.ndarray, once its layout was checked
cdef dict readers = {}            # type -> Reader
cdef object last_type = None      # of the array that was read last, with its reader
cdef Reader last_reader = None


@cython.final
cdef class Reader:
    """How objects of one type are read."""

    cdef reader_t read
    cdef hetccl_dlexchange_t* exchange  # of read_exchange; lives as long as the process
    cdef bint legacy                    # DLPack 0.x: __dlpack__ takes neither max_version nor copy
    cdef object no_sync                 # the stream argument with which __dlpack__ waits for nothing
    cdef bint immutable                 # the library forbids writing, though its protocol cannot say so
    cdef int kind                       # HETCCL_MEM_* of read_cupy
    cdef bint learnt                    # torch_state may be asked
    cdef bint autograd                  # torch: lazy conjugation and gradients are not part of the protocol


cdef int array_read(object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    if type(obj) is numpy_ndarray:
        return read_numpy(None, obj, export, memory, arg, writable)
    cdef Reader reader = last_reader
    if type(obj) is not last_type:
        reader = reader_of(obj, arg)
    reader.read(reader, obj, export, memory, arg, writable)
    memory.readonly |= reader.immutable
    if reader.autograd:
        check_tensor(obj, memory, arg, torch_state(obj) if reader.learnt else TENSOR_UNKNOWN)
    return 0


cdef Reader reader_of(object obj, object arg):
    global last_type, last_reader
    cls = type(obj)
    found = readers.get(cls)
    if found is None:
        found = reader_new(obj, cls, arg)
    last_type, last_reader = cls, found
    return found


cdef Reader reader_new(object obj, object cls, object arg):
    cdef Reader reader = Reader.__new__(Reader)
    numpy = sys.modules.get("numpy")
    reader.exchange = exchange_of(cls)
    if numpy is not None and issubclass(cls, numpy.ndarray) and numpy_layout_holds(numpy):
        if hasattr(cls, "mask"):
            raise TypeError(f"{arg}: {type_name(obj)} has a mask, which no collective honours; pass its .data")
        reader.read = read_numpy
    elif is_of(cls, "cupy", "ndarray") and numpy_layout_holds(numpy):
        # Before its DLPack: that takes a microsecond, and does not know bfloat16.
        reader.read = read_cupy if cupy_holds(obj) else read_cupy_attributes
        reader.kind = HETCCL_MEM_HIP if sys.modules["cupy"].cuda.runtime.is_hip else HETCCL_MEM_CUDA
    elif reader.exchange != NULL:
        reader.read = read_exchange
    elif hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        # Before the buffer protocol and __cuda_array_interface__: only DLPack knows all dtypes and names the device.
        reader.read = read_dlpack
    elif PyObject_CheckBuffer(obj):
        reader.read = read_buffer
    elif hasattr(obj, "__cuda_array_interface__"):
        reader.read = read_cai
    else:
        raise_no_array(obj, arg)
    reader.immutable = cls.__module__.partition(".")[0] in ("jax", "jaxlib")
    reader.no_sync = None if reader.immutable else DLPACK_NO_SYNC
    reader.autograd = hasattr(cls, "requires_grad") and hasattr(cls, "is_neg") and hasattr(cls, "is_conj")
    reader.learnt = is_of(cls, "torch", "Tensor") and torch_layout_known(sys.modules["torch"])
    if len(readers) >= READERS_MAX:
        readers.clear()
    readers[cls] = reader
    return reader


cdef int raise_no_array(object obj, object arg) except -1:
    hint = "; numpy.asarray makes an array of it" if hasattr(obj, "__array__") else ""
    raise TypeError(
        f"{arg}: {type_name(obj)} is no buffer: it is no numpy.ndarray and has no __dlpack__ with __dlpack_device__, "
        f"no buffer protocol and no __cuda_array_interface__{hint}. A spec is [data, count, datatype]"
    )


cdef bint is_of(object cls, str library, str name) except -1:
    base = getattr(sys.modules.get(library), name, None)
    return isinstance(base, type) and issubclass(cls, base)


cdef hetccl_dlexchange_t* exchange_of(object cls) except? NULL:
    """The type's DLPack exchange table of our major version, or NULL."""
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return NULL
    cdef hetccl_dlexchange_t* table = <hetccl_dlexchange_t*> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while table != NULL and table.major != DLPACK_MAJOR:
        table = table.previous
    return table


cdef int check_tensor(object obj, Memory* memory, object arg, int state) except -1:
    if state == TENSOR_PLAIN:
        return 0
    if obj.requires_grad:
        raise BufferError(f"{arg}: the tensor requires grad, and no gradient crosses collectives; pass tensor.detach()")
    if state == TENSOR_TRACKED:
        return 0
    if obj.is_neg() or ((memory.code == HETCCL_COMPLEX64 or memory.code == HETCCL_COMPLEX128) and obj.is_conj()):
        raise BufferError(f"{arg}: the tensor's memory is not yet conjugated; pass tensor.resolve_conj().resolve_neg()")
    return 0


cdef int raise_refused(object obj, object arg, object error) except -1:
    reason = str(error).partition("\n")[0]  # torch appends a C++ backtrace
    raise BufferError(f"{arg}: {type_name(obj)} does not give out its memory: {reason}") from error


cdef bint numpy_layout_holds(object numpy) except -1:
    """Compare hetccl/arrays.h with NumPy's own answers. A NumPy that differs is read by its protocols instead."""
    global numpy_ndarray
    if numpy_ndarray is not None:
        return True
    probe = numpy.arange(30, dtype=numpy.int16).reshape(5, 6)[1::2, ::3]
    cdef hetccl_ndarray_t* array = <hetccl_ndarray_t*> <void*> probe
    if array.ndim != 2 or <uintptr_t> array.data != probe.ctypes.data or array.descr.type_num != probe.dtype.num:
        return False
    if (array.shape[0], array.shape[1]) != probe.shape or (array.strides[0], array.strides[1]) != probe.strides:
        return False
    if array.flags != probe.flags.num or array.descr.byteorder != ord(probe.dtype.byteorder):
        return False
    numpy_ndarray = numpy.ndarray
    return True


cdef int read_numpy(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    cdef hetccl_ndarray_t* array = <hetccl_ndarray_t*> <void*> obj
    dtype_read(<object> <void*> array.descr, memory)
    memory.ptr = array.data
    memory.kind = HETCCL_MEM_HOST
    memory.device = 0
    memory.order = array.flags & (HETCCL_NPY_C | HETCCL_NPY_F)
    memory.readonly = not array.flags & HETCCL_NPY_WRITEABLE
    memory.ndim = array.ndim
    memory.shape = <const int64_t*> array.shape
    memory.strides = <const int64_t*> array.strides
    memory.stride_unit = 1
    return 0


cdef int dtype_read(object dtype, Memory* memory) except -1:
    """Code and itemsize of a NumPy dtype, whose layout must have been checked."""
    cdef hetccl_descr_t* descr = <hetccl_descr_t*> <void*> dtype
    cdef int num = descr.type_num
    cdef int code = numpy_codes[num] if 0 <= num < NUMPY_NUMS else CODE_UNASKED
    if code == CODE_UNASKED:
        code = numpy_code_ask(dtype)
    if code >= 0:
        memory.itemsize = dtype_itemsize(code)
        if descr.byteorder == BYTEORDER_SWAPPED:
            code = CODE_SWAPPED
    else:
        memory.itemsize = dtype.itemsize
        if dtype.hasobject:
            code = CODE_OPAQUE
    memory.code = code
    return 0


cdef bint cupy_holds(object obj) except -1:
    """Whether this array is read from its memory as its attributes describe it."""
    cdef CupyArray array
    if not cupy_layout_known(sys.modules["cupy"]) or not cupy_read(obj, &array):
        return False
    flags = HETCCL_NPY_C * obj.flags.c_contiguous | HETCCL_NPY_F * obj.flags.f_contiguous
    return (<uintptr_t> array.ptr, array.device, array.count, array.order, <uintptr_t> array.dtype) == (
        obj.data.ptr, obj.data.device_id, obj.size, flags, id(obj.dtype)
    )


cdef int read_cupy(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    cdef CupyArray array
    if not cupy_read(obj, &array):
        raise BufferError(f"{arg}: {type_name(obj)} was made without memory")
    dtype_read(<object> array.dtype, memory)
    memory.ptr = array.ptr
    memory.device = array.device
    memory.order = array.order
    memory.readonly = False
    memory.kind = reader.kind
    if array.order == 0:
        return shape_store(memory, obj.shape, obj.strides, arg)
    memory.ndim = 1  # contiguous: its shape is of no further interest
    memory.store[0] = array.count
    memory.shape = &memory.store[0]
    memory.strides = NULL
    memory.stride_unit = 1
    return 0


cdef int read_cupy_attributes(
    Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable,
) except -1:
    data = obj.data
    dtype_read(obj.dtype, memory)
    memory.ptr = <void*> <uintptr_t> data.ptr
    memory.device = data.device_id
    memory.readonly = False
    memory.kind = reader.kind
    return shape_store(memory, obj.shape, obj.strides, arg)


cdef int shape_store(Memory* memory, object shape, object strides, object arg) except -1:
    """Keep a shape and its strides in bytes, None for C order, and tell the order."""
    cdef int i
    memory.ndim = len(shape)
    if memory.ndim > ARRAY_MAX_NDIM:
        raise BufferError(f"{arg}: {memory.ndim} dimensions; at most {ARRAY_MAX_NDIM} are supported")
    for i in range(memory.ndim):
        memory.store[i] = shape[i]
        if strides is not None:
            memory.store[ARRAY_MAX_NDIM + i] = strides[i]
    memory.shape = &memory.store[0]
    memory.strides = NULL if strides is None else &memory.store[ARRAY_MAX_NDIM]
    memory.stride_unit = 1
    memory.order = hetccl_layout_order(memory.ndim, memory.shape, memory.strides, memory.itemsize)
    return 0


cdef int numpy_code_ask(object dtype) except? -1:
    """Code of a NumPy type number not met before. Registered dtypes go by name: their kinds and sizes do not tell."""
    cdef int num = dtype.num, code
    if num < NUMPY_USER_NUM:
        code = code_of(ord(dtype.kind), dtype.itemsize)
    else:
        code = code_of_name(dtype.name)
    if 0 <= num < NUMPY_NUMS:
        numpy_codes[num] = code
    return code


cdef int read_buffer(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    cdef Py_buffer* view = &export.view
    try:
        PyObject_GetBuffer(obj, view, PyBUF_RECORDS_RO)
    except REFUSALS as error:
        raise_refused(obj, arg, error)
    export.held = HELD_VIEW
    memory.itemsize = view.itemsize
    memory.code = code_of_format(view.format, view.itemsize)
    memory.ptr = view.buf
    memory.kind = HETCCL_MEM_HOST
    memory.device = 0
    memory.readonly = view.readonly
    memory.ndim = view.ndim
    memory.shape = <const int64_t*> view.shape
    memory.strides = <const int64_t*> view.strides
    memory.stride_unit = 1
    memory.order = hetccl_layout_order(memory.ndim, memory.shape, memory.strides, memory.itemsize)
    return 0


cdef int read_exchange(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    cdef hetccl_dltensor_t borrowed
    cdef hetccl_dlversioned_t* managed = NULL
    # Only the owning form has flags, and a receiver must know of read-only memory. torch has none.
    cdef bint borrow = reader.exchange.tensor_from_object != NULL and (not writable or reader.autograd)
    try:
        if borrow:
            reader.exchange.tensor_from_object(<void*> obj, &borrowed)
        else:
            reader.exchange.managed_from_object(<void*> obj, &managed)
    except REFUSALS as error:
        raise_refused(obj, arg, error)
    if borrow:
        return layout_of_tensor(&borrowed, memory, arg, False)
    export.managed = managed
    export.held = HELD_DLPACK_1
    return layout_of_versioned(managed, obj, memory, arg, writable)


cdef int read_dlpack(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    try:
        capsule = dlpack_capsule(reader, obj, reader.no_sync)
    except REFUSALS as error:
        raise_refused(obj, arg, error)
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        export.managed = PyCapsule_GetPointer(capsule, "dltensor_versioned")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        export.held = HELD_DLPACK_1
    elif PyCapsule_IsValid(capsule, "dltensor"):
        export.managed = PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        export.held = HELD_DLPACK_0
    else:
        raise TypeError(f"{arg}: __dlpack__ of {type_name(obj)} returned no fresh DLPack capsule but {capsule!r}")
    capsule = None  # now, not on the way out: its destructor must not run while an error is pending
    if export.held == HELD_DLPACK_1:
        return layout_of_versioned(<hetccl_dlversioned_t*> export.managed, obj, memory, arg, writable)
    return layout_of_tensor(&(<hetccl_dlmanaged_t*> export.managed).tensor, memory, arg, False)


cdef object dlpack_capsule(Reader reader, object obj, object stream):
    cdef int device = obj.__dlpack_device__()[0]
    cdef bint host = device in (HETCCL_DL_CPU, HETCCL_DL_CUDA_HOST, HETCCL_DL_ROCM_HOST)  # these take no stream
    if not reader.legacy:
        try:
            if host:
                return obj.__dlpack__(max_version=DLPACK_VERSION, copy=False)
            return obj.__dlpack__(max_version=DLPACK_VERSION, copy=False, stream=stream)
        except TypeError:  # the one way to learn that a 0.x exporter knows neither keyword; remembered below
            pass
    capsule = obj.__dlpack__() if host else obj.__dlpack__(stream=stream)
    reader.legacy = True
    return capsule


cdef int dlpack_await(object obj, object stream) except -1:
    cdef object found = readers.get(type(obj))
    try:
        dlpack_capsule(<Reader> (reader_of(obj, "buffer") if found is None else found), obj, stream)
    except REFUSALS as error:
        raise_refused(obj, "buffer", error)
    return 0


cdef int layout_of_versioned(
    hetccl_dlversioned_t* managed, object obj, Memory* memory, object arg, bint writable,
) except -1:
    if managed.major != DLPACK_MAJOR:
        raise BufferError(f"{arg}: {type_name(obj)} exports DLPack {managed.major}.x, not 0.x or {DLPACK_MAJOR}.x")
    if writable and managed.flags & HETCCL_DL_IS_COPIED:
        raise BufferError(f"{arg}: {type_name(obj)} exports a copy, which cannot receive")
    return layout_of_tensor(&managed.tensor, memory, arg, managed.flags & HETCCL_DL_READ_ONLY)


cdef int layout_of_tensor(const hetccl_dltensor_t* tensor, Memory* memory, object arg, bint readonly) except -1:
    cdef int device = tensor.device.type
    if device in (HETCCL_DL_CPU, HETCCL_DL_CUDA_HOST, HETCCL_DL_ROCM_HOST):
        memory.kind = HETCCL_MEM_HOST
    elif device == HETCCL_DL_CUDA or device == HETCCL_DL_CUDA_MANAGED:
        memory.kind = HETCCL_MEM_CUDA
    elif device == HETCCL_DL_ROCM:
        memory.kind = HETCCL_MEM_HIP
    elif device == HETCCL_DL_ONEAPI:
        memory.kind = HETCCL_MEM_ONEAPI
    else:
        raise BufferError(f"{arg}: DLPack device type {device} is unknown; known are host, CUDA, ROCm, oneAPI")
    memory.device = 0 if memory.kind == HETCCL_MEM_HOST else tensor.device.id
    memory.ptr = <char*> tensor.data + tensor.byte_offset
    memory.code = code_of_tensor(tensor)
    memory.itemsize = (tensor.dtype.bits * tensor.dtype.lanes + 7) // 8
    memory.readonly = readonly
    memory.ndim, memory.shape, memory.strides = tensor.ndim, tensor.shape, tensor.strides
    memory.stride_unit = memory.itemsize
    memory.order = hetccl_layout_order(memory.ndim, memory.shape, memory.strides, 1)
    return 0


cdef int code_of_tensor(const hetccl_dltensor_t* tensor) noexcept nogil:
    cdef int code = tensor.dtype.code, bits = tensor.dtype.bits
    if bits % 8:
        return CODE_OPAQUE
    if tensor.dtype.lanes != 1:
        return CODE_UNSUPPORTED
    if code == HETCCL_DL_BFLOAT and bits == 16:
        return HETCCL_BFLOAT16
    if code == HETCCL_DL_FLOAT8_E4M3FN:
        return HETCCL_FLOAT8_E4M3
    if code == HETCCL_DL_FLOAT8_E5M2:
        return HETCCL_FLOAT8_E5M2
    return code_of(DL_KINDS[code] if code < 7 else 0, bits // 8)


cdef int read_cai(Reader reader, object obj, Export* export, Memory* memory, object arg, bint writable) except -1:
    try:
        interface = obj.__cuda_array_interface__
    except REFUSALS as error:
        raise_refused(obj, arg, error)
    try:
        cai_parse(interface, obj, memory, arg)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        fault = "lacks" if isinstance(error, (AttributeError, KeyError)) else "is not as it must be:"
        kind = ValueError if isinstance(error, (IndexError, OverflowError, ValueError)) else TypeError
        raise kind(f"{arg}: __cuda_array_interface__ of {type_name(obj)} {fault} {error}") from error
    return 0


cdef int cai_parse(object interface, object obj, Memory* memory, object arg) except -1:
    shape, typestr, (ptr, readonly) = interface["shape"], interface["typestr"], interface["data"]
    if interface.get("mask") is not None:
        raise TypeError(f"{arg}: {type_name(obj)} has a mask, which no collective honours; fill it first")
    memory.itemsize = int(typestr[2:])
    memory.ptr = <void*> <uintptr_t> (ptr or 0)
    memory.readonly = readonly
    memory.kind, memory.device = HETCCL_MEM_CUDA, DEVICE_UNKNOWN
    strides = interface.get("strides")
    if strides is not None and len(strides) != len(shape):
        raise ValueError("strides and shape differ in length")
    shape_store(memory, shape, strides, arg)
    memory.code = code_of(ord(typestr[1]), memory.itemsize)
    if typestr[1] == "O":
        memory.code = CODE_OPAQUE
    elif memory.code == CODE_UNSUPPORTED:  # bfloat16 and float8 have no typestr; their arrays have a dtype
        memory.code = code_of_name(str(getattr(obj, "dtype", typestr)).rpartition(".")[2])
    elif ord(typestr[0]) == BYTEORDER_SWAPPED and memory.itemsize > 1:
        memory.code = CODE_SWAPPED
    return 0


cdef void export_release(Export* export) noexcept:
    cdef int held = export.held
    export.held = HELD_NOTHING
    cdef hetccl_dlversioned_t* versioned = <hetccl_dlversioned_t*> export.managed
    cdef hetccl_dlmanaged_t* managed = <hetccl_dlmanaged_t*> export.managed
    if held == HELD_VIEW:
        PyBuffer_Release(&export.view)
    elif held == HELD_DLPACK_1 and versioned.deleter != NULL:
        versioned.deleter(versioned)
    elif held == HELD_DLPACK_0 and managed.deleter != NULL:
        managed.deleter(managed)


for _num in range(NUMPY_NUMS):
    numpy_codes[_num] = CODE_UNASKED
