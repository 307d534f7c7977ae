"""The fake NCCL itself, against NumPy: what passes on it says something only if it computes what NCCL does."""

import pickle

import numpy as np
import pytest
from vendor_ranks import DTYPES, OPS, run

# Values small enough to be exact in every type; what a rank holds differs by rank and index.
FILL = """
import ml_dtypes
def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))
def filled(name, count, of=rank):
    return ((np.arange(count) * 3 + of * 2) % 5 + 1).astype(dtype_of(name))
def guarded(name, count):
    room = np.frombuffer(bytearray(b"\\xa5" * ((count + 2) * dtype_of(name).itemsize)), np.uint8).view(dtype_of(name))
    return room, room[1 : count + 1]
def check(room, result, expected):
    assert result.astype("f8").tolist() == np.asarray(expected, "f8").tolist(), (result, expected)
    for guard in (room[:1], room[-1:]):
        assert set(guard.tobytes()) == {0xA5}
def everyone(name, count):
    return [filled(name, count, of).astype("f8") for of in range(size)]
comm = join()
"""
COUNTS = (0, 1, 7, 70001)


def dtype_of(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.dtype(getattr(ml_dtypes, name, name))


def filled(name, count, of):
    return ((np.arange(count) * 3 + of * 2) % 5 + 1).astype(dtype_of(name))


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """What three ranks have got from an all-reduce of each type by each op: {(dtype, op): bytes}, with an element of
    guard at each end."""
    pytest.importorskip("ml_dtypes")
    folder = tmp_path_factory.mktemp("reduced")
    body = """
import pathlib, pickle
results = {}
for dtype, number in DTYPES.items():
    for op in OPS:
        room, out = guarded(dtype, 11)
        call(comm, "ncclAllReduce", "all_reduce", filled(dtype, 11), out, 11, number, OPS[op])
        results[dtype, op] = room.tobytes()
assert len(set(map(str, gather(results)))) == 1, "the ranks differ"
if rank == 0:
    pathlib.Path(os.environ["RANKS_FOLDER"], "results").write_bytes(pickle.dumps(results))
"""
    run(folder, 3, FILL + body)
    return pickle.loads((folder / "results").read_bytes())


FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(reduced, dtype, op):
    exact = FOLDS[op].reduce([filled(dtype, 11, of).astype("f8") for of in range(3)])
    if op == "avg":
        exact = (exact / 3).astype("f8" if dtype == "float64" else "f4")
    expected = exact.astype(dtype_of(dtype))
    guard = b"\xa5" * expected.itemsize
    assert reduced[dtype, op] == guard + expected.tobytes() + guard


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats(tmp_path, dtype):
    """Every bit pattern comes back as it was; products are rounded to the nearest, and what is too large is the type's
    infinity, or for float8 its largest number."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = 8 * dtype_of(dtype).itemsize
    body = f"""
name, count = {dtype!r}, 1 << {bits}
every = np.arange(count, dtype=np.uint{bits}).view(dtype_of(name))
if size == 2:
    np.random.default_rng(rank).shuffle(every)
out = np.zeros_like(every)
call(comm, "ncclAllReduce", "all_reduce", every, out, count, DTYPES[name], OPS["prod"])
if rank == 0:
    out.tofile(os.path.join(os.environ["RANKS_FOLDER"], "out"))
"""
    every = np.arange(1 << bits, dtype=f"u{bits // 8}").view(dtype_of(dtype))
    (tmp_path / "one").mkdir()
    run(tmp_path / "one", 1, FILL + body)
    out = np.fromfile(tmp_path / "one" / "out", dtype_of(dtype))
    is_number = ~np.isnan(every.astype("f4"))
    finite = dtype.startswith("float8")
    infinite = np.isinf(every.astype("f4"))
    same = is_number & ~infinite if finite else is_number
    assert (out.view(f"u{bits // 8}")[same] == every.view(f"u{bits // 8}")[same]).all()
    assert np.isnan(out.astype("f4")[~is_number]).all()
    (tmp_path / "two").mkdir()
    run(tmp_path / "two", 2, FILL + body)
    out = np.fromfile(tmp_path / "two" / "out", dtype_of(dtype)).astype("f4")
    factors = [every.copy() for _ in range(2)]
    for of, factor in enumerate(factors):
        np.random.default_rng(of).shuffle(factor)
    with np.errstate(all="ignore"):
        products = factors[0].astype("f4") * factors[1].astype("f4")
        largest = float(ml_dtypes.finfo(dtype_of(dtype)).max)
        expected = (np.clip(products, -largest, largest) if finite else products).astype(dtype_of(dtype)).astype("f4")
    assert ((out == expected) | (np.isnan(out) & np.isnan(expected))).all()


@pytest.mark.parametrize("count", COUNTS)
def test_collectives(tmp_path, count):
    pytest.importorskip("ml_dtypes")
    body = f"""
n, F = {count}, 7
all_ = [filled("float32", n, of) for of in range(size)]
room, out = guarded("float32", n)
call(comm, "ncclReduce", "reduce", all_[rank], out, n, F, 0, 1)
if rank == 1:
    check(room, out, sum(all_) if n else [])
room, out = guarded("float32", n)
call(comm, "ncclBroadcast", "broadcast", all_[rank], out, n, F, 2)
check(room, out, all_[2])
room, out = guarded("float32", n * size)
call(comm, "ncclAllGather", "all_gather", all_[rank], out, n, F)
check(room, out, np.concatenate(all_))
wide = [filled("float32", n * size, of) for of in range(size)]
room, out = guarded("float32", n)
call(comm, "ncclReduceScatter", "reduce_scatter", wide[rank], out, n, F, 0)
check(room, out, sum(wide)[n * rank : n * rank + n])
room, out = guarded("float32", n * size)
call(comm, "ncclAlltoAll", "all_to_all", wide[rank], out, n, F)
check(room, out, np.concatenate([one[n * rank : n * rank + n] for one in wide]))
room, out = guarded("float32", n * size)
call(comm, "ncclGather", "gather", all_[rank], out, n, F, 1)
check(room, out, np.concatenate(all_) if rank == 1 else np.frombuffer(b"\\xa5" * 4 * n * size, "f4"))
room, out = guarded("float32", n)
call(comm, "ncclScatter", "scatter", wide[2] if rank == 2 else 0, out, n, F, 2)
check(room, out, wide[2][n * rank : n * rank + n])
comm.close()
"""
    run(tmp_path, 3, FILL + body)


def test_in_place(tmp_path):
    pytest.importorskip("ml_dtypes")
    body = """
F = 7
x = filled("float32", 9)
call(comm, "ncclAllReduce", "all_reduce", x, x, 9, F, 0)
assert x.tolist() == sum(everyone("float32", 9)).tolist()
y = np.full(9, -1, "f4")
y[3 * rank : 3 * rank + 3] = rank
call(comm, "ncclAllGather", "all_gather", y[3 * rank :], y, 3, F)
assert y.tolist() == [0] * 3 + [1] * 3 + [2] * 3
z = filled("float32", 9)
call(comm, "ncclReduceScatter", "reduce_scatter", z, z[3 * rank :], 3, F, 0)
assert z[3 * rank : 3 * rank + 3].tolist() == sum(everyone("float32", 9))[3 * rank : 3 * rank + 3].tolist()
"""
    run(tmp_path, 3, FILL + body)


def test_group_of_messages(tmp_path):
    """Every rank sends to every rank, itself too, more than a channel holds: nothing waits for the order."""
    pytest.importorskip("ml_dtypes")
    body = """
n = 50000
sends = [filled("int32", n, 10 * rank + to) for to in range(size)]
rooms = [guarded("int32", n) for _ in range(size)]
L = library()
assert L.ncclGroupStart() == 0
for to in range(size):
    assert L.ncclSend(native(sends[to]), native(n), 2, to, native(comm.address), None) == 0
for source in reversed(range(size)):
    assert L.ncclRecv(native(rooms[source][1]), native(n), 2, source, native(comm.address), None) == 0
comm.wait(L.ncclGroupEnd(), "group", "group_end")
for source, (room, out) in enumerate(rooms):
    check(room, out, filled("int32", n, 10 * source + rank))
"""
    run(tmp_path, 3, FILL + body)


@pytest.mark.parametrize("residence", [0, 1])
def test_factor(tmp_path, residence):
    pytest.importorskip("ml_dtypes")
    body = f"""
import ctypes
L, op, factor = library(), ctypes.c_int(), np.array([rank + 0.5], "f4")
assert L.ncclRedOpCreatePreMulSum(ctypes.byref(op), native(factor), 7, {residence}, native(comm.address)) == 0
if {residence}:
    factor[0] = -100
room, out = guarded("float32", 7)
call(comm, "ncclAllReduce", "all_reduce", filled("float32", 7), out, 7, 7, op.value)
check(room, out, sum((of + 0.5) * part for of, part in enumerate(everyone("float32", 7))))
assert L.ncclRedOpDestroy(op.value, native(comm.address)) == 0
assert L.ncclRedOpDestroy(op.value, native(comm.address)) == 4
"""
    run(tmp_path, 2, FILL + body)


REFUSED = {
    "ncclAllReduce(x, x, 3, 12, 0, C, 0)": 4,
    "ncclAllReduce(x, x, 3, 7, 5, C, 0)": 4,
    "ncclAllReduce(x, 0, 3, 7, 0, C, 0)": 4,
    "ncclAllReduce(x, x, 3, 7, 0, 0, 0)": 4,
    "ncclReduce(x, x, 3, 7, 0, 1, C, 0)": 4,
    "ncclBroadcast(x, x, 3, 7, -1, C, 0)": 4,
    "ncclSend(x, 3, 7, 1, C, 0)": 4,
    "ncclGroupEnd()": 5,
    "ncclCommDestroy(0)": 4,
    "ncclCommDeregister(C, x)": 4,
    "ncclCommSplit(C, -2, 0, x, 0)": 4,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the fake answers to calls that NCCL refuses: {call: code}."""
    body = f"""
comm = join()
x, C = np.ones(3, "f4"), comm.address
for text in {list(REFUSED)!r}:
    function, arguments = text[:-1].split("(")
    values = [native(eval(word)) for word in arguments.split(", ") if word]
    print(getattr(library(), function)(*values))
"""
    (printed,) = run(tmp_path_factory.mktemp("answers"), 1, body)
    return dict(zip(REFUSED, map(int, printed)))


@pytest.mark.parametrize("call", REFUSED)
def test_arguments_are_checked(answers, call):
    assert answers[call] == REFUSED[call]


def test_peer_that_never_comes(tmp_path):
    body = """
comm = join()
os.environ["FAKE_CCL_TIMEOUT_S"] = "1"
if rank == 0:
    x = np.ones(3, "f4")
    began = time.monotonic()
    error = caught(all_reduce, comm, x, x)
    assert type(error) is NcclError and error.code == 6 and "has not come" in str(error), repr(error)
    assert 0.9 < time.monotonic() - began < 25
gather(None)
"""
    run(tmp_path, 2, body)


def test_counts_that_differ(tmp_path):
    body = """
comm = join()
os.environ["FAKE_CCL_TIMEOUT_S"] = "1"
x = np.ones(3, "f4")
error = caught(all_reduce, comm, x[: 2 + rank], x)
assert type(error) is NcclError and error.code in (3, 6), repr(error)
gather(None)
"""
    run(tmp_path, 2, body)
