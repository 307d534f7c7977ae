/* What a compiler of device code must be told: nvcc, NVRTC, clang for AMD GPUs, hipRTC; and the host's C++ compiler,
 * for which a kernel is a function that does the work of the whole grid. No header of CUDA's or ROCm's, and none of C,
 * is needed: run-time compilers have none. */
#ifndef HETCCL_DEVICE_H
#define HETCCL_DEVICE_H

#define HETCCL_DEVICE 1

#if defined(__CUDACC__) /* of nvcc and NVRTC */
#define HETCCL_OP static __device__ __forceinline__
#define HETCCL_GLOBAL
#define HETCCL_UNROLL _Pragma("unroll")
#define HETCCL_ROLLED _Pragma("unroll 1")
#define HETCCL_ENTRY(NAME, BODY)                                                                                      \
    extern "C" __global__ void __launch_bounds__(HETCCL_DEVICE_BLOCK)                                                 \
        NAME(const __grid_constant__ hetccl_device_args_t a)                                                          \
    {                                                                                                                 \
        BODY(a, (uint64_t)blockIdx.x * HETCCL_DEVICE_BLOCK + threadIdx.x);                                            \
    }

#elif defined(__HIP__) && defined(__clang__)
#define HETCCL_OP static __attribute__((device, always_inline))
#define HETCCL_UNROLL _Pragma("unroll")
#define HETCCL_ROLLED _Pragma("unroll 1")
#define HETCCL_ENTRY(NAME, BODY)                                                                                      \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, HETCCL_DEVICE_BLOCK)))                           \
    void NAME(hetccl_device_args_t a)                                                                                 \
    {                                                                                                                 \
        BODY(a, (uint64_t)__builtin_amdgcn_workgroup_id_x() * HETCCL_DEVICE_BLOCK + __builtin_amdgcn_workitem_id_x()); \
    }
#pragma clang fp contract(off) /* whatever the options: a fused product and sum would round otherwise than the host */
#ifdef __AMDGCN__
/* Pointers inside an argument are of no known memory, and flat loads would wait for the local memory as well. */
#define HETCCL_GLOBAL __attribute__((address_space(1)))
#else /* clang also reads the source for the host */
#define HETCCL_GLOBAL
#endif

#else
/* For whoever queues the call of a kernel and must keep its argument until then. */
#define HETCCL_DEVICE_ON_HOST                                                                                         \
    extern "C" __attribute__((visibility("default"))) const unsigned kernel_argument_nbytes;                          \
    const unsigned kernel_argument_nbytes = sizeof(hetccl_device_args_t);
#define HETCCL_OP static inline __attribute__((always_inline))
#define HETCCL_GLOBAL
#define HETCCL_UNROLL
#define HETCCL_ROLLED
#define HETCCL_ENTRY(NAME, BODY)                                                                                      \
    extern "C" __attribute__((visibility("default")))                                                                 \
    void NAME(void **arguments, const unsigned *grid, const unsigned *block)                                          \
    {                                                                                                                 \
        hetccl_device_args_t a = *(const hetccl_device_args_t *)arguments[0];                                         \
        for (uint64_t thread = 0; thread < (uint64_t)grid[0] * block[0]; thread++)                                    \
            BODY(a, thread);                                                                                          \
    }
#endif

/* Macros, not types: hipRTC's own prologue has types of these names, which need not be the same. */
#define int8_t signed char
#define int16_t short
#define int32_t int
#define int64_t long long
#define uint8_t unsigned char
#define uint16_t unsigned short
#define uint32_t unsigned
#define uint64_t unsigned long long
/* 16 bytes that are moved at once. nvcc has no vectors of C's; clang copies no struct from global memory. */
#ifdef __CUDACC__
struct __align__(16) hetccl_16_t { uint32_t words[4]; };
#else
typedef uint32_t hetccl_16_t __attribute__((vector_size(16)));
#endif

#ifndef __CUDACC_RTC__ /* has a memcpy of its own */
#define memcpy __builtin_memcpy
#endif

#endif
