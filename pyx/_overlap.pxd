"""Whether parts of memory share a byte, and whether a datatype writes one twice. Layer L2, above _layout."""

from libc.stdint cimport int64_t

from hetccl._layout cimport Layout, Part

# Bytes that two of n parts share, and which two; 0 if all are apart. Of layouts, those of one run of each, and 0 too
# where neither loops nor OVERLAP_RUNS_MAX runs tell.
cdef int64_t parts_shared(const Part* parts, int n, int* first_p, int* second_p) except -1

# The same of one of `some` and one of `others`; parts of one side may share.
cdef int64_t parts_shared_across(
    const Part* some, int nsome, const Part* others, int nothers, int* some_p, int* other_p,
) except -1

# ValueError naming arg if `count` elements at ptr surely touch a byte twice: nothing may be received so.
cdef int part_check_writes(Layout layout, void* ptr, int64_t count, object arg) except -1
