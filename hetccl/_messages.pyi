"""What a matched probe returns."""

from mpi4py.MPI import Status
from mpi4py.typing import BufSpec

from hetccl._request import Request
from hetccl.comm import Comm

class Message:
    def __bool__(self) -> bool: ...
    def Recv(self, buf: BufSpec, status: Status | None = None) -> None: ...
    def Irecv(self, buf: BufSpec) -> Request: ...
    @classmethod
    def Probe(
        cls, comm: Comm, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> Message: ...
    @classmethod
    def Iprobe(
        cls, comm: Comm, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> Message | None: ...
