"""Whether parts of memory share a byte, and whether a datatype writes one twice.

Layer L2, called by _buffer and _spec with the GIL held. Columns of one array interleave and are apart all the same, so
that ranges do not tell. Parts are compared modulo the strides of their outer loops, from the outermost inwards:
residues that are apart prove that the parts are. What that leaves open is compared run by run, if not too many.
"""

from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc, qsort

from hetccl._layout cimport (
    Layout, Part, hetccl_layout_runs, hetccl_piece_range, hetccl_piece_t, iovec, layout_apart,
)

cdef enum:
    OVERLAP_RUNS_MAX = 16384  # a few milliseconds of sorting
    OWNER_EACH = -1           # every part is its own

ctypedef struct Reach:
    int64_t low, high            # addresses [low, high) that one pass of the loops entered so far may touch ...
    int64_t modulus              # ... and that plus multiples of this, by all passes; 0: no loop has been entered
    int64_t begin, end           # what is compared: low and high, or residues
    int64_t at                   # address that the piece's offset counts from
    int64_t count                # iterations of the piece
    const hetccl_piece_t* piece  # the next loop; NULL: there is none
    const Part* part
    int owner                    # parts of one owner may share bytes

ctypedef struct Run:
    uintptr_t low, high
    const Part* part
    int owner

ctypedef struct Found:
    const Part* first
    const Part* second


cdef int64_t parts_shared(const Part* parts, int n, int* first_p, int* second_p) except -1:
    cdef Reach[2] pair
    cdef Reach* reaches = pair
    cdef Found found
    cdef int64_t shared
    if n > 2:
        reaches = <Reach*> malloc(n * sizeof(Reach))
        if reaches == NULL:
            raise MemoryError()
    shared = reaches_shared(reaches, reaches_fill(reaches, parts, n, OWNER_EACH), &found)
    if n > 2:
        free(reaches)
    if shared < 0:
        raise MemoryError()
    if shared:
        first_p[0] = <int> (min(found.first, found.second) - parts)
        second_p[0] = <int> (max(found.first, found.second) - parts)
    return shared


cdef int64_t parts_shared_across(
    const Part* some, int nsome, const Part* others, int nothers, int* some_p, int* other_p,
) except -1:
    cdef Found found
    cdef int64_t shared
    cdef int n
    cdef Reach* reaches = <Reach*> malloc((nsome + nothers) * sizeof(Reach))
    if reaches == NULL:
        raise MemoryError()
    n = reaches_fill(reaches, some, nsome, 0)
    n += reaches_fill(reaches + n, others, nothers, 1)
    shared = reaches_shared(reaches, n, &found)
    free(reaches)
    if shared < 0:
        raise MemoryError()
    if shared:
        if not some <= found.first < some + nsome:
            found.first, found.second = found.second, found.first
        some_p[0] = <int> (found.first - some)
        other_p[0] = <int> (found.second - others)
    return shared


cdef int part_check_writes(Layout layout, void* ptr, int64_t count, object arg) except -1:
    cdef Part part = Part(<uint8_t*> ptr, count * layout.tree.size, &layout.tree)
    cdef Reach reach
    cdef Found found
    cdef int64_t shared
    if layout_apart(layout, count):
        return 0
    shared = runs_shared(&reach, reaches_fill(&reach, &part, 1, OWNER_EACH), True, &found)
    if shared < 0:
        raise MemoryError()
    if shared:
        raise ValueError(f"{arg}: {count} elements of the datatype lie over each other, and nothing can be received so")
    layout.apart = count
    return 0


cdef int reaches_fill(Reach* reaches, const Part* parts, int n, int owner) noexcept nogil:
    """One of each part that is not empty; returns how many. owner: of all of them, or OWNER_EACH."""
    cdef int i, used = 0
    cdef Reach* reach
    for i in range(n):
        if parts[i].nbytes == 0:
            continue
        reach = &reaches[used]
        used += 1
        reach.part = &parts[i]
        reach.owner = i if owner == OWNER_EACH else owner
        reach.at = <int64_t> parts[i].ptr
        reach.modulus = 0
        if parts[i].layout == NULL:
            reach.piece = NULL
            reach.low = reach.at
            reach.high = reach.at + parts[i].nbytes
        else:
            reach.piece = &parts[i].layout.root
            reach.count = parts[i].nbytes // reach.piece.run
            hetccl_piece_range(reach.piece, reach.count, &reach.low, &reach.high)
            reach.low += reach.at
            reach.high += reach.at
    return used


cdef int64_t gcd(int64_t a, int64_t b) noexcept nogil:
    while b:
        a, b = b, a % b
    return a if a >= 0 else -a


cdef int64_t reaches_shared(Reach* reaches, int n, Found* found) noexcept nogil:
    """Bytes that two of the parts share, as parts_shared, or -1 for no memory. Reorders them."""
    cdef int i, begin = 0
    cdef int64_t modulus = 0, end, shared
    for i in range(1, n):
        if reaches[i].owner != reaches[0].owner:
            break
    else:
        return 0
    for i in range(n):
        modulus = gcd(modulus, reaches[i].modulus)
    if not reaches_place(reaches, n, modulus):
        return reaches_descend(reaches, n, found)
    end = reaches[0].end
    for i in range(1, n + 1):  # groups whose ranges hang together
        if i == n or reaches[i].begin >= end:
            shared = reaches_descend(reaches + begin, i - begin, found) if i - begin > 1 else 0
            if shared:
                return shared
            begin = i
        if i < n:
            end = max(end, reaches[i].end)
    return 0


cdef int64_t reaches_descend(Reach* reaches, int n, Found* found) noexcept nogil:
    """Go one loop further in, with those that have one; without any, look at the runs."""
    cdef int i
    cdef bint moved = False
    for i in range(n):
        if reaches[i].piece != NULL:
            moved = True
            reach_enter(&reaches[i])
    return reaches_shared(reaches, n, found) if moved else runs_shared(reaches, n, False, found)


cdef void reach_enter(Reach* reach) noexcept nogil:
    cdef const hetccl_piece_t* piece = reach.piece
    if reach.count > 1:
        reach.modulus = gcd(reach.modulus, piece.stride)
    reach.at += piece.offset
    reach.low = reach.at + piece.lowest
    reach.high = reach.at + piece.highest
    reach.piece = NULL
    if piece.nparts == 1:
        reach.piece = piece.parts
        reach.count = reach.piece.count


cdef bint reaches_place(Reach* reaches, int n, int64_t modulus) noexcept nogil:
    """Sort by residues, counted from where none of them lies across; False if there is no such place."""
    cdef int i
    cdef int64_t end = 0, past = 0
    for i in range(n):
        reaches[i].begin = (reaches[i].low % modulus + modulus) % modulus if modulus else reaches[i].low
        reaches[i].end = reaches[i].begin + reaches[i].high - reaches[i].low
    qsort(reaches, n, sizeof(Reach), &reach_order)
    if modulus == 0:
        return True
    for i in range(n):
        past = max(past, reaches[i].end - modulus)
    for i in range(n):
        if reaches[i].begin >= max(end, past):
            break
        end = max(end, reaches[i].end)
    else:
        return False
    cdef int64_t origin = reaches[i].begin
    for i in range(n):
        if reaches[i].begin < origin:
            reaches[i].begin += modulus
            reaches[i].end += modulus
    qsort(reaches, n, sizeof(Reach), &reach_order)
    return True


cdef int reach_order(const void* a, const void* b) noexcept nogil:
    cdef int64_t begin_a = (<const Reach*> a).begin, begin_b = (<const Reach*> b).begin
    return (begin_a > begin_b) - (begin_a < begin_b)


cdef int run_order(const void* a, const void* b) noexcept nogil:
    cdef uintptr_t low_a = (<const Run*> a).low, low_b = (<const Run*> b).low
    return (low_a > low_b) - (low_a < low_b)


cdef int64_t runs_shared(const Reach* reaches, int n, bint alone, Found* found) noexcept nogil:
    """Compare the runs of the parts, or of one part alone. Returns bytes; 0 for too many runs, -1 for no memory."""
    cdef int64_t most = max(n, OVERLAP_RUNS_MAX), used = 0, shared = 0
    cdef iovec* listed = <iovec*> malloc(most * sizeof(iovec))
    cdef Run* runs = <Run*> malloc(most * sizeof(Run))
    if listed == NULL or runs == NULL:
        free(listed)
        free(runs)
        return -1
    used = runs_list(reaches, n, listed, runs, most)
    if used > 0:
        qsort(runs, used, sizeof(Run), &run_order)
        shared = runs_sweep(runs, used, alone, found)
    free(listed)
    free(runs)
    return shared


cdef int64_t runs_list(const Reach* reaches, int n, iovec* listed, Run* runs, int64_t most) noexcept nogil:
    """How many runs the parts have; 0 if more than `most`."""
    cdef int i, k, got
    cdef int64_t used = 0, nbytes
    cdef const Part* part
    for i in range(n):
        part = reaches[i].part
        got = 1
        listed[0].iov_base = part.ptr
        listed[0].iov_len = part.nbytes
        if part.layout != NULL:
            got = hetccl_layout_runs(part.layout, part.ptr, 0, part.nbytes, listed, <int> (most - used))
        nbytes = 0
        for k in range(got):
            nbytes += listed[k].iov_len
        if nbytes < part.nbytes or used + got > most:
            return 0
        for k in range(got):
            runs[used].low = <uintptr_t> listed[k].iov_base
            runs[used].high = runs[used].low + listed[k].iov_len
            runs[used].part = part
            runs[used].owner = reaches[i].owner
            used += 1
    return used


cdef int64_t runs_sweep(const Run* runs, int64_t n, bint alone, Found* found) noexcept nogil:
    """Bytes that a run shares with an earlier one of another owner, or of any if alone."""
    cdef int64_t i
    cdef const Run* furthest = &runs[0]  # of all so far, the one that ends last
    cdef const Run* other = NULL         # the same of the owners that are not furthest's
    cdef const Run* hit
    for i in range(1, n):
        hit = furthest if alone or furthest.owner != runs[i].owner else other
        if hit != NULL and runs[i].low < hit.high:
            found.first = hit.part
            found.second = runs[i].part
            return min(runs[i].high, hit.high) - runs[i].low
        if runs[i].high > furthest.high:
            if runs[i].owner != furthest.owner:
                other = furthest
            furthest = &runs[i]
        elif runs[i].owner != furthest.owner and (other == NULL or runs[i].high > other.high):
            other = &runs[i]
    return 0
