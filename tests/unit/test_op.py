"""Ops as arguments: which are taken, which refused, their names, their factors and the user's functions."""

import array
import ctypes
import fractions
import pickle
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from kernel_cases import BIT_OPS, DTYPES, INTEGERS, LOC_OPS, PAIRS, assert_same, bits
from mpi4py import MPI

import hetccl
from hetccl import _buffer, _op, bootstrap  # noqa: F401 bootstrap tells _op of MPI's ops

ARITHMETIC = ["SUM", "PROD", "MIN", "MAX", "AVG"]
BITS = [name.upper() for name in BIT_OPS]
LOCS = [name.upper() for name in LOC_OPS]
MPI_PAIRS = {
    "float_int": MPI.FLOAT_INT,
    "double_int": MPI.DOUBLE_INT,
    "long_int": MPI.LONG_INT,
    "int_int": MPI.INT_INT,
    "short_int": MPI.SHORT_INT,
    "longdouble_int": MPI.LONG_DOUBLE_INT,
}


def dtype_of(name):
    return "int32" if name in BITS else "double_int" if name in LOCS else "float64"


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS, *LOCS])
def test_ours(name):
    op = getattr(hetccl, name)
    assert _op.describe(op, dtype_of(name)) == {"op": op, "name": name, "kind": "builtin", "factor": None}
    assert repr(op) == f"hetccl.{name}" and op.name == name
    assert op.is_predefined and op.is_commutative and op.Is_commutative()
    assert pickle.loads(pickle.dumps(op)) is op
    with pytest.raises(ValueError):
        op.Free()


@pytest.mark.parametrize("name", [n for n in (*ARITHMETIC, *BITS, *LOCS) if n != "AVG"])
def test_mpi_s(name):
    assert _op.describe(getattr(MPI, name), dtype_of(name))["op"] is getattr(hetccl, name)


@pytest.mark.parametrize("name", ["REPLACE", "NO_OP", "OP_NULL"])
def test_mpi_s_that_reduce_nothing(name):
    with pytest.raises(ValueError, match=f"op: MPI.{name}"):
        _op.describe(getattr(MPI, name), "float64")


@pytest.mark.parametrize("op", [None, "SUM", 0, 17, object(), hetccl.Op, MPI.Op, sum, MPI.INT], ids=str)
def test_what_is_no_op(op):
    with pytest.raises(TypeError, match="op:"):
        _op.describe(op, "float64")


@pytest.mark.parametrize(
    "name, dtype",
    [(name, dtype) for name in BITS for dtype in ("float32", "bfloat16", "float8_e5m2", "complex64", "int_int")]
    + [(name, dtype) for name in LOCS for dtype in ("float64", "int32", "bool")]
    + [(name, dtype) for name in ARITHMETIC for dtype in PAIRS]
    + [("MIN", "complex64"), ("MAX", "complex128"), ("AVG", "bool")],
)
def test_undefined_for_the_dtype(name, dtype):
    with pytest.raises(TypeError, match=f"op: {name} is not defined for {dtype}"):
        _op.describe(getattr(hetccl, name), dtype)


def test_op_is_not_called():
    with pytest.raises(TypeError):
        hetccl.Op()


@pytest.mark.parametrize("name", list(PAIRS))
def test_pairs_by_mpi_datatype(name):
    """Any memory of the right length will do: a structured array, or bytes."""
    datatype = MPI_PAIRS[name]
    structured = np.zeros(3, np.dtype([("a", f"V{datatype.Get_extent()[1] - 4}"), ("b", np.intc)]))
    assert structured.itemsize == datatype.Get_extent()[1]
    for data in (structured, np.zeros(3 * structured.itemsize, np.uint8), np.zeros(structured.nbytes // 8)):
        for spec in ([data, datatype], [data, 3, datatype], [data, 3, name]):
            found = _buffer.describe(spec)
            assert (found["dtype"], found["count"], found["itemsize"]) == (name, 3, structured.itemsize)


def test_a_pair_needs_all_of_its_bytes():
    with pytest.raises(ValueError):
        _buffer.describe([np.zeros(17, np.uint8), MPI.DOUBLE_INT])
    with pytest.raises(ValueError):
        _buffer.describe([np.zeros(16, np.uint8), 2, MPI.DOUBLE_INT])


# ---- the written table ----


def written():
    """{(op, dtype): its cell} of the table of docs/reductions.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "reductions.md").read_text()
    lines = re.search(r"^\| dtypes \|.*?\n\n", text, re.MULTILINE | re.DOTALL)[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (op, dtype): cell
        for dtypes, *cells in rows
        for ops, cell in zip(header[1:], cells)
        for op in ops.split(", ")
        for dtype in dtypes.split(", ")
    }


def test_the_written_table_is_whole():
    ops = [*ARITHMETIC, *BITS, *LOCS, "premul_sum", "Op.Create"]
    assert set(written()) == {(op, dtype) for op in ops for dtype in [*DTYPES, *PAIRS]}


@pytest.mark.parametrize("op, dtype", sorted(written()))
def test_the_written_table_is_true(op, dtype):
    makers = {"premul_sum": lambda: hetccl.premul_sum(1), "Op.Create": lambda: hetccl.Op.Create(sum)}
    argument = makers[op]() if op in makers else getattr(hetccl, op)
    if written()[op, dtype] == "no":
        with pytest.raises(TypeError, match="is not defined for"):
            _op.describe(argument, dtype)
    else:
        assert _op.describe(argument, dtype)["op"] is argument


# ---- premul_sum ----


def assert_factor(factor, dtype, value):
    """The factor in the dtype is value, which NumPy rounds to it; a long double's padding may be anything."""
    got = np.frombuffer(_op.describe(hetccl.premul_sum(factor), dtype)["factor"], DTYPES[dtype][1])
    assert_same(got, np.array([value]).astype(DTYPES[dtype][1]), False, f"{factor!r} as {dtype}")


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
@pytest.mark.parametrize(
    "factor", [2, 0, True, 3.0, np.int8(5), np.float32(4), np.bool_(True), np.array(6), fractions.Fraction(8)], ids=repr
)
def test_factor_that_every_dtype_holds(factor, dtype):
    assert_factor(factor, dtype, float(factor))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in INTEGERS and d != "bool"])
@pytest.mark.parametrize("factor", [0.1, -1 / 3, 1e-3, -0.0, np.float16(0.3), ml_dtypes.bfloat16(0.7)], ids=repr)
def test_factor_is_rounded_once(factor, dtype):
    assert_factor(factor, dtype, float(factor))


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "longdouble", "float8_e5m2"])
def test_factor_may_be_infinite_or_nan(factor, dtype):
    assert_factor(factor, dtype, factor)


@pytest.mark.parametrize(
    "dtype, factor, rounded",
    [
        ("bfloat16", 1 + 2**-8 + 2**-40, 1 + 2**-7),  # as a float32 it would be a tie
        ("bfloat16", 1 + 2**-8, 1),
        ("float8_e4m3fn", 1 + 2**-4 + 2**-40, 1.125),
        ("float8_e5m2", -1 - 2**-3 - 2**-40, -1.25),
        ("float16", 1 + 2**-11 + 2**-40, 1 + 2**-10),
        ("bfloat16", 1e-300, 0),
    ],
)
def test_factor_is_not_rounded_twice(dtype, factor, rounded):
    assert_factor(factor, dtype, rounded)


@pytest.mark.parametrize("factor", [2**63 + 1, -(2**62) - 1, np.longdouble(1) / 3], ids=repr)
def test_factor_of_longdouble_keeps_its_bits(factor):
    assert_factor(factor, "longdouble", np.longdouble(str(factor)) if isinstance(factor, int) else factor)


@pytest.mark.parametrize(
    "dtype, factor", [("complex64", 0.5 - 2j), ("complex128", np.complex64(1 / 3 + 1j)), ("clongdouble", 2 - 1j)]
)
def test_complex_factor(dtype, factor):
    assert_factor(factor, dtype, complex(factor))


def test_factor_of_clongdouble_keeps_its_bits():
    factor = np.array([np.longdouble(1) / 3, np.longdouble(1) / 7]).view(np.clongdouble)[0]
    assert_factor(factor, "clongdouble", factor)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_factor_is_exact_up_to_the_bounds(dtype):
    info = np.iinfo(DTYPES[dtype][1])
    for factor in (int(info.min), int(info.max)):
        want = np.array([factor], DTYPES[dtype][1]).tobytes()
        assert _op.describe(hetccl.premul_sum(factor), dtype)["factor"] == want
    for factor in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(ValueError, match="factor: .* out of"):
            _op.describe(hetccl.premul_sum(factor), dtype)


@pytest.mark.parametrize("factor", ["3", b"3", None, [2], (1, 2), np.array([2.0]), np.zeros(2), object()], ids=repr)
def test_factor_that_is_no_number(factor):
    with pytest.raises(TypeError, match="factor:"):
        hetccl.premul_sum(factor)


@pytest.mark.parametrize(
    "dtype, factor, error",
    [
        ("int32", 1.5, ValueError),
        ("int64", float("nan"), ValueError),
        ("uint8", float("inf"), ValueError),
        ("int8", fractions.Fraction(1, 2), ValueError),
        ("float16", 1e6, ValueError),
        ("float32", 1e300, ValueError),
        ("complex64", 1e300j, ValueError),
        ("bfloat16", -1e39, ValueError),
        ("float8_e4m3fn", 1000, ValueError),
        ("float8_e5m2", 1e6, ValueError),
        ("float64", 10**400, ValueError),
        ("longdouble", 10**400, ValueError),
        ("float64", 1j, TypeError),
        ("int32", 2 + 0j, TypeError),
        ("float32", np.complex64(2), TypeError),
        ("bool", 1, TypeError),
        ("double_int", 1, TypeError),
    ],
)
def test_factor_that_the_dtype_cannot_hold(dtype, factor, error):
    with pytest.raises(error):
        _op.describe(hetccl.premul_sum(factor), dtype)


def test_premul_sum_as_an_object():
    op = hetccl.premul_sum(0.5)
    found = _op.describe(op, "float64")
    assert (found["op"], found["name"], found["kind"]) == (op, "PREMUL_SUM", "premul")
    assert op.factor == 0.5 and repr(op) == "hetccl.premul_sum(0.5)" and op.is_commutative and op.is_predefined
    again = pickle.loads(pickle.dumps(op))
    assert (again.factor, repr(again)) == (op.factor, repr(op))


# ---- functions of the user ----


def keep_left_tenfold(inbuf, inoutbuf, datatype):
    """10 a + b: tells the order of its operands."""
    a, b = (np.frombuffer(v, np.float64) for v in (inbuf, inoutbuf))
    b += 10 * a


def apply(op, dtype="float64", datatype=None):
    a, b = np.arange(5.0), np.arange(5.0) + 100
    _op.apply(op, dtype, bits(a), bits(b), datatype)
    return b


@pytest.fixture
def mpi_op():
    made = []

    def create(function, commute=False):
        made.append(MPI.Op.Create(function, commute))
        return made[-1]

    yield create
    for op in made:
        if op != MPI.OP_NULL:
            op.Free()


@pytest.mark.parametrize("commute", [False, True])
def test_function(commute, mpi_op):
    for op in (hetccl.Op.Create(keep_left_tenfold, commute), mpi_op(keep_left_tenfold, commute)):
        found = _op.describe(op, "float64")
        assert (found["name"], found["kind"], found["op"].is_commutative) == ("USER", "user", commute)
        assert not found["op"].is_predefined
        np.testing.assert_array_equal(apply(op), 10 * np.arange(5.0) + np.arange(5.0) + 100)


def test_function_s_arguments(mpi_op):
    seen = []

    def function(inbuf, inoutbuf, datatype):
        for view in (inbuf, inoutbuf):
            seen.append((type(view), view.readonly, view.nbytes, view.format))
        seen.append(datatype)

    # A function that was written for mpi4py gets what mpi4py gives it.
    for op, kind in ((hetccl.Op.Create(function), memoryview), (mpi_op(function), MPI.buffer)):
        for dtype, given, want in [
            ("float64", None, MPI.DOUBLE),
            ("float64", MPI.BYTE, MPI.BYTE),
            ("uint8", None, MPI.UNSIGNED_CHAR),
            ("int64", None, MPI.LONG),
            ("float_int", None, MPI.FLOAT_INT),
            ("bool", None, MPI.C_BOOL),
        ]:
            seen.clear()
            apply(op, dtype, given)
            assert seen == [(kind, True, 40, "B"), (kind, False, 40, "B"), want]


def test_function_of_mpi_s_assigns_a_typed_array(mpi_op):
    def function(inbuf, inoutbuf, datatype):
        inoutbuf[:] = array.array("d", np.frombuffer(inbuf) + np.frombuffer(inoutbuf))

    np.testing.assert_array_equal(apply(mpi_op(function)), 2 * np.arange(5.0) + 100)


def test_function_on_a_dtype_that_mpi_has_not():
    seen = []
    apply(hetccl.Op.Create(lambda a, b, datatype: seen.append(datatype)), "float8_e5m2")
    assert seen == [None]


def test_no_elements_no_call():
    _op.apply(hetccl.Op.Create(lambda *_: pytest.fail("called")), "float64", b"", bytearray())


def test_exception_comes_out(mpi_op):
    def function(a, b, datatype):
        raise KeyError("mine")

    for op in (hetccl.Op.Create(function), mpi_op(function)):
        with pytest.raises(KeyError, match="mine"):
            apply(op)


def test_freed():
    op = hetccl.Op.Create(keep_left_tenfold)
    op.Free()
    with pytest.raises(ValueError, match="freed"):
        _op.describe(op, "float64")
    theirs = MPI.Op.Create(keep_left_tenfold)
    held = _op.describe(theirs, "float64")["op"]
    theirs.Free()
    with pytest.raises(ValueError, match="OP_NULL"):
        _op.describe(theirs, "float64")
    np.testing.assert_array_equal(apply(held), 10 * np.arange(5.0) + np.arange(5.0) + 100)


@pytest.mark.parametrize("function", [None, 3, "sum"])
def test_function_that_cannot_be_called(function):
    with pytest.raises(TypeError, match="function:"):
        hetccl.Op.Create(function)


def test_function_pickles():
    again = pickle.loads(pickle.dumps(hetccl.Op.Create(keep_left_tenfold, commute=True)))
    assert again.is_commutative
    np.testing.assert_array_equal(apply(again), apply(hetccl.Op.Create(keep_left_tenfold)))


@pytest.fixture
def op_made_in_c():
    """An MPI op without a Python function, as a C library under the program would make one."""
    paths = {line.split()[-1] for line in open("/proc/self/maps") if "libmpi" in line}
    libraries = [ctypes.CDLL(path) for path in paths]
    creators = [library.MPI_Op_create for library in libraries if hasattr(library, "MPI_Op_create")]
    if not creators:
        pytest.skip("this MPI's C library was not found among the process's files")
    double_p = ctypes.POINTER(ctypes.c_double)
    shape = ctypes.CFUNCTYPE(None, double_p, double_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)

    def body(a, b, count, datatype):
        for i in range(count[0]):
            b[i] += 10 * a[i]

    function = shape(body)
    handle = ctypes.c_void_p() if MPI._sizeof(MPI.Op) == ctypes.sizeof(ctypes.c_void_p) else ctypes.c_uint()
    assert creators[0](function, 1, ctypes.byref(handle)) == MPI.SUCCESS
    op = MPI.Op.fromhandle(ctypes.c_int(handle.value).value % 2**64 if handle.value < 2**32 else handle.value)
    yield op, function
    op.Free()


def test_op_made_in_c(op_made_in_c):
    op, _ = op_made_in_c
    assert _op.describe(op, "float64")["op"].is_commutative
    np.testing.assert_array_equal(apply(op), 10 * np.arange(5.0) + np.arange(5.0) + 100)
    np.testing.assert_array_equal(apply(op, "uint8", MPI.DOUBLE), 10 * np.arange(5.0) + np.arange(5.0) + 100)
    with pytest.raises(TypeError, match="op: MPI has no datatype for float8_e5m2"):
        _op.describe(op, "float8_e5m2")
