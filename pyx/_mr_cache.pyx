"""Layer L2: the registered memory of RDMA devices: one cache for each protection domain, over the ranges that the
process has noted (_mr_notes). Rails use the C side (include/hetccl/mr_cache.h) without the GIL.

Gigabytes are registered under the lock, so it is waited for without the GIL; and nobody waits for the GIL with it. A
child of fork never takes it: it may be held there for good, and the registrations are its parent's.
"""

import logging
import os
import resource

from hetccl._verbs_errors import may_lock_all, memlock_advice

from hetccl._verbs_errors cimport error_text

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes) noexcept
    int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int us) noexcept

cdef enum:
    TRY_AGAIN_US = 20

cdef extern from "hetccl/mr_cache.h" nogil:
    enum:
        HETCCL_MR_MEMLOCK
        HETCCL_MR_REFUSED
        HETCCL_MR_LIMIT
        HETCCL_MR_STUCK
        HETCCL_MR_DMABUF
        HETCCL_MR_PEERMEM
        HETCCL_MR_FORK
        HETCCL_MR_NEVENTS

    void hetccl_mr_cache_open(hetccl_mr_cache_t* cache, hetccl_mr_notes_t* notes, const hetccl_verbs_t* verbs,
                              hetccl_ibv_pd_t* pd, const char* name, int max_count, size_t max_nbytes) noexcept
    void hetccl_mr_cache_close(hetccl_mr_cache_t* cache) noexcept

# Registrations of users' memory per device. A driver's table of them is larger (rxe: 524,287; mlx5: millions); each
# takes kernel memory, and a program that passes more arrays than that in turn would gain little by keeping them.
cdef enum:
    MAX_REGISTRATIONS = 1024


# Why some memory goes through memory of hetccl's own, by event: log level, text.
cdef dict EVENTS = {
    HETCCL_MR_MEMLOCK: (
        logging.WARNING,
        "{name}: memory of {nbytes} bytes cannot be registered ({error}), and goes through buffers of hetccl's own, at "
        "the cost of a copy. {memlock}",
    ),
    HETCCL_MR_REFUSED: (
        logging.INFO,
        "{name}: some memory, here {nbytes} bytes, cannot be registered ({error}), and goes through buffers of "
        "hetccl's own: the kernel does not pin read-only mappings, some files, and memory of devices",
    ),
    HETCCL_MR_LIMIT: (
        logging.INFO,
        "{name}: a buffer whose memory has {nbytes} bytes is not registered, but goes through buffers of hetccl's own: "
        "{limit} bytes are the most that are registered at a time. {memlock}",
    ),
    HETCCL_MR_STUCK: (logging.WARNING, "{name}: memory stays registered: ibv_dereg_mr failed ({error})"),
    HETCCL_MR_DMABUF: (
        logging.INFO,
        "{name}: memory of GPUs cannot be registered as a dma-buf ({error}): it takes Linux 5.12, a driver of the GPU "
        "that exports it (NVIDIA's open kernel modules, amdgpu), and one of the NIC that imports it",
    ),
    HETCCL_MR_PEERMEM: (
        logging.WARNING,
        "{name}: memory of GPUs cannot be registered ({error}), and goes through host memory, at the cost of two "
        "copies: neither dma-bufs work, nor is a peer-memory module loaded (nvidia-peermem)",
    ),
    HETCCL_MR_FORK: (
        logging.INFO,
        "{name}: arrays go through buffers of hetccl's own, at the cost of a copy: on this kernel (Linux 5.12 is "
        "needed) a child of fork would lose what lies in the same pages. Comm.register() registers an array all the "
        "same",
    ),
}

LOGGER = logging.getLogger("hetccl")

cdef hetccl_mr_notes_t notes
pthread_mutex_init(&notes.lock, NULL)
process_notes = &notes


cdef void notes_lock() noexcept:
    # Never taken without the GIL: whoever comes back for the GIL with it would meet one who has the GIL and wants it.
    while pthread_mutex_trylock(&notes.lock) != 0:
        with nogil:
            usleep(TRY_AGAIN_US)


cdef void notes_unlock() noexcept:
    pthread_mutex_unlock(&notes.lock)


cdef int cache_open(hetccl_mr_cache_t* cache, const hetccl_verbs_t* verbs, hetccl_ibv_pd_t* pd, str name) except -1:
    cdef bytes text = name.encode()
    cdef size_t limit = pinnable_bytes()
    notes_lock()
    hetccl_mr_cache_open(cache, &notes, verbs, pd, text, MAX_REGISTRATIONS, limit)
    notes_unlock()
    return 0


cdef void cache_close(hetccl_mr_cache_t* cache) noexcept:
    if cache.notes == NULL:
        return
    with nogil:
        pthread_mutex_lock(&notes.lock)
        hetccl_mr_cache_close(cache)
        pthread_mutex_unlock(&notes.lock)


def registered():
    """What is registered now: a dict for each open device: "device" (name), "arrays" (registrations of users' memory),
    "nbytes" (of those), "own" (registrations of hetccl's own memory), "limit" (the most that nbytes may be)."""
    cdef hetccl_mr_cache_t* cache
    found = []
    notes_lock()
    cache = notes.caches
    while cache != NULL:
        found.append({"device": cache.name, "arrays": cache.count, "nbytes": cache.nbytes, "own": cache.nengine,
                      "limit": cache.max_nbytes})
        cache = cache.next
    notes_unlock()
    return [{**entry, "device": entry["device"].decode()} for entry in found]


cdef int notes_report() except -1:
    if notes.news:
        notes.news = 0
        while report_one():
            pass
    return 0


cdef bint report_one() except -1:
    """Log what one device has to tell; False if none has."""
    cdef hetccl_mr_cache_t* cache
    cdef hetccl_mr_cache_t copy
    cdef int event
    notes_lock()
    cache = notes.caches
    while cache != NULL and cache.news == 0:
        cache = cache.next
    if cache != NULL:
        copy = cache[0]
        cache.news = 0
    notes_unlock()
    if cache == NULL:
        return False
    for event in range(HETCCL_MR_NEVENTS):
        if copy.news >> event & 1:
            level, text = EVENTS[event]
            error = copy.error[event]
            LOGGER.log(level, "%s", text.format(
                name=copy.name.decode(), nbytes=copy.event_nbytes[event], limit=copy.max_nbytes,
                error=error_text(error), memlock=f"{memlock_advice()}."))
    return True


cdef size_t pinnable_bytes() except 0:
    """The most that is registered for users: half of what may be pinned, so that others have room."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft != resource.RLIM_INFINITY and not may_lock_all():
        total = min(total, soft)
    return max(total // 2, 1)
