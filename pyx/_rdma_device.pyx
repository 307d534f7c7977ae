"""Layer L2: the RDMA devices that this process has opened for its rails, one for all communicators: each with a
protection domain and the cache of what is registered in it. Called with the GIL.
"""

import os
import weakref

cimport cython
from libc.errno cimport errno

from hetccl._mr_cache cimport cache_close, cache_open
from hetccl._verbs cimport Device, hetccl_ibv_context_t, hetccl_verbs_errno, hetccl_verbs_t
from hetccl._verbs_errors cimport verbs_raise

cdef extern from *:
    """
    #include <unistd.h>
    """
    int getpid() nogil

# {name: OpenDevice}, as long as some port uses it.
the_devices = weakref.WeakValueDictionary()


@cython.final
@cython.no_gc
cdef class OpenDevice:
    """A device and its protection domain; made by RdmaPort."""

    def __init__(self):
        raise TypeError("use RdmaPort(card)")

    def __dealloc__(self):
        # A child process of a fork would close what is its parent's.
        if self.state.pd is not NULL and self.owner_pid == getpid():
            cache_close(&self.cache)
            self.verbs.table.dealloc_pd(self.state.pd)
            pthread_mutex_destroy(&self.state.events_lock)


cdef OpenDevice device_opened(str name):
    cdef OpenDevice opened = the_devices.get(name)
    if opened is not None and opened.owner_pid == getpid():
        return opened
    opened = OpenDevice.__new__(OpenDevice)
    opened.device = Device.open(name)
    opened.verbs = opened.device.verbs
    opened.owner_pid = getpid()
    cdef const hetccl_verbs_t* table = opened.verbs.table
    cdef hetccl_ibv_context_t* context = opened.device.opened()
    cdef int rc
    with nogil:
        rc = table.query_device(context, &opened.attr)
        rc = hetccl_verbs_errno(rc) if rc else 0
    if rc:
        verbs_raise("ibv_query_device", rc, name, 0, "")
    if set_nonblocking(context.async_fd) != 0:
        raise OSError(errno, f"{name}: its events cannot be read without blocking: {os.strerror(errno)}")
    opened.state.verbs, opened.state.context = table, context
    with nogil:
        pthread_mutex_init(&opened.state.events_lock, NULL)
        opened.state.pd = table.alloc_pd(context)
        rc = errno
    if opened.state.pd is NULL:
        verbs_raise("ibv_alloc_pd", rc, name, 0, "")
    cache_open(&opened.cache, table, opened.state.pd, name)
    opened.state.cache = &opened.cache
    the_devices[name] = opened
    return opened
