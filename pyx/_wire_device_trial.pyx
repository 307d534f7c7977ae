"""Layer L2: messages of a wire whose memory may be a GPU's, one step at a time: the unit tests' entry to
include/hetccl/wire_device.h. Not used else.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from libc.string cimport memset

from hetccl._runtime cimport Runtime
from hetccl._shm cimport (
    HETCCL_DONE, HETCCL_MOVED, HETCCL_MSG_ALL_DEVICES, HETCCL_MSG_POSTED, HETCCL_MSG_SYNC, POINT_TO_POINT, Segment,
    hetccl_aside_t, hetccl_header_t, hetccl_msg_t, hetccl_shm_transport,
)
from hetccl._wire cimport Wire
from hetccl._wire_peer cimport hetccl_wire_transport


cdef class Message:
    """A message of a wire's link. memory: writable buffer; or None, and the GPU's at `address`, of a runtime.

    cls : 0 collective, 1 point to point
    """

    cdef hetccl_msg_t msg
    cdef hetccl_aside_t aside
    cdef Wire wire
    cdef object owner
    cdef void* link
    cdef bint receive, is_aside

    def __init__(self, Wire wire not None, int peer, bint receive, int cls, uint32_t tag, memory, *,
                 Runtime runtime=None, uintptr_t address=0, nbytes=None, bint sync=False, bint all_devices=False):
        cdef uint8_t[::1] view
        self.wire, self.receive, self.owner = wire, receive, (memory, runtime)
        self.link = wire.link(cls, receive, peer)
        if memory is not None:
            view = memory
            self.msg.ptr = &view[0] if view.shape[0] > 0 else NULL
        if runtime is not None:
            self.msg.device.runtime, self.msg.device.address = runtime.table, address
        self.msg.nbytes, self.msg.tag = len(memory) if nbytes is None else nbytes, tag
        self.msg.flags = (HETCCL_MSG_SYNC if sync else 0) | (HETCCL_MSG_ALL_DEVICES if all_devices else 0)

    def advance(self):
        """The link's answer."""
        cdef int status
        with nogil:
            self.wire.lock()
            if not self.receive:
                status = hetccl_wire_transport.send(self.link, &self.msg)
            elif self.is_aside:
                status = hetccl_wire_transport.recv_aside(self.link, &self.aside, &self.msg)
            else:
                status = hetccl_wire_transport.recv(self.link, &self.msg)
            self.wire.unlock()
        return status

    def available(self):
        with nogil:
            self.wire.lock()
            status = hetccl_wire_transport.available(self.link, &self.msg)
            self.wire.unlock()
        return status

    def set_aside(self):
        """Take the message at the head of the link out for this one: whether there was one."""
        cdef hetccl_header_t header
        cdef uint8_t[::1] view
        if hetccl_wire_transport.peek(self.link, &header) != HETCCL_DONE:
            return False
        memset(&self.aside, 0, sizeof(self.aside))
        held = bytearray(max(header.hold_nbytes, 1))
        view = held
        self.owner, self.aside.buffer, self.is_aside = (self.owner, held), &view[0], True
        return hetccl_wire_transport.set_aside(self.link, &self.aside) == HETCCL_DONE

    @property
    def posted(self):
        return self.msg.state == HETCCL_MSG_POSTED

    @property
    def why(self):
        """After HETCCL_EDIRECT: enum hetccl_direct."""
        return self.msg.error


def shm_answers(Segment segment not None, int peer, Runtime runtime, uintptr_t address, size_t nbytes):
    """What links of shared memory answer to a message in a GPU's memory: [(status, why)] of all that can be asked."""
    cdef hetccl_msg_t msg
    cdef hetccl_aside_t aside
    cdef void* links[2]
    links[0], links[1] = segment.link(POINT_TO_POINT, False, peer), segment.link(POINT_TO_POINT, True, peer)
    memset(&aside, 0, sizeof(aside))
    answers = []
    for ask in range(4):
        memset(&msg, 0, sizeof(msg))
        msg.device.runtime, msg.device.address, msg.nbytes = runtime.table, address, nbytes
        if ask == 0:
            status = hetccl_shm_transport.send(links[0], &msg)
        elif ask == 1:
            status = hetccl_shm_transport.recv(links[1], &msg)
        elif ask == 2:
            status = <int>hetccl_shm_transport.available(links[1], &msg)
        else:
            status = hetccl_shm_transport.recv_aside(links[1], &aside, &msg)
        answers.append((status, msg.error))
    return answers


def poll(Wire wire not None):
    """Whether anything moved."""
    with nogil:
        wire.lock()
        status = wire.poll()
        wire.unlock()
    return status == HETCCL_MOVED


def quiet(Wire wire not None):
    """As an engine whose communicator breaks."""
    with nogil:
        wire.lock()
        wire.quiet()
        wire.unlock()
