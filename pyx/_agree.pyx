"""Layer L3: compares a call across ranks before it runs, when HETCCL_CHECK asks for it.

The row of collectives gathers every rank's words by the engine itself, so that it works on every transport and for
nonblocking calls; no byte of the user's has moved yet. All ranks see the same words, so all come to the same verdict,
and the communicator stays usable.
"""

from libc.stdlib cimport calloc, free

from hetccl._buffer cimport dtype_name
from hetccl._op cimport op_name

from hetccl._calls import CALLS

cdef enum:
    # Pairs of ranks that an error lists.
    MOST_PAIRS = 8


MEMORY_NAMES = ("host", "cuda", "hip", "oneapi")  # by HETCCL_MEM_*


cdef int check_open(Check* check, int nranks) except -1:
    check.nwords = CHECK_WORDS + 2 * nranks
    check.mine = <int64_t*>calloc((nranks + 1) * check.nwords, sizeof(int64_t))
    if check.mine == NULL:
        raise MemoryError()
    check.everyone = check.mine + check.nwords
    return 0


cdef void check_close(Check* check) noexcept nogil:
    free(check.mine)
    check.mine = NULL


cdef inline const int64_t* words_of(const Check* check, int rank) noexcept nogil:
    return check.everyone + rank * check.nwords


cdef inline int64_t sent(const Check* check, int sender, int receiver) noexcept nogil:
    return words_of(check, sender)[CHECK_WORDS + receiver]


cdef inline int64_t expected(const Check* check, int nranks, int sender, int receiver) noexcept nogil:
    return words_of(check, receiver)[CHECK_WORDS + nranks + sender]


cdef bint check_holds(const Check* check, int nranks) noexcept nogil:
    cdef int rank, peer, word
    for rank in range(nranks):
        for word in range(CHECK_WORDS):
            if words_of(check, rank)[word] != words_of(check, 0)[word]:
                return False
        for peer in range(nranks):
            if sent(check, rank, peer) != expected(check, nranks, rank, peer):
                return False
    return True


cdef object check_error(const Check* check, int nranks, int rank):
    call = CALLS[check.mine[CHECK_CALL]]
    differences = []
    for title, word, name in (
        ("collective", CHECK_CALL, CALLS.__getitem__),
        ("root", CHECK_ROOT, int),
        ("op", CHECK_OP, name_of_op),
        ("dtype", CHECK_DTYPE, name_of_dtype),
        ("count", CHECK_COUNT, int),
        ("memory order", CHECK_FORTRAN, "CF".__getitem__),
        ("memory", CHECK_MEMORY, MEMORY_NAMES.__getitem__),
    ):
        values = [name(words_of(check, r)[<int>word]) for r in range(nranks)]
        if len(set(values)) > 1:
            ranks = {value: [r for r in range(nranks) if values[r] == value] for value in values}
            differences.append(f"{title}: " + ", ".join(f"{value} on ranks {who}" for value, who in ranks.items()))
    if not differences:
        differences = unequal_pairs(check, nranks)
    return ValueError(f"{call} on rank {rank}: the ranks do not agree (HETCCL_CHECK). " + "; ".join(differences))


cdef list unequal_pairs(const Check* check, int nranks):
    pairs = [
        f"rank {a} sends {sent(check, a, b)} bytes to rank {b}, which expects {expected(check, nranks, a, b)}"
        for a in range(nranks) for b in range(nranks) if sent(check, a, b) != expected(check, nranks, a, b)
    ]
    more = len(pairs) - MOST_PAIRS
    return pairs[:MOST_PAIRS] + ([f"and {more} more pairs"] if more > 0 else [])


def name_of_op(code):
    return op_name(code)


def name_of_dtype(code):
    return None if code < 0 else dtype_name(code)
