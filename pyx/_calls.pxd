"""Numbers of the calls: what messages carry, and what errors name."""

# Indices into CALLS. Collectives first; they, and those at the end that wait for all ranks, travel in CALL_BITS of a
# message's tag.
cdef enum:
    ALLREDUCE = 0
    REDUCE = 1
    BCAST = 2
    ALLGATHER = 3
    REDUCE_SCATTER_BLOCK = 4
    ALLTOALL = 5
    BARRIER = 6
    GATHER = 7
    GATHERV = 8
    SCATTER = 9
    SCATTERV = 10
    ALLGATHERV = 11
    REDUCE_SCATTER = 12
    ALLTOALLV = 13
    ALLTOALLW = 14
    SCAN = 15
    EXSCAN = 16
    NCOLLECTIVES = 17
    SEND = 17
    RECV = 18
    SENDRECV = 19
    PROBE = 20
    SPLIT = 21
    SPLIT_TYPE = 22
    DUP = 23
    CREATE = 24
    CONNECT = 25

cdef enum:
    CALL_BITS = 5
    CALL_MASK = 31
    ANY_CALL = 31                        # the comparison that comes before a call (HETCCL_CHECK)
