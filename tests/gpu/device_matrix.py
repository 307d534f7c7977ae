"""Run the device matrix on any library's arrays: `run` is the whole of it, for programs that prepare the rest."""

import traceback

import device_arrays
import numpy as np
from device_cases import cases
from prog_exact import call, prepare, verdict
from support import Report, make_comm

import hetccl


class Way:
    """A communicator whose collectives are nonblocking ("request"), persistent or inside a group, and waited for."""

    def __init__(self, comm, way):
        self.comm, self.way = comm, way

    def __getattr__(self, name):
        if name.startswith("Get_"):
            return getattr(self.comm, name)
        return lambda *args, **keywords: getattr(self, self.way)(name, *args, **keywords)

    def call(self, name, *args, **keywords):
        getattr(self.comm, name)(*args, **keywords)

    def request(self, name, *args, **keywords):
        getattr(self.comm, "I" + name.lower())(*args, **keywords).Wait()

    def persistent(self, name, *args, **keywords):
        request = getattr(self.comm, name + "_init")(*args, **keywords)
        request.Start()
        request.Wait()
        request.Free()

    def group(self, name, *args, **keywords):
        with self.comm.group():
            getattr(self.comm, name)(*args, **keywords)


def problem_of(comm, library, case, shift):
    """Run one case; None or what is wrong with it on this rank."""
    hosts = prepare(case, comm.Get_size(), comm.Get_rank(), shift)
    send, receive = (None if host is None else device_arrays.Guarded(library, host) for host in hosts)
    call(Way(comm, case.way), case, send, receive)
    fetched = [None if buffer is None else buffer.fetch() for buffer in (send, receive)]
    return verdict(comm, case, shift, *fetched)


def run(folder, library, scope, wanted="", cases=cases):
    """Run every case whose name contains `wanted` on a communicator of its own; one line of the report for each.

    folder  : where the report goes
    library : an object of device_arrays, or as one
    cases   : function: ranks, scope, name of the library -> cases
    """
    report = Report(folder)
    comm = make_comm()
    name = type(library).__name__.lower()
    with np.errstate(all="ignore"):
        for number, case in enumerate(cases(comm.Get_size(), scope, name)):
            if wanted not in str(case):
                continue
            try:
                problem = problem_of(comm, library, case, shift=number % 2)
            except hetccl.HetcclError:
                # The communicator is of no more use; cases that did not run count as failed.
                report.write(case=str(case), problem=traceback.format_exc())
                break
            except (BufferError, TypeError, ValueError):
                problem = traceback.format_exc()
            report.write(case=str(case), problem=problem)
    comm.Free()
    report.write(end=True)
