"""One rank's part of a plan as C structs, and the state of running it."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from hetccl._buffer cimport Part
from hetccl._kernels cimport hetccl_reduce_fn
from hetccl._shm cimport hetccl_msg_t, hetccl_transport_t

cdef enum:
    NOBODY = -1                          # a Source that lies in this rank's memory
    MAX_CHOICES = 8


ctypedef struct Link:                    # one direction to one peer, through whichever transport reaches it
    const hetccl_transport_t* ops
    void* state


ctypedef struct Failure:                 # which message a transport could not move
    int peer
    hetccl_msg_t* message


ctypedef struct Place:                   # hetccl.plan's Block: elements [floor(n lo), floor(n hi)) of unit `unit`
    int buf                              # IN, OUT or SCRATCH
    int64_t unit
    int64_t measure                      # of SCRATCH: the unit of IN that has its length
    int64_t lo_num
    int64_t lo_den
    int64_t hi_num
    int64_t hi_den


ctypedef struct Source:                  # one operand of a Reduce
    int peer                             # or NOBODY: the operand is at `place`
    int turn                             # as in Step
    Place place


ctypedef struct Step:
    int kind
    int peer                             # of a Send or Recv
    int turn                             # place of the message among those of its link in this program, from 0
    int message                          # the step's first message in Run.messages
    bint final                           # Reduce: AVG divides here
    Place block
    Place source                         # of a Copy
    int nsources
    Source* sources                      # owned by the Program
    int nafter
    int* after                           # owned by the Program: steps that must be complete before this one starts


cdef class Program:
    cdef readonly object plan            # the hetccl.plan.Plan it was made from
    cdef Step* steps
    cdef int nsteps
    cdef int nmessages
    cdef int max_sources
    cdef int64_t scratch_units
    cdef uint8_t* states                 # nsteps, of the run under way: the communicator's lock allows one at a time
    cdef hetccl_msg_t* messages          # nmessages, likewise

    cdef int compile_step(self, Step* out, step, dict turns, tuple measures) except -1
    cdef int compile_sources(self, Step* out, step, dict turns, tuple measures) except -1


cdef class Choice:                       # the programs of one collective and root, by message size
    cdef int64_t limit[MAX_CHOICES]      # largest message in bytes; the last has none
    cdef list programs

    cdef Program pick(self, int64_t nbytes)


ctypedef struct Run:                     # a program at work on one portion of the user's buffers
    Step* steps
    uint8_t* states
    hetccl_msg_t* messages
    int nsteps
    int first                            # all steps before it are complete
    int* sent                            # per peer: messages handed to the link
    int* received                        # per peer: messages consumed, or in the link's hands
    Link* send_links                     # per peer
    Link* recv_links                     # per peer
    uint8_t* base[3]                     # IN, OUT, SCRATCH
    const Part* parts[2]                 # units of IN and OUT with places and lengths of their own; else NULL
    int64_t unit_stride[3]               # elements from one unit to the next
    int64_t skip[3]                      # elements of each unit that come before this portion
    int64_t count                        # elements of a unit in this portion; at most, where there are parts
    size_t itemsize
    uint32_t tag                         # of all messages: which collective this is
    hetccl_reduce_fn reduce
    int divisor                          # 0: no division
    bint past_cache                      # what only moves to OUT is stored past the cache
    uint8_t* fetch_scratch               # FETCH_BYTES for each source of the widest Reduce
    const void** operands                # one for each source of the widest Reduce
    Failure failure                      # set when a poll answers a negative number


cdef enum:
    FETCH_BYTES = 131072                 # a Reduce works on so much at a time: operands and result stay in the L2 cache

cdef void run_reset(Run* run, Program program, int nranks) noexcept nogil
cdef int run_poll(void* run) noexcept nogil
cdef void run_blockers(void* run, uint8_t* mask) noexcept nogil
