"""A call as an object: what it was given, its state in the engine, and its outcome."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from hetccl._agree cimport Check
from hetccl._buffer cimport Span
from hetccl._engine cimport Work
from hetccl._executor cimport Executor
from hetccl._launch cimport Launch
from hetccl._layout cimport Part, hetccl_layout_t
from hetccl._lists cimport Deferred, Lists, Task
from hetccl._mailbox cimport Message
from hetccl._passage cimport Passage, Transit
from hetccl._row cimport Collective
from hetccl._runtime cimport hetccl_runtime_t
from hetccl._watched cimport WatchedComm


ctypedef struct Letter:                  # what a Message is made of, at each start
    bint sending
    int peer                             # or ANY
    int64_t tag                          # or ANY
    uint8_t* ptr
    const hetccl_layout_t* layout
    size_t nbytes                        # to send, or room
    int flags                            # enum hetccl_msg_flags
    bint cut                             # it is sent in segments


cdef class Request(Lists):
    cdef Executor executor               # None: the null request
    cdef object membership
    cdef Work work
    cdef Collective collective
    cdef Message messages[2]
    cdef Transit transits[2]             # of messages in device memory that cross
    cdef Letter letters[2]
    cdef int receives                    # which of the messages is received; -1: none
    cdef bint from_nobody                # a receive from PROC_NULL
    cdef Span send
    cdef Span recv
    cdef Part* parts                     # of IN, then of OUT; owned
    cdef list choices                    # the communicator's programs: this call's is among them
    cdef list kept                       # layouts and temporary memory that the engine uses
    cdef Check check                     # check.mine is NULL where calls are not compared
    cdef list tasks                      # Task; or None
    cdef uint8_t[2] tokens               # what a barrier sends and receives
    cdef object stream                   # the argument of the call
    cdef WatchedComm vendor              # whose library runs the call, or None: the engine
    cdef bint crosses                    # vendor is a Crossing: the engine runs the call, on GPU buffers
    cdef Passage passage                 # of a call that crosses
    cdef Launch launch                   # the call, for the library
    cdef const hetccl_runtime_t* gpu     # of vendor, as device: for the end of `event`
    cdef int device
    cdef void* event                     # marks the end of the library's work; owned. NULL: not yet needed
    cdef Deferred deferred               # of messages in device memory, else None
    cdef Deferred others                 # the communicator's, which a wait must not leave waiting; None: one island
    cdef bint pending                    # among those of `deferred`
    cdef object failure                  # what queueing the messages raised, or None
    cdef bint library_holds              # the array library reuses the buffers' memory only in the stream's order
    cdef bint blocking                   # one of the calls that return when they are done, or queued
    cdef bint held                       # by the executor's `inflight`
    cdef bint persistent
    cdef bint bound                      # messages[0] is bound to a message already (a matched receive)

    cdef int post(self, bint sending, int peer, int64_t tag, Span* span, int flags) except -1
    cdef int add(self, Task task) except -1
    cdef bint is_queued(self) noexcept   # on a stream, where a blocking call does not wait
    cdef bint begin(self, bint waits) except -1
    cdef bint begin_launch(self, bint waits) except -1
    cdef int outlive(self) except -1
    cdef int choose_stream(self) except -1
    cdef int take_stream(self) except -1
    cdef bint note_queued(self, bint waits) except -1
    cdef int compare(self) except -1
    cdef int hold(self) except -1
    cdef bint queue_now(self, bint waits) except -1
    cdef int queue_others(self) except -1
    cdef void build_messages(self) noexcept
    cdef bint heeds_engine(self, object status) noexcept
    cdef bint is_done_well(self) except -1
    cdef bint is_let_go(self, Executor executor) except -1
    cdef Request go(self)
    cdef int run(self, object status) except -1
    cdef bint is_engaged(self) except -1
    cdef bint poll(self) except -1
    cdef int conclude(self) except -1
    cdef int await_end(self, object status) except -1
    cdef int settle(self, object status) except -1
    cdef int fill(self, object status) except -1
    cdef int raise_refusal(self) except -1
    cdef bint tried(self) except -1
    cdef int drop(self) except -1
    cdef void release(self) noexcept


cdef class Prequest(Request):
    pass


cdef Request request_new(type kind, Executor executor, object membership, int call)
