"""How an island makes its communicator: all ranks or none, and each says the same of what is wrong."""

import pytest
from vendor_ranks import run, start

from hetccl import vendors
from hetccl.config import Config
from hetccl.island import float8

MEMBERS = """
from hetccl import config, topology
from hetccl.island import open_island
def member(machine="m", pid=0):
    return topology.Member("h", machine, pid, 0, "nvidia", "cuda", "", "", "nvidia", "0")
members = [member(pid=pid) for pid in gather(os.getpid())]
def settings(**changed):
    return config.Config(**{"cuda_lib": os.environ["FAKE_CUDA"], "nccl_lib": os.environ["FAKE_CCL"],
                            "timeout": 20.0, **changed})
def island(device=None, vendor="nvidia", ranks=None, **changed):
    device = rank if device is None else device
    return open_island(vendor, device, rank, size, members, settings(**changed), gather, "Comm", ranks)
"""


def body(text):
    return MEMBERS + text


@pytest.mark.parametrize("size", [1, 2, 3])
def test_island(tmp_path, size):
    program = """
comm = island()
x, y = np.array([rank], "f4"), np.zeros(1, "f4")
all_reduce(comm, x, y)
assert y[0] == sum(range(size))
assert (comm.rank, comm.nranks, comm.device, comm.float8, comm.timeout_s) == (rank, size, rank, "ocp", 20.0)
comm.close()
assert live() == 0
"""
    run(tmp_path, size, body(program))


def test_peers_are_watched_by_their_names(tmp_path):
    program = """
comm = island(ranks=[4, 7])
print("ready")
if rank == 1:
    time.sleep(60)
x = np.ones(1, "f4")
error = caught(all_reduce, comm, x, x)
assert type(error) is PeerError and error.peer == 7, repr(error)
"""
    with start(tmp_path, 2, body(program)) as ranks:
        ranks.await_line(1, "ready")
        ranks.processes[1].kill()
        assert ranks.processes[0].wait(30) == 0, ranks.texts("err")


def test_two_ranks_on_one_gpu(tmp_path):
    program = """
error = caught(island, [0, 3, 0][rank], "nvidia", [5, 6, 9])
assert type(error) is HetcclError and error.peer == (5, 9) and error.call == "Comm", repr(error)
for words in ("0000:3b:00.0", "NCCL needs one GPU per rank", "[5, 9]"):
    assert words in str(error), str(error)
"""
    run(tmp_path, 3, body(program))


def test_same_address_on_two_machines(tmp_path):
    program = """
members[1] = member("another", members[1].pid)
comm = island(device=0)
comm.close()
"""
    run(tmp_path, 2, body(program))


def test_releases_that_differ(tmp_path):
    program = """
error = caught(island)
assert type(error) is HetcclError and error.peer == (0, 1, 2), repr(error)
assert "NCCL 2.28.9 on ranks [0, 2]" in str(error) and "NCCL 2.27.3 on ranks [1]" in str(error)
"""
    run(tmp_path, 3, body(program), per_rank=[{}, {"FAKE_CCL_VERSION": "22703"}, {}])


def test_patch_releases_may_differ(tmp_path):
    run(tmp_path, 2, body("island().close()"), per_rank=[{}, {"FAKE_CCL_VERSION": "22803"}])


def test_vendors_that_differ(tmp_path):
    program = """
from hetccl import vendors
vendors.VENDORS["amd"] = vendors.VENDORS["nvidia"]
error = caught(island, None, ["nvidia", "amd"][rank])
assert type(error) is HetcclError and "nvidia on ranks [0], amd on ranks [1]" in str(error), repr(error)
"""
    run(tmp_path, 2, body(program))


def test_bad_device_on_one_rank(tmp_path):
    program = """
error = caught(island, [0, 17][rank])
assert type(error) is ValueError and str(error) == (
    "Comm: rank 1: device: 17 is none of the 4 that this process can see"), repr(error)
"""
    run(tmp_path, 2, body(program))


@pytest.mark.parametrize("setting, words", [("nccl_lib", "libnccl.so.2"), ("cuda_lib", "libcuda.so.1")])
def test_library_missing_on_one_rank(tmp_path, setting, words):
    program = f"""
changed = {{{setting!r}: "/nowhere/{words}"}} if rank == 1 else {{}}
error = caught(lambda: island(**changed))
assert type(error) is LibraryNotFound and error.peer == (1,), repr(error)
assert "rank 1: " in str(error) and "/nowhere/{words}" in str(error)
"""
    run(tmp_path, 2, body(program))


def test_old_library_on_one_rank(tmp_path):
    program = """
error = caught(island)
assert type(error) is LibraryNotFound and error.peer == (0,) and "2.18" in str(error), repr(error)
"""
    run(tmp_path, 2, body(program), per_rank=[{"FAKE_CCL_VERSION": "21403"}, {}])


def test_id_fails(tmp_path):
    program = """
error = caught(island)
assert type(error) is NcclError and (error.code, error.peer) == (2, (0,)), repr(error)
"""
    run(tmp_path, 2, body(program), env={"FAKE_CCL_FAIL": "ncclGetUniqueId=2"})


def test_init_fails_on_one_rank(tmp_path):
    """The others hear of it while the library still waits for the rank; nobody keeps a communicator."""
    program = """
began = time.monotonic()
error = caught(island)
assert type(error) is NcclError and (error.code, error.peer) == (1, (1,)), repr(error)
assert str(error).startswith("Comm: rank 1: ncclCommInitRankConfig of NCCL"), str(error)
assert time.monotonic() - began < 15
"""
    run(tmp_path, 3, body(program), per_rank=[{}, {"FAKE_CCL_FAIL": "ncclCommInitRankConfig=1"}, {}])


def test_init_hangs(tmp_path):
    program = """
error = caught(lambda: island(timeout=2.0))
assert type(error) is CommTimeout and error.peer == (0, 1), repr(error)
"""
    run(tmp_path, 2, body(program), env={"FAKE_CCL_HANG": "ncclCommInitRankConfig"})


def test_a_call_that_hangs_in_the_library(tmp_path):
    """The watch ends a call whose peer does not come."""
    program = """
comm = island()
comm.timeout_s = 1.0
if rank == 0:
    began = time.monotonic()
    error = caught(comm.Split, 0, 0)
    assert type(error) is CommTimeout and error.call == "Split", repr(error)
    assert time.monotonic() - began < 15
    assert type(caught(comm.check, "Bcast")) is CommTimeout
    comm.close()
    assert live() == 0
gather(None)
"""
    run(tmp_path, 2, body(program))


def test_meeting_fails(tmp_path):
    """What the caller's gather raises ends what was half made."""
    program = """
import hetccl.island
meetings = 0
def fragile(value):
    global meetings
    meetings += 1
    if meetings == 4:
        raise CommTimeout("nobody came")
    return gather(value)
error = caught(open_island, "nvidia", rank, rank, size, members, settings(), fragile, "Comm")
assert type(error) is CommTimeout and str(error) == "nobody came" and live() == 0
"""
    run(tmp_path, 2, body(program))


@pytest.mark.parametrize(
    "archs, meaning",
    [
        (["sm_90", "sm_100"], "ocp"),
        (["gfx942", "gfx942:sramecc+:xnack-"], "fnuz"),
        (["gfx90a", "gfx1100"], "fnuz"),
        (["gfx950", "gfx1200", "gfx1201"], "ocp"),
        (["gfx942", "gfx950"], "mixed"),
        ([""], "ocp"),
    ],
)
def test_float8(archs, meaning):
    assert float8(archs) == meaning


def test_every_vendor_has_its_settings():
    """The registry names fields of the configuration."""
    for vendor in vendors.VENDORS.values():
        for setting in (vendor.runtime_setting, vendor.ccl_setting):
            assert setting == "" or hasattr(Config(), setting)


def test_host_has_a_runtime():
    runtime = vendors.open_runtime("host", Config())
    assert runtime.name == "host" and vendors.open_runtime("host", Config()) is runtime
