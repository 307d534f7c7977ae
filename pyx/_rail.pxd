"""Rails and ports as objects: what owns the C structs of include/hetccl/rail.h."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

from hetccl._runtime cimport hetccl_pointer_t, hetccl_runtime_t


cdef extern from "hetccl/rail.h" nogil:
    enum:
        HETCCL_RAILS
        HETCCL_ENETWORK
        HETCCL_RAIL_NEW
        HETCCL_RAIL_UP
        HETCCL_RAIL_FAILED
        HETCCL_RAIL_CLOSED
        HETCCL_FAULT_NONE
        HETCCL_FAULT_WC
        HETCCL_FAULT_POST
        HETCCL_FAULT_DEVICE
        HETCCL_FAULT_SOCKET
        HETCCL_FAULT_WIRE
        HETCCL_MEM_OF_ENGINE
        HETCCL_MEM_OF_USER
        HETCCL_WRITE_IMM
        HETCCL_WRITE_LAZY
        HETCCL_WRITE_DEVICE

    ctypedef struct hetccl_rail_fault_t:
        int32_t kind
        int32_t code
        uint32_t vendor_err

    ctypedef struct hetccl_mem_t:
        uint32_t lkey
        uint32_t rkey
        void* handle

    ctypedef struct hetccl_write_t:
        const void* ptr[2]
        size_t nbytes[2]
        uint32_t lkey[2]
        uint64_t remote_addr
        uint32_t rkey
        uint32_t imm
        uint32_t flags

    ctypedef struct hetccl_rail_t:
        const hetccl_rail_ops_t* ops
        void (*on_imm)(void* peer, int rail, uint32_t imm) noexcept nogil
        void* peer
        int32_t index
        int32_t state
        uint64_t posted
        uint64_t completed
        hetccl_rail_fault_t fault

    ctypedef struct hetccl_rail_ops_t:
        const char* name
        size_t max_write
        int (*write)(hetccl_rail_t* rail, const hetccl_write_t* write) noexcept nogil
        int (*room)(hetccl_rail_t* rail) noexcept nogil
        int (*reg)(hetccl_rail_t* rail, void* ptr, size_t nbytes, int whose, hetccl_mem_t* mem) noexcept nogil
        void (*dereg)(hetccl_rail_t* rail, hetccl_mem_t* mem) noexcept nogil
        void (*stop)(hetccl_rail_t* rail) noexcept nogil
        int (*reg_device)(hetccl_rail_t* rail, const hetccl_runtime_t* runtime, const hetccl_pointer_t* about,
                          hetccl_mem_t* mem, int* why_p) noexcept nogil
        hetccl_rail_t* (*loop)(hetccl_rail_t* rail) noexcept nogil
        int (*read)(hetccl_rail_t* rail, const hetccl_write_t* write) noexcept nogil
        void (*settle)(hetccl_rail_t* rail) noexcept nogil

    ctypedef struct hetccl_port_t:
        int (*poll)(hetccl_port_t* port) noexcept nogil
        int (*arm)(hetccl_port_t* port) noexcept nogil
        int fd
        int unsent


cdef extern from "hetccl/mr_direct.h" nogil:
    enum:
        HETCCL_DIRECT_SHM


cdef class Rail:
    cdef object __weakref__
    cdef hetccl_rail_t* rail             # in the subclass's own struct; NULL once closed


cdef class Port:
    cdef object __weakref__
    cdef hetccl_port_t* port             # in the subclass's own struct; NULL once closed


cdef str breach_text(int code)
# Why a GPU's memory cannot be reached without a copy: enum hetccl_direct, not 0. where: the rail, if it is one's fault.
cdef str direct_text(int why, str where)
