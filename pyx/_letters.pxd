"""Messages under way, messages set aside, and rows of them: what the mailbox keeps. The rows own nothing."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from hetccl._passage cimport Transit
from hetccl._shm cimport hetccl_aside_t, hetccl_msg_t

cdef enum:
    ANY = -1                             # any source, any tag

cdef enum MessageState:
    MESSAGE_IDLE = 0                     # not under way: never posted, or bound by Mailbox.take()
    MESSAGE_POSTED = 1                   # waits for its turn, or for a match
    MESSAGE_MOVING = 2
    MESSAGE_COMPLETE = 3                 # from here on the mailbox does not know it any more
    MESSAGE_TOO_LONG = 4                 # receive: the message has refused_nbytes, and stays for the next receive
    MESSAGE_FAILED = 5                   # status and msg.error say why


ctypedef struct Held:                    # a message that was set aside; the mailbox's
    Held* next
    Held* previous
    hetccl_aside_t aside
    size_t cost_nbytes                   # of memory
    bint whole                           # all of it is out of the link
    int status                           # 0, or the fault that kept it from becoming whole
    bint cut                             # as of a Message
    uint32_t number


ctypedef struct HeldRow:
    Held* first
    Held* last


ctypedef struct Message:                 # one send or receive; the caller's, who keeps it until its state is final
    Message* next                        # the mailbox's
    bint sending
    int peer                             # destination; source or ANY; once matched: the sender
    int64_t tag                          # or ANY; once matched: the message's
    size_t capacity                      # receive: bytes of room
    hetccl_msg_t msg                     # the caller fills ptr, layout, skip and flags, for a send also nbytes
    int state                            # enum MessageState
    size_t refused_nbytes
    int status                           # of the transport, negative
    uint64_t order                       # the mailbox's: receives match in the order they were posted
    Held* held                           # the mailbox's, once matched with a message that was set aside; else NULL
    Transit* transit                     # the caller's, of GPU memory; else NULL
    bint cut                             # it goes in segments (_ferry); of one to receive, once matched
    uint32_t number                      # the ferry's, which tells apart what is cut, on its way between two ranks
    void* cargo                          # the ferry's
    bint is_note                         # the ferry's, from another one


ctypedef struct Row:                     # messages in order
    Message* first
    Message* last


cdef inline void append(Row* row, Message* message) noexcept nogil:
    message.next = NULL
    if row.first == NULL:
        row.first = message
    else:
        row.last.next = message
    row.last = message


# previous: the one before it, or NULL.
cdef inline void remove(Row* row, Message* previous, Message* message) noexcept nogil:
    if previous == NULL:
        row.first = message.next
    else:
        previous.next = message.next
    if row.last == message:
        row.last = previous


cdef inline Message* pop(Row* row) noexcept nogil:
    cdef Message* message = row.first
    remove(row, NULL, message)
    return message


# The first receive that takes this tag, and the one before it.
cdef inline Message* first_of(Row* row, int64_t tag, Message** previous_p) noexcept nogil:
    cdef Message* message = row.first
    while message != NULL and message.tag != ANY and message.tag != tag:
        previous_p[0] = message
        message = message.next
    return message


cdef inline void hook(HeldRow* row, Held* held) noexcept nogil:
    held.next, held.previous = NULL, row.last
    if row.last == NULL:
        row.first = held
    else:
        row.last.next = held
    row.last = held


cdef inline void unhook(HeldRow* row, Held* held) noexcept nogil:
    if held.previous == NULL:
        row.first = held.next
    else:
        held.previous.next = held.next
    if held.next == NULL:
        row.last = held.previous
    else:
        held.next.previous = held.previous


cdef inline void free_held(HeldRow* row) noexcept nogil:
    cdef Held* held = row.first
    cdef Held* next
    while held != NULL:
        next = held.next
        free(held.aside.buffer)
        free(held)
        held = next
    row.first = row.last = NULL
