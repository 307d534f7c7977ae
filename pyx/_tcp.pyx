"""Layer L2: rails over TCP, for peers that no RDMA device reaches.

The connections come from the connector, which has made them and proved both ends; here they get their options. A
communicator has one port, an epoll, for all its rails. See _rail for who holds the GIL and the mutex.
"""

import os
import socket

cimport cython
from libc.stdlib cimport calloc, free

from hetccl._rail cimport HETCCL_FAULT_SOCKET, HETCCL_FAULT_WIRE, Port, Rail, breach_text, hetccl_rail_t

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int getpid()

# An idle connection to a host that has vanished ends after 15 + 3 x 5 seconds.
cdef int KEEPALIVE_IDLE_S = 15
cdef int KEEPALIVE_EVERY_S = 5
cdef int KEEPALIVE_PROBES = 3
CARD_KEYS = {"transport", "version"}


cdef class TcpPort(Port):
    """The TCP connections of one communicator.

    timeout_s : how long sent bytes may stay unacknowledged by the peer's kernel, or its receive buffer full, before
                the connection counts as lost
    Raises    : OSError (no file descriptor left)
    """

    def __cinit__(self, double timeout_s=300):
        cdef int error
        self.owner_pid = getpid()
        self.timeout_s = timeout_s
        self.tcp = <hetccl_tcp_port_t*>calloc(1, sizeof(hetccl_tcp_port_t))
        if self.tcp == NULL:
            raise MemoryError("a port for TCP connections")
        error = hetccl_tcp_port_open(self.tcp)
        if error != 0:
            raise OSError(error, f"no epoll for TCP connections: {os.strerror(error)}")
        self.port = &self.tcp.base

    def rail(self, peer, index):
        return TcpRail(self, index)

    def close(self):
        """Raises: ValueError (a rail is not closed)."""
        if self.nrails > 0:
            raise ValueError(f"{self.nrails} rails of this port are not closed")
        self.port = NULL
        if self.tcp != NULL:
            hetccl_tcp_port_close(self.tcp)
            free(self.tcp)
            self.tcp = NULL

    def forget(self):
        if self.tcp != NULL:
            close(self.tcp.base.fd)
            self.tcp.base.fd = -1

    def __dealloc__(self):
        if self.tcp != NULL:
            hetccl_tcp_port_close(self.tcp)
            free(self.tcp)


# Its C struct uses the port's until its __dealloc__.
@cython.no_gc_clear
cdef class TcpRail(Rail):
    """Connections to one peer; see TcpPort.rail."""

    def __cinit__(self, TcpPort port, int index):
        if port.tcp == NULL:
            raise ValueError("the port is closed")
        self.where = "tcp, not connected"
        self.last_fault = ""
        self.tcp = <hetccl_tcp_rail_t*>calloc(1, sizeof(hetccl_tcp_rail_t))
        if self.tcp == NULL:
            raise MemoryError("a rail over TCP")
        self.port_ = port
        port.nrails += 1
        hetccl_tcp_rail_open(self.tcp, port.tcp, index)
        self.rail = &self.tcp.base

    def local(self):
        return {"transport": "tcp", "version": HETCCL_TCP_VERSION}

    def connect(self, remote, sockets=()):
        """sockets : 1 to 16 of them; both ends have the same ones, in any order."""
        cdef int fds[HETCCL_TCP_CONNECTIONS]
        cdef int count = 0, error
        opened = [socket.socket(fileno=fd) for fd in sockets]
        try:
            self._check(remote, len(opened))
            names = [_options(sock, self.port_.timeout_s) for sock in opened]
        except (OSError, ValueError):
            for sock in opened:
                sock.close()
            raise
        for sock in opened:
            fds[count] = sock.detach()
            count += 1
        self.where = f"tcp {names[0]}, {count} connection{'s' if count > 1 else ''}"
        error = hetccl_tcp_rail_connect(self.tcp, fds, count)
        if error != 0:
            raise OSError(error, f"a TCP connection cannot be watched: {os.strerror(error)}")

    def _check(self, remote, int nsockets):
        if self.rail == NULL or self.where != "tcp, not connected":
            raise ValueError("the rail is connected or closed already")
        if not isinstance(remote, dict) or set(remote) != CARD_KEYS or remote["transport"] != "tcp":
            raise ValueError(f"the peer's end of a tcp rail has exactly {sorted(CARD_KEYS)}, not {remote!r}")
        if remote["version"] != HETCCL_TCP_VERSION:
            raise ValueError(
                f"the peer speaks version {remote['version']!r} of the frames over TCP, this rank {HETCCL_TCP_VERSION}"
            )
        if not 1 <= nsockets <= HETCCL_TCP_CONNECTIONS:
            raise ValueError(f"a tcp rail has 1 to {HETCCL_TCP_CONNECTIONS} connections, not {nsockets}")

    def describe(self):
        return self.where

    def fault(self):
        return _words(self.rail) if self.rail != NULL else self.last_fault

    def counters(self):
        """{"sent", "received"}: bytes through the sockets, headers included."""
        if self.tcp == NULL:
            raise ValueError("the rail is closed")
        return {"sent": self.tcp.sent_nbytes, "received": self.tcp.received_nbytes}

    def close(self):
        if self.tcp != NULL:
            self.last_fault = _words(self.rail)
            self.release()

    def forget(self):
        if self.tcp != NULL:
            hetccl_tcp_rail_forget(self.tcp)

    cdef void release(self) noexcept:
        if getpid() == self.port_.owner_pid:
            hetccl_tcp_rail_close(self.tcp)
        else:
            hetccl_tcp_rail_forget(self.tcp)
        free(self.tcp)
        self.tcp = NULL
        self.rail = NULL
        self.port_.nrails -= 1

    def __dealloc__(self):
        if self.tcp != NULL:
            self.release()


cdef str _words(hetccl_rail_t* rail):
    if rail.fault.kind == HETCCL_FAULT_SOCKET:
        if rail.fault.code == 0:
            return "the peer closed the connection"
        return os.strerror(rail.fault.code)
    if rail.fault.kind == HETCCL_FAULT_WIRE:
        return breach_text(rail.fault.code)
    return ""


def _options(sock, timeout_s):
    """Set a connection's options. Returns "address -> address"."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return "socket pair"
    # Frames are gathered before they are sent, so that holding back short ones saves nothing. The buffers are left to
    # the kernel: setting a size switches its tuning to the connection's bandwidth and delay off.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    # It counts time with a full receive buffer too, and a rank that computes for long does not read: never less than
    # a wait may last.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(timeout_s * 1000), 2**31 - 1))
    return f"{_address(sock.getsockname())} -> {_address(sock.getpeername())}"


def _address(name):
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
