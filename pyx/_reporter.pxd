"""What an engine says when its work cannot go on."""

from libc.stdint cimport int64_t

from hetccl._board cimport Board
from hetccl._engine cimport Engine, Work
from hetccl._mailbox cimport Message
from hetccl._shm cimport hetccl_msg_t


cdef class Reporter(Engine):
    cdef int64_t timeout_ns

    cdef int raise_lost(self, Work* work, int peer) except -1 with gil
    cdef int raise_late(self, Work* work) except -1 with gil
    cdef int raise_fault(self, int call, Work* work) except -1 with gil
    cdef int raise_failed(self, Work* work) except -1 with gil
    # Why a receive refused its message
    cdef object wrong_length(self, Work* work, const Message* message)
    cdef tuple describe_head(self, Work* work, int status, int peer, hetccl_msg_t* msg)
    cdef tuple outstanding(self, Work* work)
    cdef tuple blockers(self, Work* work)
    cdef str describe(self, int peer, Work* work)
