"""What becomes of a vendor's communicator when a peer dies, the library reports an error, or it is aborted."""

import os
import signal

import pytest
from vendor_ranks import start

WAITS = """
comm = join(30.0)
x, y = np.ones(3, "f4"), np.zeros(3, "f4")
all_reduce(comm, x, y)
print("ready")
if rank == 1:
    time.sleep(60)
"""


def kill(ranks, rank):
    """End a rank as a crash would, when it is ready."""
    ranks.await_line(rank, "ready")
    ranks.processes[rank].kill()


def assert_ended_well(ranks, expected):
    """expected: by rank, the exit code."""
    for process, code in zip(ranks.processes, expected):
        assert process.wait(120) == code, ranks.texts("err")


@pytest.mark.parametrize("size", [2, 3])
def test_peer_dies_while_others_wait(tmp_path, size):
    """A call that waits for the dead rank ends, and so does the next one, each with the rank's name."""
    body = (
        WAITS
        + """
if rank != 1:
    began = time.monotonic()
    error = caught(all_reduce, comm, x, y)
    assert type(error) is PeerError and error.peer == 1 and error.call == "AllReduce", repr(error)
    assert time.monotonic() - began < 25
    error = caught(comm.check, "Bcast")
    assert type(error) is PeerError and error.peer == 1 and error.call == "Bcast"
    comm.close()
    assert live() == 0
"""
    )
    with start(tmp_path, size, body) as ranks:
        kill(ranks, 1)
        assert_ended_well(ranks, [0, -signal.SIGKILL, 0][:size])


def test_peer_dies_while_idle(tmp_path):
    body = (
        WAITS
        + """
until = time.monotonic() + 60
while comm.address and time.monotonic() < until:
    time.sleep(0.01)
error = caught(comm.check, "AllReduce")
assert type(error) is PeerError and error.peer == 1, repr(error)
comm.close()
assert live() == 0
"""
    )
    with start(tmp_path, 2, body) as ranks:
        kill(ranks, 1)
        assert_ended_well(ranks, [0, -signal.SIGKILL])


def test_peer_dies_without_pidfd(tmp_path):
    """Kernels before 5.3 give no handle of a process."""
    shim = tmp_path / "shim.c"
    shim.write_text(
        """
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdarg.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        long syscall(long number, ...) {
            long a[6], result;
            va_list list;
            va_start(list, number);
            for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
            va_end(list);
            if (number == SYS_pidfd_open) {
                errno = ENOSYS;
                return -1;
            }
            register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
            __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10),
                             "r"(r8), "r"(r9) : "rcx", "r11", "memory");
            if (result < 0 && result > -4096) {
                errno = (int)-result;
                return -1;
            }
            return result;
        }
        """
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the shim in front of the kernel is written for x86_64")
    assert os.system(f"cc -shared -fPIC -o {tmp_path}/shim.so {shim}") == 0
    body = WAITS + "error = caught(all_reduce, comm, x, y)\nassert type(error) is PeerError and error.peer == 1\n"
    with start(tmp_path, 2, body, env={"LD_PRELOAD": str(tmp_path / "shim.so")}) as ranks:
        kill(ranks, 1)
        assert_ended_well(ranks, [0, -signal.SIGKILL])


def test_peer_dies_at_init(tmp_path):
    body = """
    ccl = open_ccl()
    unique_id = gather(ccl.unique_id() if rank == 0 else None)[0]
    pids = gather(os.getpid())
    print("ready")
    if rank == 1:
        time.sleep(60)
    error = caught(VendorComm, ccl, open_runtime(), 0, 2, 0, unique_id, 30.0, [(1, pids[1])])
    assert type(error) is PeerError and error.peer == 1, repr(error)
    os._exit(0)  # the library's thread, which is left behind, waits for the rank
    """
    with start(tmp_path, 2, body) as ranks:
        kill(ranks, 1)
        assert_ended_well(ranks, [0, -signal.SIGKILL])


def test_peer_ends_in_good_order(tmp_path):
    """A rank that has closed its end, or ends when all is done, harms nobody who closes later."""
    body = """
    comm = join()
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    all_reduce(comm, x, y)
    if rank == 0:
        time.sleep(4)  # the others have ended, and the watch has seen it
        comm.close()
        assert live() == 0
    """
    with start(tmp_path, 3, body) as ranks:
        assert_ended_well(ranks, [0, 0, 0])
        assert ranks.texts("err") == [""] * 3


def test_abort_from_another_thread(tmp_path):
    """A call that waits for a peer ends when another thread aborts."""
    body = """
    comm = join()
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    all_reduce(comm, x, y)
    gather(None)
    if rank == 0:
        took = []
        def abort():
            time.sleep(0.5)
            began = time.monotonic()
            assert comm.abort()
            took.append(time.monotonic() - began)
        thread = threading.Thread(target=abort)
        thread.start()
        error = caught(all_reduce, comm, x, y)
        thread.join()
        assert type(error) is CommClosed and "aborted" in str(error), repr(error)
        assert took[0] < 5 and live() == 0
        assert comm.abort()
        comm.close()
    gather(None)
    """
    with start(tmp_path, 2, body) as ranks:
        assert_ended_well(ranks, [0, 0])


def test_abort_while_in_progress(tmp_path):
    body = """
    comm = join()
    x = np.ones(3, "f4")
    thread = threading.Timer(0.5, comm.abort)
    thread.start()
    error = caught(all_reduce, comm, x, x)
    assert type(error) is CommClosed and "aborted" in str(error), repr(error)
    thread.join()
    assert live() == 0
    """
    with start(tmp_path, 1, body, env={"FAKE_CCL_HANG": "ncclAllReduce", "FAKE_CCL_NONBLOCKING": "1"}) as ranks:
        assert_ended_well(ranks, [0])


def test_abort_that_hangs(tmp_path):
    body = """
    comm = join()
    began = time.monotonic()
    assert comm.abort() is False
    assert 4 < time.monotonic() - began < 30
    began = time.monotonic()
    comm.close()
    del comm
    assert time.monotonic() - began < 4, "it waits for the library again"
    """
    with start(tmp_path, 1, body, env={"FAKE_CCL_HANG": "ncclCommAbort"}) as ranks:
        assert_ended_well(ranks, [0])
        assert ranks.texts("err") == [""]


def test_async_error(tmp_path):
    """What the library reports between calls is the next call's error."""
    body = """
    comm = join()
    x = np.ones(3, "f4")
    code = library().ncclAllReduce(native(x), native(x), native(3), 7, 0, native(comm.address), None)
    until = time.monotonic() + 60
    while comm.address and time.monotonic() < until:
        time.sleep(0.01)
    error = caught(comm.check, "Bcast")
    assert type(error) is NcclError and (error.code, error.call) == (6, "Bcast"), repr(error)
    assert "network error" in str(error) and "FAKE_CCL_ASYNC_ERROR" in str(error)
    comm.close()
    assert live() == 0
    """
    with start(tmp_path, 1, body, env={"FAKE_CCL_ASYNC_ERROR": "6"}) as ranks:
        assert_ended_well(ranks, [0])


def test_error_of_a_call(tmp_path):
    """A call that the library refuses leaves the communicator as it was."""
    body = """
    comm = join()
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    for attempt in range(4):
        if attempt == 2:
            error = caught(all_reduce, comm, x, y)
            assert type(error) is NcclError and (error.code, error.call) == (3, "AllReduce")
            assert "ncclAllReduce" in str(error) and "internal error" in str(error)
        else:
            all_reduce(comm, x, y)
    assert y.tolist() == [size] * 3
    comm.close()
    """
    with start(tmp_path, 2, body, env={"FAKE_CCL_FAIL": "ncclAllReduce=3@3"}) as ranks:
        assert_ended_well(ranks, [0, 0])


def test_remote_error_without_a_dead_peer(tmp_path):
    body = """
    comm = join()
    x = np.ones(3, "f4")
    error = caught(all_reduce, comm, x, x)
    assert type(error) is NcclError and error.code == 6
    gather(None)
    """
    with start(tmp_path, 2, body, env={"FAKE_CCL_FAIL": "ncclAllReduce=6"}) as ranks:
        assert_ended_well(ranks, [0, 0])


def test_remote_error_of_a_dead_peer(tmp_path):
    """The library's own news of a broken connection may come first."""
    body = WAITS.replace("time.sleep(60)", "os._exit(3)") + (
        """
error = caught(all_reduce, comm, x, y)
assert type(error) is PeerError and error.peer == 1 and error.code == 6, repr(error)
"""
    )
    with start(tmp_path, 2, body, env={"FAKE_CCL_FAIL": "ncclAllReduce=6@2"}) as ranks:
        assert_ended_well(ranks, [0, 3])


def test_threads_end_it_at_any_moment(tmp_path):
    """Whoever comes first ends the communicator; the others are told, and nothing is left behind."""
    body = """
    import random
    random.seed(1)
    ccl, runtime = open_ccl(), open_runtime()
    x = np.ones(3, "f4")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        comm = VendorComm(ccl, runtime, 0, 1, 0, ccl.unique_id(), 60.0, [(1, os.getppid())])
        seen = []
        def split():
            for _ in range(3):
                comm.Split(0, 0).close()
        def register():
            for _ in range(5):
                comm.deregister(comm.register(x.ctypes.data, x.nbytes))
        def end():
            time.sleep(random.random() * 0.002)
            random.choice([comm.abort, comm.close])()
        def run(function):
            try:
                function()
            except HetcclError as error:
                seen.append(error)
        threads = [threading.Thread(target=run, args=(function,)) for function in (split, register, end, end)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        comm.close()
        # The library refuses a call while another thread's is in progress.
        wrong = [error for error in seen if type(error) is not CommClosed and "in progress" not in str(error)]
        assert not wrong, wrong
    assert live() == 0
    """
    with start(tmp_path, 1, body) as ranks:
        assert_ended_well(ranks, [0])
