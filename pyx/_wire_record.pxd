"""What two ranks tell each other of a connection, as JSON carries it."""

from libc.stdint cimport uint32_t, uint64_t

from hetccl._wire_peer cimport hetccl_wire_arrived_t, hetccl_wire_shape_t


ctypedef struct Inbox:                   # of the peer, as its Wire.prepare() said
    uint64_t address
    hetccl_wire_shape_t shape


# All raise ValueError where it is not such a record. rkeys: room for nrails of them.
cdef int inbox_read(record, Inbox* inbox, uint32_t* rkeys, int nrails) except -1
cdef dict arrived_record(const hetccl_wire_arrived_t* arrived)
cdef int arrived_read(record, hetccl_wire_arrived_t* arrived) except -1
