"""An RDMA device, opened, with what its rails share. C side: include/hetccl/verbs_port.h."""

from hetccl._mr_cache cimport hetccl_mr_cache_t
from hetccl._verbs cimport (
    Device, Verbs, hetccl_ibv_context_t, hetccl_ibv_device_attr_t, hetccl_ibv_pd_t, hetccl_verbs_t,
)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)


cdef extern from *:
    """
    #include <fcntl.h>
    static inline int set_nonblocking(int fd) {
        int flags = fcntl(fd, F_GETFL);
        return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    }
    """
    int set_nonblocking(int fd) nogil


cdef extern from "hetccl/verbs_port.h" nogil:
    ctypedef struct hetccl_verbs_device_t:
        const hetccl_verbs_t* verbs
        hetccl_ibv_context_t* context
        hetccl_ibv_pd_t* pd
        hetccl_mr_cache_t* cache
        pthread_mutex_t events_lock


cdef class OpenDevice:
    cdef object __weakref__
    cdef Device device
    cdef Verbs verbs
    cdef hetccl_mr_cache_t cache
    cdef hetccl_verbs_device_t state
    cdef hetccl_ibv_device_attr_t attr
    cdef int owner_pid


# The device of this name, opened on first use; it is closed with the last port that holds it.
cdef OpenDevice device_opened(str name)
