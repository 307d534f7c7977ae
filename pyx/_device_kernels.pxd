"""Reduction kernels of a device: function handles for whoever queues them (docs/kernels.md); layer L2."""

from hetccl._runtime cimport Runtime

cdef extern from "hetccl/device_args.h" nogil:
    enum:
        HETCCL_DEVICE_SOURCES
        HETCCL_DEVICE_BLOCK
        HETCCL_DEVICE_ACCESS

# How one op on one dtype is queued.
ctypedef struct device_kernel_t:
    void* function        # the runtime's handle; NULL where the op is not defined
    void* dividing        # the same with AVG's division at its end; NULL where AVG is not defined
    size_t part_nbytes    # of what the kernel takes for an element
    int parts             # of an element: 2 for complex numbers that are added part by part

cdef class DeviceKernels:
    cdef readonly Runtime runtime
    cdef readonly int device
    cdef readonly str arch       # "sm_90", "gfx942"
    cdef readonly str form       # where the code is from, for people
    cdef void* module            # lives as long as the process
    cdef dict functions          # kernel's name -> its handle, int

    # Looks the function up at the first call, with the GIL and the device's context current. TypeError: not defined.
    cdef int kernel_for(self, int op, int dtype, device_kernel_t* kernel) except -1

    # Queue out = sources[0] op sources[1] op ..., 1 to HETCCL_DEVICE_SOURCES of them; divisor > 0 only with AVG, on its
    # last step. The device's context must be current. Answers the runtime's code.
    cdef int queue(self, const device_kernel_t* kernel, void* out, const void* const* sources, int nsources,
                   size_t count, int divisor, void* stream) noexcept nogil

# The kernels of a device, loaded at the first call; see device_kernels() in the .pyx.
cdef DeviceKernels kernels_load(Runtime runtime, int device, folder, override, folders)
