"""The reductions."""

from collections.abc import Callable
from typing import Any

from mpi4py.MPI import Datatype

class Op:
    name: str
    factor: Any
    is_commutative: bool
    is_predefined: bool
    @classmethod
    def Create(
        cls, function: Callable[[memoryview, memoryview, Datatype | None], None], commute: bool = False
    ) -> Op: ...
    def Free(self) -> None: ...
    def Is_commutative(self) -> bool: ...

def premul_sum(factor: Any) -> Op: ...

SUM: Op
PROD: Op
MIN: Op
MAX: Op
AVG: Op
LAND: Op
LOR: Op
LXOR: Op
BAND: Op
BOR: Op
BXOR: Op
MINLOC: Op
MAXLOC: Op
