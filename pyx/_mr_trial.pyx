"""Registered memory for the unit tests: a cache over a table of functions that the test gives, without a library.

Layer L2; nothing of the package uses it.
"""

from libc.stddef cimport size_t
from libc.string cimport memset

from hetccl._mr_cache cimport (
    cache_close, cache_open, hetccl_mr_cache_get, hetccl_mr_cache_put, hetccl_mr_cache_t, hetccl_mr_range_t,
    notes_report, process_notes,
)
from hetccl._mr_notes cimport buffer_note, register_begin, register_end
from hetccl._rail cimport HETCCL_MEM_OF_ENGINE, HETCCL_MEM_OF_USER, hetccl_mem_t
from hetccl._shm cimport HETCCL_DONE
from hetccl._verbs cimport hetccl_ibv_pd_t, hetccl_verbs_t

cdef extern from "hetccl/mr_cache.h" nogil:
    void hetccl_mr_tell(hetccl_mr_cache_t* cache, int event, int error, size_t nbytes) noexcept


cdef class Keys:
    """What a rail is given of some memory, until put()."""

    cdef hetccl_mem_t mem
    cdef Cache cache

    @property
    def lkey(self):
        return self.mem.lkey

    @property
    def rkey(self):
        return self.mem.rkey

    def put(self):
        hetccl_mr_cache_put(&self.cache.cache, &self.mem)


cdef class Cache:
    """A cache of one device. table: address of a hetccl_verbs_t; pd: of a protection domain; name: the device's."""

    cdef hetccl_mr_cache_t cache

    def __init__(self, size_t table, size_t pd, str name):
        cache_open(&self.cache, <const hetccl_verbs_t*>table, <hetccl_ibv_pd_t*>pd, name)

    def __dealloc__(self):
        cache_close(&self.cache)

    def limit(self, int count, size_t nbytes):
        """Set the most registrations, and bytes of them, that users may have."""
        self.cache.max_count, self.cache.max_nbytes = count, nbytes

    def get(self, size_t ptr, size_t nbytes, bint of_engine=False):
        """Keys of memory, or None: it is to be staged."""
        cdef Keys keys = Keys.__new__(Keys)
        cdef int whose = HETCCL_MEM_OF_ENGINE if of_engine else HETCCL_MEM_OF_USER
        memset(&keys.mem, 0, sizeof(keys.mem))
        keys.cache = self
        with nogil:
            status = hetccl_mr_cache_get(&self.cache, <void*>ptr, nbytes, whose, &keys.mem)
        return keys if status == HETCCL_DONE else None

    @property
    def automatic(self):
        return bool(self.cache.automatic)

    @property
    def counts(self):
        """(registrations for users, their bytes, registrations of the engine's memory)"""
        return self.cache.count, self.cache.nbytes, self.cache.nengine

    def close(self):
        cache_close(&self.cache)


cdef class Registered:
    """Memory of a user's that is registered until end()."""

    cdef hetccl_mr_range_t* range
    cdef object obj
    cdef readonly int ndevices

    def __init__(self, obj, size_t ptr, size_t nbytes):
        self.obj = obj
        self.range = register_begin(obj, <void*>ptr, nbytes, &self.ndevices)

    def end(self):
        register_end(self.range)


def note(obj, size_t ptr, size_t nbytes):
    """What a call does with a buffer that it was passed."""
    buffer_note(obj, <void*>ptr, nbytes)


def nnoted():
    """How many stretches of memory are noted."""
    return process_notes.ranges.count


def tell(Cache cache, int event, int error, size_t nbytes):
    """Let the device have this to tell. event: enum hetccl_mr_event; error: errno."""
    hetccl_mr_tell(&cache.cache, event, error, nbytes)


def report():
    """Log what the devices have to tell."""
    notes_report()
