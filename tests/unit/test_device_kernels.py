"""The device kernels' source, compiled for the host: every kernel gives the bits of the host's loops, and of NumPy."""

import re

import numpy as np
import pytest
from device_kernel_cases import (
    DEFINED,
    DTYPE_NUMBERS,
    HOSTS,
    ITEMSIZES,
    NO_GPU_HAS,
    OP_NUMBERS,
    call,
    divisor_of,
    every_kernel,
    host_result,
    library,
    reduce,
)
from elf import Elf
from kernel_cases import (
    DTYPES,
    LOC_OPS,
    NARROW,
    OPS,
    PAIRS,
    UNDEFINED,
    Guarded,
    assert_same,
    bits,
    check,
    expected,
    operands,
)

from hetccl import _device_kernels, _kernels

COUNTS = [0, 1, 7, 1023]
NSOURCES = [1, 2, 3, 4, 5, 8]
BYTES = np.dtype(np.uint8)
ARITHMETIC = [(op, dtype) for op, dtype in DEFINED if op in OPS and dtype not in PAIRS]


def raw_operands(op, dtype, nsources, count):
    """nsources arrays of bytes: of numbers those of the host's tests, of pairs and bools any that there are."""
    if dtype in PAIRS or dtype == "bool":
        rng = np.random.default_rng(list(f"{op}{dtype}".encode()))
        arrays = [rng.integers(0, 256, count * ITEMSIZES[dtype]).astype(np.uint8) for _ in range(nsources)]
        for array in arrays:
            array[rng.random(len(array)) < 0.6] = 0  # values and indices tie, NaNs are few, bools are false
        return arrays
    return [bits(array[:count]) for array in operands(dtype)[:nsources]]


def assert_same_bits(op, dtype, got, want, context):
    if dtype in PAIRS or dtype == "bool" or op not in OPS:
        wrong = np.flatnonzero(got != want)
        assert not len(wrong), f"{op} {dtype} {context}: {len(wrong)} bytes differ, first at {wrong[0]}"
    else:
        scalar = DTYPES[dtype][1]
        check(op, dtype, got.view(scalar), want.view(scalar), context)


def test_every_reduction_but_those_no_gpu_can_do_has_a_kernel():
    named = {pair for pair in HOSTS if _device_kernels.kernel_name(OP_NUMBERS[pair[0]], DTYPE_NUMBERS[pair[1]])}
    assert named == set(DEFINED)
    assert {dtype for _, dtype in HOSTS} - {dtype for _, dtype in DEFINED} == NO_GPU_HAS


def test_what_the_host_does_not_define_has_no_kernel():
    every = {(op, dtype) for op in OP_NUMBERS for dtype in DTYPE_NUMBERS}
    named = {pair for pair in every if _device_kernels.kernel_name(OP_NUMBERS[pair[0]], DTYPE_NUMBERS[pair[1]])}
    assert named <= set(HOSTS)


def test_every_kernel_of_the_source_is_used():
    used = {_device_kernels.kernel_name(OP_NUMBERS[op], DTYPE_NUMBERS[dtype])[0] for op, dtype in DEFINED}
    used |= {_device_kernels.scaling_name(dtype) for dtype in _kernels.scalable()} - {None}
    exported = {name for name in Elf.of(library()._name).symbols() if name.startswith("hetccl_")}
    assert exported == used


@every_kernel
@pytest.mark.parametrize("nsources", NSOURCES)
def test_equals_the_hosts_loops(op, dtype, nsources):
    """At aligned addresses, one element off, and an odd number of bytes off; one block and three."""
    size = ITEMSIZES[dtype]
    for count, (offset, step), nblocks in zip(
        COUNTS * 3, [(0, 0)] * 4 + [(size, 16)] * 4 + [(3, 5)] * 4, [1, 3, 2] * 4
    ):
        values = raw_operands(op, dtype, nsources, count)
        sources = [Guarded(BYTES, count * size, (offset + i * step) % 64, v).raw for i, v in enumerate(values)]
        out = Guarded(BYTES, count * size, offset)
        reduce(op, dtype, out.raw, sources, nblocks, divisor_of(op))
        want = host_result(op, dtype, values, divisor_of(op)) if count else out.raw
        assert_same_bits(op, dtype, out.raw.copy(), want, f"count {count}, offset {offset}")
        out.assert_guards(f"count {count}, offset {offset}")


@every_kernel
def test_out_may_be_any_source(op, dtype):
    size, count, nsources = ITEMSIZES[dtype], 1023, 5
    values = raw_operands(op, dtype, nsources, count)
    want = host_result(op, dtype, values, divisor_of(op))
    for position in range(nsources):
        sources = list(values)
        out = Guarded(BYTES, count * size, 0, values[position])
        sources[position] = out.raw
        reduce(op, dtype, out.raw, sources, 2, divisor_of(op))
        assert_same_bits(op, dtype, out.raw.copy(), want, f"in place of source {position}")


@pytest.mark.parametrize("op, dtype", ARITHMETIC, ids=[f"{dtype}-{op}" for op, dtype in ARITHMETIC])
@pytest.mark.parametrize("nsources", [1, 2, 5])
def test_equals_numpy(op, dtype, nsources):
    """The reference that the host's loops are tested by, so that both are not wrong together."""
    assert (op, dtype) not in UNDEFINED
    count, scalar = 4099, DTYPES[dtype][1]
    out = np.empty(count, scalar)
    reduce(op, dtype, bits(out), [bits(s[:count]) for s in operands(dtype)[:nsources]], 3, divisor_of(op))
    check(op, dtype, out, expected(op, dtype, nsources)[:count], f"{nsources} sources")


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_pattern_of_narrow_floats(op, dtype):
    """All 65536 pairs of bytes; of 16-bit floats all patterns, each with another one."""
    scalar = DTYPES[dtype][1]
    patterns = np.arange(1 << 16)
    if scalar.itemsize == 1:
        pair = [(patterns >> 8).astype(np.uint8), (patterns & 255).astype(np.uint8)]
    else:
        pair = [patterns.astype(np.uint16), np.random.default_rng(5).permutation(patterns).astype(np.uint16)]
    out = np.empty(1 << 16, scalar)
    reduce(op, dtype, bits(out), [bits(a) for a in pair], 4)
    assert_same_bits(op, dtype, bits(out), host_result(op, dtype, [bits(a) for a in pair]), "all patterns")


@pytest.mark.parametrize("op", LOC_OPS)
def test_pairs_by_hand(op):
    """Least or greatest value, then the lowest index; a NaN before every number."""
    kind = np.dtype([("value", "f4"), ("index", "i4")])
    a = np.array([(1, 5), (2, 4), (2, 9), (np.nan, 3), (7, 1), (np.nan, 8)], kind)
    b = np.array([(2, 1), (1, 9), (2, 4), (0, 1), (np.nan, 2), (np.nan, 4)], kind)
    out = np.empty(6, kind)
    reduce(op, "float_int", out.view(np.uint8), [a.view(np.uint8), b.view(np.uint8)])
    assert out["index"].tolist() == {"minloc": [5, 9, 4, 3, 2, 4], "maxloc": [1, 4, 4, 3, 2, 4]}[op]


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in NO_GPU_HAS and name != "bool"])
def test_products_with_a_factor(dtype):
    scalar = DTYPES[dtype][1]
    factor = np.array([1.875 - 0.5j if scalar.kind == "c" else 3 if scalar.kind in "iu" else -0.75]).astype(scalar)
    for offset, count in ((0, 1023), (scalar.itemsize, 7), (1, 65), (0, 0)):
        values = operands(dtype)[0][:count]
        want = np.empty(count, scalar)
        out = Guarded(scalar, count, offset)
        name = _device_kernels.scaling_name(DTYPE_NUMBERS[dtype])
        call(name, out.raw.ctypes.data, [values.ctypes.data], count, 2, 1, factor.tobytes())
        if count:
            _kernels.scale(DTYPE_NUMBERS[dtype], bits(want), bits(values), bits(factor))
        assert_same(out.values(), want, False, f"{dtype}, count {count}, offset {offset}")
        out.assert_guards(f"count {count}")


def test_source_needs_no_header():
    """Run-time compilers have none."""
    text = re.sub(r"#ifndef HETCCL_DEVICE\b.*?#endif", "", _device_kernels.source(), flags=re.DOTALL)
    assert "#include" not in text
