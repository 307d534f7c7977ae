"""Which reductions a vendor's library has."""

from hetccl._launch cimport Launch
from hetccl._op cimport OpChoice

# Fill dtype, lanes, op, factor and identity. False: the library has no such reduction.
cdef bint launch_reduces(Launch* launch, int dtype, const OpChoice* choice, int nranks) noexcept nogil
