"""The peers of one communicator that are reached over a network."""

from hetccl._wire_peer cimport hetccl_wire_peer_t
from hetccl._wire_poll cimport Polled


cdef class Wire(Polled):
    cdef object __weakref__
    cdef list ports                      # Port
    cdef dict rails                      # peer -> [Rail], as long as the C structs may use them
    cdef tuple kept                      # all of these rails: the collector of cycles clears a dict, never a tuple
    cdef dict texts                      # peer -> why its connection ended, in words
    cdef readonly tuple hosts            # str per rank, for messages; empty: not known

    cdef hetccl_wire_peer_t* peer_of(self, int peer) except NULL
    cdef int finish(self, int peer, int state, str text) except -1
