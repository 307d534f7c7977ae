"""Registered memory of one RDMA device, as its rails use it. C side: include/hetccl/mr_cache.h."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from hetccl._rail cimport hetccl_mem_t
from hetccl._verbs cimport hetccl_ibv_pd_t, hetccl_verbs_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

    int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept

cdef extern from "hetccl/mr_cache.h" nogil:
    ctypedef struct hetccl_mr_range_t:
        uintptr_t base
        size_t nbytes
        int promised
        int kept

    ctypedef struct hetccl_mr_ranges_t:
        size_t count

    ctypedef struct hetccl_mr_notes_t:
        pthread_mutex_t lock
        hetccl_mr_ranges_t ranges
        hetccl_mr_cache_t* caches
        int news

    ctypedef struct hetccl_mr_cache_t:
        hetccl_mr_notes_t* notes         # NULL: closed
        hetccl_mr_cache_t* next
        int count
        size_t nbytes
        int nengine
        uint32_t news
        int automatic
        int max_count
        size_t max_nbytes
        int* error                       # by enum hetccl_mr_event
        size_t* event_nbytes
        char* name

    # What a verbs rail's reg() and dereg() are; they take the lock of the process's notes.
    int hetccl_mr_cache_get(hetccl_mr_cache_t* cache, void* ptr, size_t nbytes, int whose, hetccl_mem_t* mem) noexcept
    void hetccl_mr_cache_put(hetccl_mr_cache_t* cache, hetccl_mem_t* mem) noexcept


# Before its first use; verbs and pd must stay until close. name: the RDMA device's, for messages.
cdef int cache_open(hetccl_mr_cache_t* cache, const hetccl_verbs_t* verbs, hetccl_ibv_pd_t* pd, str name) except -1
# Idempotent. Nothing may be in use any more. A child of fork must not call it.
cdef void cache_close(hetccl_mr_cache_t* cache) noexcept

# The process's, made when the module is imported; never freed.
cdef hetccl_mr_notes_t* process_notes

# Guard notes and caches for a moment; for what may call a driver, take process_notes.lock without the GIL.
cdef void notes_lock() noexcept
cdef void notes_unlock() noexcept
# Log what the devices have had to tell since; cheap if it is nothing.
cdef int notes_report() except -1
