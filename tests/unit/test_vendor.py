"""Communicators of a vendor's CCL: their life and their waits, on the fake NCCL and the fake CUDA driver."""

import signal

import pytest
from vendor_ranks import run, start

# NCCL's communicators are told to block, but oneCCL's do not.
NONBLOCKING = {"FAKE_CCL_NONBLOCKING": "1"}
HANGS = {**NONBLOCKING, "FAKE_CCL_HANG": "ncclAllReduce"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_life(tmp_path, size):
    body = """
    comm = join()
    send, recv = np.arange(5, dtype="f4") * (rank + 1), np.zeros(5, "f4")
    all_reduce(comm, send, recv)
    assert recv.tolist() == [i * size * (size + 1) / 2 for i in range(5)]
    assert (comm.rank, comm.nranks, comm.device, comm.float8) == (rank, size, rank, "ocp")
    comm.close()
    comm.close()
    assert comm.address == 0 and live() == 0
    assert type(caught(comm.check, "Bcast")) is CommClosed
    """
    run(tmp_path, size, body)


def test_many_lives(tmp_path):
    """A thousand communicators leave no descriptor, thread, mapping or communicator behind."""
    body = """
    def held():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task", "map_files")]
    ccl, runtime = open_ccl(), open_runtime()
    pids = [(1 - rank, pid) for pid in [gather(os.getpid())[1 - rank]]]
    for i in range(1000):
        if i == 100:
            before = held()
        ids = ccl.unique_id()
        VendorComm(ccl, runtime, 0, 1, 0, ids, 5.0, pids).close()
    assert live() == 0
    # A thread that has destroyed a communicator may still be leaving.
    until = time.monotonic() + 60
    while (after := held())[1] > before[1] and time.monotonic() < until:
        time.sleep(0.01)
    assert after[0] == before[0] and after[1] <= before[1] and after[2] <= before[2] + 3, (before, after)
    gather(None)
    """
    run(tmp_path, 2, body)


def test_late_rank_at_init(tmp_path):
    body = """
    ccl = open_ccl()
    unique_id = gather(ccl.unique_id() if rank == 0 else None)[0]
    if rank == 0:
        began = time.monotonic()
        error = caught(VendorComm, ccl, open_runtime(), 0, 2, 0, unique_id, 1.0)
        assert type(error) is CommTimeout and error.call == "Comm", error
        assert 0.9 < time.monotonic() - began < 30
    gather(None)
    """
    run(tmp_path, 2, body)


@pytest.mark.parametrize("blocking", [True, False])
def test_init_hangs(tmp_path, blocking):
    """What is still inside the library is left behind."""
    body = """
    error = caught(join, 1.0)
    assert type(error) is CommTimeout and error.call == "Comm"
    gather(None)
    """
    run(tmp_path, 2, body, env={"FAKE_CCL_HANG": "ncclCommInitRankConfig", **({} if blocking else NONBLOCKING)})


def test_init_fails(tmp_path):
    body = """
    error = caught(join)
    assert type(error) is NcclError and error.code == 3 and live() == 0
    gather(None)
    """
    run(tmp_path, 2, body, env={"FAKE_CCL_FAIL": "ncclCommInitRankConfig=3"})


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("0, 2, 2, bytes(128), 1.0", "rank"),
        ("0, 2, -1, bytes(128), 1.0", "rank"),
        ("0, 2, 0, bytes(127), 1.0", "unique_id"),
    ],
)
def test_bad_arguments(tmp_path, arguments, words):
    body = f"""
    error = caught(VendorComm, open_ccl(), open_runtime(), {arguments})
    assert type(error) is ValueError and {words!r} in str(error), error
    assert type(caught(VendorComm)) is TypeError
    """
    run(tmp_path, 1, body)


def test_bad_device(tmp_path):
    body = """
    error = caught(VendorComm, open_ccl(), open_runtime(), 99, 1, 0, bytes(128), 1.0)
    assert type(error) is GpuError and live() == 0
    """
    run(tmp_path, 1, body)


def test_waits_for_first_call(tmp_path):
    """A call may answer that it is in progress; the library takes no other meanwhile."""
    body = """
    comm = join()
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    code = library().ncclAllReduce(native(x), native(y), native(3), 7, 0, native(comm.address), None)
    assert code == 7
    error = caught(all_reduce, comm, x, y)
    assert type(error) is NcclError and error.code == 5
    comm.wait(code, "Allreduce", "all_reduce")
    all_reduce(comm, x, y)
    assert y.tolist() == [size] * 3
    comm.close()
    """
    run(tmp_path, 2, body, env=NONBLOCKING)


@pytest.mark.parametrize("function", ["ncclAllReduce", "ncclCommFinalize", "ncclCommDestroy"])
def test_hang_becomes_timeout(tmp_path, function):
    body = f"""
    comm = join()
    comm.timeout_s = 1.0
    x = np.ones(3, "f4")
    began = time.monotonic()
    error = caught(all_reduce, comm, x, x) if {function!r} == "ncclAllReduce" else caught(comm.close)
    assert type(error) is CommTimeout, error
    assert 0.9 < time.monotonic() - began < 30
    assert type(caught(comm.check, "Bcast")) is CommClosed
    comm.close()
    assert live() == (1 if {function!r} == "ncclCommDestroy" else 0)
    """
    run(tmp_path, 2, body, env={**HANGS, "FAKE_CCL_HANG": function})


def test_a_blocking_call_that_hangs(tmp_path):
    """What stays inside the library for longer than the time-out is ended by the watch."""
    body = """
    comm = join()
    comm.timeout_s = 1.0
    began = time.monotonic()
    comm.close()
    assert time.monotonic() - began < 30 and live() == 0
    """
    run(tmp_path, 1, body, env={"FAKE_CCL_HANG": "ncclCommFinalize"})


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_signal_ends_wait(tmp_path, signal_name):
    body = """
    class Ended(BaseException):
        pass
    def end(*_):
        raise Ended
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    comm = join()
    error = while_waiting(comm, lambda: print("waits"))
    assert type(error) in (KeyboardInterrupt, Ended), repr(error)
    print(type(error).__name__)
    assert live() == 0 and type(caught(comm.check, "Bcast")) is CommClosed
    """
    expected = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "Ended"}[signal_name]
    with start(tmp_path, 1, body, env=HANGS) as ranks:
        ranks.await_line(0, "waits")
        ranks.processes[0].send_signal(getattr(signal, signal_name))
        assert ranks.wait() == [0], ranks.texts("err")
        assert ranks.texts("out")[0].split() == ["waits", expected]


def test_gil_is_free_while_waiting(tmp_path):
    body = """
    comm = join()
    comm.timeout_s = 30.0
    def tick():
        for _ in range(20):
            time.sleep(0.01)
        comm.abort()
    error = while_waiting(comm, tick)
    assert type(error) is CommClosed, repr(error)
    """
    run(tmp_path, 1, body, env=HANGS)


def test_call_waits_for_another_threads(tmp_path):
    """The library takes no call while another is in progress."""
    body = """
    comm = join()
    comm.timeout_s = 1.0
    errors = []
    def check():
        comm.timeout_s = 30.0
        errors.append(caught(comm.check, "Bcast"))
    began = time.monotonic()
    late = while_waiting(comm, check)
    assert 0.9 < time.monotonic() - began < 30
    assert type(late) is CommTimeout
    (error,) = errors
    assert type(error) is CommClosed and "aborted" in str(error) and error.call == "Bcast", repr(error)
    """
    run(tmp_path, 1, body, env=HANGS)


def test_call_from_a_signal_handler(tmp_path):
    """A wait cannot be waited for by its own thread."""
    body = """
    comm = join()
    comm.timeout_s = 2.0
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(caught(comm.check, "Bcast")))
    error = while_waiting(comm, lambda: os.kill(os.getpid(), signal.SIGALRM))
    assert type(error) is CommTimeout and type(seen[0]) is RuntimeError, (error, seen)
    """
    run(tmp_path, 1, body, env=HANGS)


def test_device_is_restored(tmp_path):
    """Each function of a communicator's life leaves the thread's device as it was."""
    body = """
    import ctypes
    runtime = open_runtime()
    driver, context = ctypes.CDLL(os.environ["FAKE_CUDA"]), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 2) == 0
    assert driver.cuCtxSetCurrent(context) == 0 and runtime.device_current() == 2
    comm = join(device=1)
    x = np.ones(8, "f4")
    child = comm.Split(0, 0)
    comm.deregister(comm.register(x.ctypes.data, x.nbytes))
    child.close()
    comm.close()
    assert runtime.device_current() == 2
    ids = open_ccl().unique_id()
    os.environ["FAKE_CCL_FAIL"] = "ncclCommInitRankConfig=2"
    assert type(caught(VendorComm, comm.ccl, runtime, 1, 1, 0, ids, 1.0)) is NcclError
    assert runtime.device_current() == 2
    """
    run(tmp_path, 1, body)


def test_split(tmp_path):
    body = """
    comm = join()
    child = comm.Split(rank % 2, -rank)
    ranks = [r for r in reversed(range(size)) if r % 2 == rank % 2]
    assert (child.rank, child.nranks, child.device) == (ranks.index(rank), len(ranks), comm.device)
    x, y = np.array([rank], "f4"), np.zeros(1, "f4")
    all_reduce(child, x, y)
    assert y[0] == sum(ranks)
    alone = child.Split(child.rank, 0)
    assert (alone.rank, alone.nranks) == (0, 1)
    child.close()
    all_reduce(alone, x, y)
    assert y[0] == rank
    alone.close()
    all_reduce(comm, x, y)
    assert y[0] == 3
    comm.close()
    assert live() == 0
    """
    run(tmp_path, 3, body)


def test_split_of_some(tmp_path):
    body = """
    comm = join()
    for _ in range(20):
        child = comm.Split(-1 if rank == 1 else 4, rank)
        assert (child is None) == (rank == 1)
        if child is not None:
            assert (child.rank, child.nranks) == (rank // 2, 2)
            child.close()
    comm.close()
    assert live() == 0
    """
    run(tmp_path, 3, body)


def test_split_of_an_old_library(tmp_path):
    body = """
    comm = join()
    assert not comm.ccl.supports("split")
    error = caught(comm.Split, 0, 0)
    assert type(error) is SymbolNotFound and "2.18" in str(error) and "ncclCommSplit" in str(error), error
    error = caught(comm.register, 4096, 4096)
    assert type(error) is SymbolNotFound and "2.19" in str(error), error
    comm.close()
    """
    run(tmp_path, 2, body, without=("ncclCommSplit", "ncclCommRegister"))


def test_register(tmp_path):
    body = """
    comm = join()
    x = np.ones(8, "f4")
    first, second = (comm.register(x.ctypes.data, x.nbytes) for _ in range(2))
    comm.deregister(first)
    assert type(caught(comm.deregister, first)) is ValueError
    error = caught(comm.register, 0, 4)
    assert type(error) is NcclError and error.code == 4
    comm.close()  # the library refuses to destroy a communicator with registered buffers
    assert live() == 0
    """
    run(tmp_path, 1, body)


def test_close_frees_what_fails(tmp_path):
    body = """
    comm = join()
    error = caught(comm.close)
    assert type(error) is NcclError and error.code == 2 and error.call == "Free"
    comm.close()
    assert live() == 0
    """
    run(tmp_path, 1, body, env={"FAKE_CCL_FAIL": "ncclCommFinalize=2"})


def test_exit_without_close(tmp_path):
    body = """
    comm = join()
    x = np.ones(3, "f4")
    all_reduce(comm, x, x)
    del comm
    comm = join()
    sys.exit(0)
    """
    with start(tmp_path, 2, body) as ranks:
        assert ranks.wait() == [0, 0]
        assert ranks.texts("err") == ["", ""]


def test_fork(tmp_path):
    """A child neither uses nor ends its parent's communicator, and its exit is quiet."""
    body = """
    comm = join()
    child = os.fork()
    if child == 0:
        error = caught(comm.check, "Bcast")
        assert type(error) is CommClosed and "fork" in str(error)
        assert comm.abort()
        comm.close()
        del comm
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    all_reduce(comm, x, y)
    assert y.tolist() == [size] * 3
    comm.close()
    """
    with start(tmp_path, 2, body) as ranks:
        assert ranks.wait() == [0, 0], ranks.texts("err")
        assert ranks.texts("err") == ["", ""]
