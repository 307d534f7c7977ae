"""Where the objects of other libraries keep what a call needs to know of them.

Layer L2, below _array; the GIL is held, no locks. Neither CuPy nor torch has a C interface for these fields, and their
structs change from release to release, so none is compiled in. Probes of known contents are made, on no GPU, and the
one place is looked for that holds the right value in each of them. What is found nowhere, or in two places, makes the
layout unknown, and the library's attributes are read instead.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from "hetccl/arrays.h" nogil:
    enum:
        HETCCL_NPY_C
        HETCCL_NPY_F

cdef extern from "<malloc.h>" nogil:
    size_t malloc_usable_size(void* ptr)

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass

ctypedef struct CupyLayout:  # bytes from the beginning of the object
    Py_ssize_t count         # int64_t, of cupy.ndarray
    Py_ssize_t c_contiguous  # int32_t
    Py_ssize_t f_contiguous  # int32_t
    Py_ssize_t dtype         # PyObject*
    Py_ssize_t data          # PyObject* of a MemoryPointer
    Py_ssize_t ptr           # intptr_t, of MemoryPointer
    Py_ssize_t device        # int32_t

ctypedef struct TorchLayout:
    Py_ssize_t impl          # TensorImpl*, of torch.Tensor
    Py_ssize_t autograd      # pointer, of TensorImpl; NULL: no gradient, and no view that autograd follows
    Py_ssize_t keys          # uint64_t, of TensorImpl
    uint64_t lazy            # bits of `keys` that say conjugated or negated

cdef CupyLayout layout
cdef TorchLayout tensors
cdef tuple cupy_asked = (None, False)   # the module that was looked at, and whether its layout is known
cdef tuple torch_asked = (None, False)

cdef Py_ssize_t NOT_FOUND = -1
cdef size_t IMPL_NBYTES = 256  # as much of a TensorImpl is searched: 184 to 208 bytes in torch 2

# What they raise where they lack a class or argument, or find their driver broken.
cdef tuple FAULTS = (AttributeError, RuntimeError, TypeError, ValueError)

# Shape, strides in elements, dtype, address, device: no two probes share a value that the other fields could explain.
cdef tuple CUPY_PROBES = (
    ((3, 5), (5, 1), "float32", 0x7A3451000, 3),
    ((7, 11), (1, 7), "int16", 0x7B4562000, 5),
    ((13,), (1,), "uint8", 0x7C5673000, 9),
    ((17, 19), (40, 2), "float64", 0x7D6784000, 6),
    ((23, 2), (2, 1), "complex64", 0x7E7895000, 12),
    ((2, 29), (1, 2), "int64", 0x7F89A6000, 10),
)


cdef bint cupy_layout_known(object cupy) except -1:
    global cupy_asked
    if cupy_asked[0] is not cupy:
        cupy_asked = (cupy, cupy_learn(cupy))
    return cupy_asked[1]


cdef bint cupy_learn(object cupy) except -1:
    global layout
    cdef CupyLayout found
    try:
        arrays = [cupy_probe(cupy, probe) for probe in CUPY_PROBES]
        pointers = [array.data for array in arrays]
        found.count = field(arrays, [array.size for array in arrays], 8)
        found.c_contiguous = field(arrays, [array.flags.c_contiguous for array in arrays], 4)
        found.f_contiguous = field(arrays, [array.flags.f_contiguous for array in arrays], 4)
        found.dtype = field(arrays, [id(array.dtype) for array in arrays], 8)
        found.data = field(arrays, [id(pointer) for pointer in pointers], 8)
        found.ptr = field(pointers, [pointer.ptr for pointer in pointers], 8)
        found.device = field(pointers, [pointer.device_id for pointer in pointers], 4)
    except FAULTS:
        return False
    if NOT_FOUND in (
        found.count, found.c_contiguous, found.f_contiguous, found.dtype, found.data, found.ptr, found.device
    ):
        return False
    layout = found
    return True


cdef object cupy_probe(object cupy, tuple probe):
    shape, steps, name, address, device = probe
    dtype = cupy.dtype(name)
    memory = cupy.cuda.UnownedMemory(address, 1 << 16, None, device)
    strides = tuple([step * dtype.itemsize for step in steps])
    # An offset, so that the pointer's address is not its memory's.
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 256), strides)


cdef Py_ssize_t field(list objects, list values, int width) except -2:
    """The one offset at which each object has its value, `width` bytes wide; NOT_FOUND if there is none, or several."""
    cdef Py_ssize_t offset = sizeof(PyObject), found = NOT_FOUND
    cdef Py_ssize_t end = min([type(obj).__basicsize__ for obj in objects])
    while offset + width <= end:
        if all([integer_at(obj, offset, width) == value for obj, value in zip(objects, values)]):
            if found != NOT_FOUND:
                return NOT_FOUND
            found = offset
        offset += width
    return found


cdef int64_t integer_at(object obj, Py_ssize_t offset, int width) noexcept:
    cdef const char* address = <const char*> <void*> obj + offset
    cdef int64_t wide
    cdef int32_t narrow
    if width == 8:
        memcpy(&wide, address, 8)
        return wide
    memcpy(&narrow, address, 4)
    return narrow


cdef bint cupy_read(object array, CupyArray* out) noexcept:
    cdef const char* base = <const char*> <void*> array
    cdef const char* data = (<const char**> (base + layout.data))[0]
    out.dtype = (<void**> (base + layout.dtype))[0]
    if data == <const char*> <void*> None or out.dtype == <void*> None:
        return False
    out.count = (<const int64_t*> (base + layout.count))[0]
    out.ptr = (<void**> (data + layout.ptr))[0]
    out.device = (<const int32_t*> (data + layout.device))[0]
    out.order = 0
    if (<const int32_t*> (base + layout.c_contiguous))[0]:
        out.order |= HETCCL_NPY_C
    if (<const int32_t*> (base + layout.f_contiguous))[0]:
        out.order |= HETCCL_NPY_F
    return True


cdef bint torch_layout_known(object torch) except -1:
    global torch_asked
    if torch_asked[0] is not torch:
        torch_asked = (torch, torch_learn(torch))
    return torch_asked[1]


cdef bint torch_learn(object torch) except -1:
    global tensors
    cdef TorchLayout found
    cdef size_t nbytes
    try:
        with torch.inference_mode(False):
            plain, grads, pairs = torch_probes(torch)
        everything = [*plain, *grads, *[tensor for pair in pairs for tensor in pair[:2]]]
        if any([type(tensor) is not torch.Tensor for tensor in everything]):  # a mode that makes something else is on
            return False
        found.impl = field(everything, [tensor._cdata for tensor in everything], 8)
    except FAULTS:
        return False
    if found.impl == NOT_FOUND:
        return False
    nbytes = min(IMPL_NBYTES, min([malloc_usable_size(<void*> impl_of(tensor, found.impl)) for tensor in everything]))
    found.autograd = torch_autograd_at(plain, grads, found.impl, nbytes)
    found.keys = torch_keys_at(pairs, found.impl, nbytes, &found.lazy)
    if NOT_FOUND in (found.autograd, found.keys):
        return False
    tensors = found
    return True


cdef tuple torch_probes(object torch):
    """Tensors without and with gradients, and (as it is, on paper, which of the two ways) of the same memory."""
    sizes = (5, 8, 17, 33)
    reals = [torch.zeros(size, device="cpu") for size in sizes]
    grads = [torch.zeros(size, device="cpu", requires_grad=True) for size in sizes]
    waves = [torch.zeros(size, device="cpu", dtype=torch.complex64) for size in sizes]
    pairs = [(wave, wave.conj(), "conjugated") for wave in waves]
    pairs += [(wave.imag, wave.conj().imag, "negated") for wave in waves]
    return [*reals, *waves], grads, pairs


cdef Py_ssize_t torch_autograd_at(list plain, list grads, Py_ssize_t impl, Py_ssize_t nbytes) except -2:
    """The one word of TensorImpl that is 0 in all of `plain` and in none of `grads`."""
    cdef Py_ssize_t offset
    cdef list found = [
        offset for offset in range(0, nbytes - 7, 8)
        if not any([word_at(tensor, impl, offset) for tensor in plain])
        and all([word_at(tensor, impl, offset) for tensor in grads])
    ]
    return found[0] if len(found) == 1 else NOT_FOUND


cdef Py_ssize_t torch_keys_at(list pairs, Py_ssize_t impl, Py_ssize_t nbytes, uint64_t* bits) except -2:
    """The one word of TensorImpl in which each way of being lazy is one bit of its own, clear where a tensor is not."""
    cdef list found = []
    cdef Py_ssize_t offset
    for offset in range(0, nbytes - 7, 8):
        words = [(kind, word_at(a, impl, offset), word_at(b, impl, offset)) for a, b, kind in pairs]
        flips = {(kind, one ^ other) for kind, one, other in words}
        masks = [mask for _, mask in flips]
        if len(flips) == 2 and all([mask and not mask & (mask - 1) for mask in masks]) and masks[0] != masks[1]:
            if not any([one & (masks[0] | masks[1]) for _, one, _ in words]):
                found.append((offset, masks[0] | masks[1]))
    if len(found) != 1:
        return NOT_FOUND
    bits[0] = found[0][1]
    return found[0][0]


cdef const char* impl_of(object tensor, Py_ssize_t impl) noexcept:
    return (<const char**> (<const char*> <void*> tensor + impl))[0]


cdef uint64_t word_at(object tensor, Py_ssize_t impl, Py_ssize_t offset) noexcept:
    return (<const uint64_t*> (impl_of(tensor, impl) + offset))[0]


cdef int torch_state(object tensor) noexcept:
    cdef const char* impl = impl_of(tensor, tensors.impl)
    if impl == NULL or (<const uint64_t*> (impl + tensors.keys))[0] & tensors.lazy:
        return TENSOR_UNKNOWN
    return TENSOR_PLAIN if (<void* const*> (impl + tensors.autograd))[0] == NULL else TENSOR_TRACKED


def find(objects, values, int width):
    """The one offset at which each object has its value, 4 or 8 bytes wide; None if there is none, or several."""
    offset = field(list(objects), list(values), width)
    return None if offset == NOT_FOUND else offset


def describe_cupy(cupy):
    """Where the fields of this CuPy's arrays are, in bytes; None if that is not known."""
    if not cupy_layout_known(cupy):
        return None
    return {
        "count": layout.count, "c_contiguous": layout.c_contiguous, "f_contiguous": layout.f_contiguous,
        "dtype": layout.dtype, "data": layout.data, "ptr": layout.ptr, "device": layout.device,
    }


def describe_torch(torch):
    """Where this torch's tensors keep what makes them more than memory; None if that is not known."""
    if not torch_layout_known(torch):
        return None
    return {"impl": tensors.impl, "autograd": tensors.autograd, "keys": tensors.keys, "lazy": tensors.lazy}
