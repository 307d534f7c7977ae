"""Who is where: the records that a communicator shows."""

from dataclasses import dataclass
from typing import NamedTuple

@dataclass(frozen=True)
class Member:
    host: str
    machine: str
    pid: int
    started: int
    vendor: str
    runtime: str
    device: str
    pci: str
    label: str
    cpus: str
    @property
    def cores(self) -> frozenset[int]: ...
    def shares_memory(self, other: Member) -> bool: ...
    def as_dict(self) -> dict[str, str | int]: ...

class Island(NamedTuple):
    label: str
    vendor: str
    ranks: tuple[int, ...]
