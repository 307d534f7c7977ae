"""Layer L3: what a request does itself before or after the engine's part, on the user's thread, with the GIL.

User functions and scaled operands have no loop that the engine could run: the engine moves the operands.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from hetccl._calls cimport SEND
from hetccl._layout cimport hetccl_layout_copy
from hetccl._op cimport op_apply
from hetccl._request cimport request_new


cdef uint8_t* temporary(Request request, size_t nbytes) except NULL:
    # A bytes object's data are aligned for every dtype: malloc's 16 bytes, and a header of 32.
    memory = PyBytes_FromStringAndSize(NULL, nbytes)
    if request.kept is None:
        request.kept = []
    request.kept.append(memory)
    return <uint8_t*>PyBytes_AS_STRING(memory)


cdef class Scale(Task):
    """Multiply the operands of a premul_sum."""

    cdef int before(self) except -1:
        with nogil:
            self.scale(self.target, self.source, self.count, &self.factor[0])
        return 0


cdef class Fold(Task):
    """Reduce in rank order: ((x0 op x1) op x2) ..., so that the function need not commute."""

    cdef int after(self) except -1:
        cdef size_t nbytes = self.count * self.itemsize
        cdef uint8_t* total = self.operands
        cdef int _
        if self.noperands == 0 or nbytes == 0:
            return 0
        for _ in range(1, self.noperands):
            op_apply(self.op, total, total + nbytes, self.count, self.itemsize, self.dtype, self.datatype)
            total += nbytes
        memcpy(self.target, total, nbytes)
        return 0


cdef class Unpack(Task):
    """Put what arrived packed into its places."""

    cdef int after(self) except -1:
        with nogil:
            hetccl_layout_copy(self.layout, <uint8_t*>self.target, 0, NULL, self.source, 0, self.nbytes)
        return 0


cdef class Move(Task):
    """Copy before the engine starts (first), or when it is done."""

    cdef int before(self) except -1:
        return self.move() if self.first else 0

    cdef int after(self) except -1:
        return 0 if self.first else self.move()

    cdef int move(self) except -1:
        with nogil:
            hetccl_layout_copy(NULL, <uint8_t*>self.target, 0, self.layout, <const uint8_t*>self.source, 0, self.nbytes)
        return 0


cdef class Deliver(Task):
    """Send a copy at each start: whoever started it is done at once."""

    cdef int before(self) except -1:
        cdef Request request = request_new(Request, self.executor, self.membership, SEND)
        cdef Letter* letter = &request.letters[0]
        letter[0] = self.letter
        letter.ptr, letter.layout = temporary(request, self.letter.nbytes), NULL
        with nogil:
            hetccl_layout_copy(NULL, letter.ptr, 0, self.letter.layout, self.letter.ptr, 0, self.letter.nbytes)
        request.work.messages, request.work.nmessages = &request.messages[0], 1
        request.go()
        return 0
