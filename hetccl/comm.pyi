"""The communicator. Arguments have mpi4py's types, whose aliases are used here."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal

from mpi4py import typing as mpi4py_typing
from mpi4py.MPI import Comm as MPIComm
from mpi4py.MPI import Group, Intracomm, Status
from mpi4py.MPI import Op as MPIOp
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW

from hetccl import _buffer
from hetccl._messages import Message
from hetccl._op import Op
from hetccl._placement import Registration
from hetccl._request import Prequest, Request
from hetccl.topology import Island, Member

AnyOp = Op | MPIOp
InPlace = _buffer.InPlace | mpi4py_typing.InPlace

class _CallableGroup(Group):
    def __call__(self) -> AbstractContextManager[object]: ...

class Comm:
    rank: int
    size: int
    islands: tuple[Island, ...]
    members: tuple[Member, ...]
    mpi: Intracomm
    def __new__(cls, comm: Intracomm, *, device: int | None = None) -> Comm: ...
    def __enter__(self) -> Comm: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def group(self) -> _CallableGroup: ...
    @property
    def name(self) -> str: ...
    @name.setter
    def name(self, value: str) -> None: ...
    def Get_rank(self) -> int: ...
    def Get_size(self) -> int: ...
    def Free(self) -> None: ...
    def supports(self, name: str) -> bool: ...
    def register(self, array: object) -> Registration: ...
    def Dup(self, info: object = None) -> Comm: ...
    def Dup_with_info(self, info: object) -> Comm: ...
    def Clone(self) -> Comm: ...
    def Compare(self, other: Comm | MPIComm) -> int: ...
    def Split(self, color: int = 0, key: int = 0) -> CommOrNull: ...
    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> CommOrNull: ...
    def Create(self, group: Group) -> CommOrNull: ...
    def Create_group(self, group: Group, tag: int = 0) -> CommOrNull: ...
    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None
    ) -> None: ...
    def Reduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: AnyOp = ...,
        root: int = 0,
        *,
        stream: object = None,
    ) -> None: ...
    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: AnyOp = ..., *, stream: object = None
    ) -> None: ...
    def Reduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = ...,
        *,
        stream: object = None,
    ) -> None: ...
    def Scan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None) -> None: ...
    def Exscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None
    ) -> None: ...
    def Bcast(self, buf: BufSpec, root: int = 0, *, stream: object = None) -> None: ...
    def Gather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, stream: object = None
    ) -> None: ...
    def Gatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, stream: object = None
    ) -> None: ...
    def Scatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, stream: object = None
    ) -> None: ...
    def Scatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, stream: object = None
    ) -> None: ...
    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, stream: object = None) -> None: ...
    def Allgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, stream: object = None) -> None: ...
    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, stream: object = None) -> None: ...
    def Alltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, stream: object = None) -> None: ...
    def Alltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, stream: object = None) -> None: ...
    def Barrier(self) -> None: ...
    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None
    ) -> Request: ...
    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: AnyOp = ...,
        root: int = 0,
        *,
        stream: object = None,
    ) -> Request: ...
    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: AnyOp = ..., *, stream: object = None
    ) -> Request: ...
    def Ireduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = ...,
        *,
        stream: object = None,
    ) -> Request: ...
    def Iscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None
    ) -> Request: ...
    def Iexscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: AnyOp = ..., *, stream: object = None
    ) -> Request: ...
    def Ibcast(self, buf: BufSpec, root: int = 0, *, stream: object = None) -> Request: ...
    def Igather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, stream: object = None
    ) -> Request: ...
    def Igatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, stream: object = None
    ) -> Request: ...
    def Iscatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, stream: object = None
    ) -> Request: ...
    def Iscatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, stream: object = None
    ) -> Request: ...
    def Iallgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, stream: object = None) -> Request: ...
    def Iallgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, stream: object = None) -> Request: ...
    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, stream: object = None) -> Request: ...
    def Ialltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, stream: object = None) -> Request: ...
    def Ialltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, stream: object = None) -> Request: ...
    def Ibarrier(self) -> Request: ...
    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: AnyOp = ...,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Reduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: AnyOp = ...,
        root: int = 0,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Reduce_scatter_block_init(
        self,
        sendbuf: BufSpecB | InPlace,
        recvbuf: BufSpec | BufSpecB,
        op: AnyOp = ...,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Reduce_scatter_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = ...,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Scan_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: AnyOp = ...,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Exscan_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: AnyOp = ...,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Bcast_init(self, buf: BufSpec, root: int = 0, info: object = None, *, stream: object = None) -> Prequest: ...
    def Gather_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecB | None,
        root: int = 0,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Gatherv_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecV | None,
        root: int = 0,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Scatter_init(
        self,
        sendbuf: BufSpecB | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Scatterv_init(
        self,
        sendbuf: BufSpecV | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
        info: object = None,
        *,
        stream: object = None,
    ) -> Prequest: ...
    def Allgather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: object = None, *, stream: object = None
    ) -> Prequest: ...
    def Allgatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: object = None, *, stream: object = None
    ) -> Prequest: ...
    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: object = None, *, stream: object = None
    ) -> Prequest: ...
    def Alltoallv_init(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: object = None, *, stream: object = None
    ) -> Prequest: ...
    def Alltoallw_init(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, info: object = None, *, stream: object = None
    ) -> Prequest: ...
    def Barrier_init(self, info: object = None) -> Prequest: ...
    def Send(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> None: ...
    def Ssend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> None: ...
    def Bsend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> None: ...
    def Rsend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> None: ...
    def Isend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Request: ...
    def Issend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Request: ...
    def Ibsend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Request: ...
    def Irsend(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Request: ...
    def Send_init(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Prequest: ...
    def Ssend_init(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Prequest: ...
    def Bsend_init(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Prequest: ...
    def Rsend_init(self, buf: BufSpec, dest: int, tag: int = 0, *, stream: object = None) -> Prequest: ...
    def Recv(
        self,
        buf: BufSpec,
        source: int | None = None,
        tag: int | None = None,
        status: Status | None = None,
        *,
        stream: object = None,
    ) -> None: ...
    def Irecv(
        self, buf: BufSpec, source: int | None = None, tag: int | None = None, *, stream: object = None
    ) -> Request: ...
    def Recv_init(
        self, buf: BufSpec, source: int | None = None, tag: int | None = None, *, stream: object = None
    ) -> Prequest: ...
    def Sendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int | None = None,
        recvtag: int | None = None,
        status: Status | None = None,
        *,
        stream: object = None,
    ) -> None: ...
    def Isendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int | None = None,
        recvtag: int | None = None,
        *,
        stream: object = None,
    ) -> Request: ...
    def Sendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int | None = None,
        recvtag: int | None = None,
        status: Status | None = None,
        *,
        stream: object = None,
    ) -> None: ...
    def Isendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int | None = None,
        recvtag: int | None = None,
        *,
        stream: object = None,
    ) -> Request: ...
    def Probe(
        self, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> Literal[True]: ...
    def Iprobe(self, source: int | None = None, tag: int | None = None, status: Status | None = None) -> bool: ...
    def Mprobe(self, source: int | None = None, tag: int | None = None, status: Status | None = None) -> Message: ...
    def Improbe(
        self, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> Message | None: ...

# Where mpi4py gives COMM_NULL, so does hetccl; Any, so that the usual case needs no cast.
CommOrNull = Comm | Any
