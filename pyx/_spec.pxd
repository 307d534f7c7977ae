"""mpi4py's vector specs -> the part of a buffer that each rank has. Layer L2, above _buffer; the GIL is held."""

from hetccl._buffer cimport Part, Span

# As span_of, and fills `parts` (the caller's array of nparts) with what belongs to each rank. span.count and .itemsize:
# elements of all parts together; span.ptr: where displacement 0 is. Parts that are to receive share no byte. Forms:
# array, [data, counts], [data, (counts, displs)], [data, datatype], [data, counts, datatype],
# [data, (counts, displs), datatype], [data, counts, displs, datatype]. On error nothing is held.
cdef int parts_of(object obj, Span* span, object arg, bint writable, int nparts, Part* parts) except -1

# Alltoallw's: [data, datatypes], [data, (counts, displs in bytes), datatypes], [data, counts, displs, datatypes]. The
# span is HETCCL_RAW bytes. owners: what must live as long as `parts` is appended to it.
cdef int parts_of_w(object obj, Span* span, object arg, bint writable, int nparts, Part* parts, list owners) except -1
