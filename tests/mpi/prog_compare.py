"""Run the cases that pytest sends with mpi4py and with hetccl; arguments: <report folder> <layout> <socket> <subject>.

Every rank holds a connection to pytest: a line is a case, the answer says what is wrong with it on this rank. Subject
"mpi4py" compares mpi4py with itself, and "faulty" with one that sometimes does wrong: what the harness finds there are
its own faults, and what it must find.
"""

import json
import socket
import sys
import traceback

import numpy as np
from compare_case import Collective, Messages, Refused, Shift, Together, load
from compare_messages import run_messages, run_refused, run_shift
from compare_run import MPI_CONSTANTS, Library, Mismatch, run_collective, run_together
from mpi4py import MPI

import hetccl

RUNNERS = {
    Collective: run_collective,
    Together: run_together,
    Messages: run_messages,
    Shift: run_shift,
    Refused: run_refused,
}
OPS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC")
# Room for what MPI's buffered sends have under way.
BUFFERED_BYTES = 64 << 20


def affine(invec, inoutvec, datatype):
    """(a, b) op (c, d) = (a c, a d + b), in pairs of 32 bits: maps x -> a x + b, one after the other."""
    left, right = (np.frombuffer(memory, np.uint32).reshape(-1, 2) for memory in (invec, inoutvec))
    right[:, 1] = left[:, 0] * right[:, 1] + left[:, 1]
    right[:, 0] *= left[:, 0]


def modular(invec, inoutvec, datatype):
    """Sum modulo a prime."""
    left, right = np.frombuffer(invec, np.uint64), np.frombuffer(inoutvec, np.uint64)
    prime = np.uint64(2**61 - 1)
    right[:] = (left % prime + right % prime) % prime


class Faulty(MPI.Intracomm):
    """mpi4py's communicator with planted faults."""

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        super().Allreduce(sendbuf, recvbuf, op)
        array = recvbuf if isinstance(recvbuf, np.ndarray) else recvbuf[0]
        if array.size and self.rank == self.size - 1:
            array.view(np.uint8)[-1] ^= 1

    def Recv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        super().Recv(buf, source, tag, status)
        status.Set_tag(9)


def communicators(world, freed):
    size, rank = world.Get_size(), world.Get_rank()
    made = {"world": world, "dup": world.Dup(), "reversed": world.Split(0, size - rank)}
    freed += made.values()
    return made


def libraries(subject, freed):
    """(mpi4py, the library under test)"""
    created = {"AFFINE": MPI.Op.Create(affine, False), "MODULAR": MPI.Op.Create(modular, True)}
    ops = {**{name: getattr(MPI, name) for name in OPS}, **created}
    MPI_CONSTANTS.update(ops=ops, in_place=MPI.IN_PLACE)
    theirs = Library(communicators(MPI.COMM_WORLD.Dup(), freed), MPI.Request, ops, MPI.IN_PLACE)
    if subject != "hetccl":
        world = MPI.COMM_WORLD.Dup()
        comms = communicators(Faulty(world) if subject == "faulty" else world, freed)
        return theirs, Library(comms, MPI.Request, ops, MPI.IN_PLACE)
    own = {"AFFINE": hetccl.Op.Create(affine, commute=False), "MODULAR": hetccl.Op.Create(modular, commute=True)}
    ops = {**{name: getattr(hetccl, name) for name in OPS}, **own}
    comms = communicators(hetccl.Comm(MPI.COMM_WORLD), freed)
    return theirs, Library(comms, hetccl.Request, ops, hetccl.IN_PLACE, (BufferError, TypeError, ValueError))


def answer(theirs, ours, line, rank, size):
    """{} if all is well, else what is wrong and whether the communicator may be used on; "all": if all ranks say so."""
    case = load(line)
    place = size - 1 - rank if getattr(case, "comm", "world") == "reversed" else rank
    try:
        RUNNERS[type(case)](theirs, ours, case, place, size)
    except Mismatch as problem:
        return {"problem": str(problem), "usable": problem.usable}
    except (BufferError, TypeError, ValueError, AttributeError, NotImplementedError, MPI.Exception) as error:
        early = type(case) in (Collective, Refused) and not isinstance(error, hetccl.HetcclError)
        return {"problem": traceback.format_exc(), "usable": "all" if early else False}
    except BaseException:
        return {"problem": traceback.format_exc(), "usable": False}
    return {}


def main():
    path, subject = sys.argv[3], sys.argv[4]
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    MPI.Attach_buffer(bytearray(BUFFERED_BYTES))
    freed = []
    theirs, ours = libraries(subject, freed)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with connection, connection.makefile("rw") as lines:
        lines.write(f"{rank}\n")
        lines.flush()
        with np.errstate(all="ignore"):
            for line in lines:
                lines.write(json.dumps(answer(theirs, ours, line, rank, size)) + "\n")
                lines.flush()
    for comm in reversed(freed):
        comm.Free()
    MPI.Detach_buffer()


main()
