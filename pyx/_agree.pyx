"""Layer L3: compares a call across ranks before it runs, when HETCCL_CHECK asks for it.

It uses the engine itself, so that it works on every transport. Called with the GIL and the collectives' lock held.
"""

from hetccl._buffer cimport dtype_name
from hetccl._op cimport op_name

from hetccl._executor import CALLS


cdef enum:
    ANY_CALL = 15


cdef int agree(Executor executor, Choice allgather, Signature* mine) except -1:
    cdef int size = executor.nranks
    everyone = bytearray(size * sizeof(Signature))
    cdef Signature* views = <Signature*><char*>everyone
    # Ranks in different collectives meet here.
    executor.label(ANY_CALL)
    executor.run(allgather.pick(sizeof(Signature)), mine.call, mine, views, sizeof(Signature), 1, NULL, 0)
    executor.label(mine.call)
    differences = []
    for title, values in (
        ("collective", [CALLS[views[r].call] for r in range(size)]),
        ("root", [views[r].root for r in range(size)]),
        ("op", [op_name(views[r].op) for r in range(size)]),
        ("dtype", [dtype_name(<int>views[r].dtype) for r in range(size)]),
        ("count", [views[r].count for r in range(size)]),
        ("memory order", ["F" if views[r].fortran else "C" for r in range(size)]),
    ):
        if len(set(values)) > 1:
            ranks = {value: [r for r in range(size) if values[r] == value] for value in values}
            differences.append(f"{title}: " + ", ".join(f"{value} on ranks {who}" for value, who in ranks.items()))
    if differences:
        raise ValueError(f"{CALLS[mine.call]} on rank {executor.rank}: the ranks do not agree (HETCCL_CHECK). "
                         + "; ".join(differences))
    return 0
