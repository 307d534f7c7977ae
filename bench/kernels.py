"""Bandwidth of the host reductions, one process, beside memcpy and NumPy in the same rounds.

    PYTHONPATH=. python bench/kernels.py [--nbytes 262144] [--variant avx2] [--dtype float32] [--op sum]

GB/s counts every byte that must move: (sources + 1) * nbytes for a reduction, 2 * nbytes for memcpy. Each round times a
reduction, NumPy's and a memcpy of the same nbytes, one after the other; a figure is the median over rounds of the
bandwidth, or of the ratio within a round, so that a busy machine slows both sides of a ratio.
"""

import argparse
import platform
import statistics
import time

import numpy as np

from hetccl import _kernels

try:
    from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
except ImportError:
    bfloat16 = float8_e4m3fn = float8_e5m2 = None

# Numbers of include/hetccl/abi.h.
DTYPES = {
    "int8": (0, np.int8),
    "uint8": (1, np.uint8),
    "int16": (32, np.int16),
    "uint16": (33, np.uint16),
    "int32": (2, np.int32),
    "uint32": (3, np.uint32),
    "int64": (4, np.int64),
    "uint64": (5, np.uint64),
    "float16": (6, np.float16),
    "bfloat16": (9, bfloat16),
    "float32": (7, np.float32),
    "float64": (8, np.float64),
    "longdouble": (35, np.longdouble),
    "complex64": (36, np.complex64),
    "complex128": (37, np.complex128),
    "clongdouble": (44, np.clongdouble),
    "bool": (34, np.bool_),
    "float8_e4m3fn": (10, float8_e4m3fn),
    "float8_e5m2": (11, float8_e5m2),
    "float_int": (38, np.dtype([("value", np.float32), ("index", np.intc)], align=True)),
    "double_int": (39, np.dtype([("value", np.float64), ("index", np.intc)], align=True)),
}
OPS = {
    "sum": (0, np.add),
    "prod": (1, np.multiply),
    "max": (2, np.maximum),
    "min": (3, np.minimum),
    "avg": (4, None),
    "land": (32, np.logical_and),
    "lxor": (34, np.logical_xor),
    "band": (35, np.bitwise_and),
    "minloc": (38, None),
}
RANKS = 4  # AVG's divisor
MANY = 5  # sources of the n-ary column: an all-reduce over 5 ranks, or 4 peers and the rank itself
ROUND_S = 1e-3  # length of one timed stretch: thousands of clock ticks, few time slices


def repeats_of(call):
    """How many calls take about ROUND_S."""
    start = time.perf_counter()
    call()
    return max(1, int(ROUND_S / max(time.perf_counter() - start, 1e-7)))


def seconds(call, repeat):
    """Mean time of `repeat` calls in a row."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def measure(calls, rounds):
    """Times of each call, s: one list per call, one entry per round, the calls taking turns."""
    for call in calls:
        call()
    repeats = [repeats_of(call) for call in calls]
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, repeat, into in zip(calls, repeats, times):
            into.append(seconds(call, repeat))
    return times


def operands(scalar, nbytes):
    """MANY source arrays of nbytes and one destination; values near 1, so that products stay finite."""
    count = nbytes // np.dtype(scalar).itemsize
    rng = np.random.default_rng(1)
    sources = [(rng.random(count) + 0.5).astype(scalar) for _ in range(MANY)]
    return sources, np.empty_like(sources[0])


def row(op, dtype, args):
    """One line of the table: our bandwidth with 2 and with MANY sources, and ratios to memcpy and NumPy."""
    op_number, ufunc = OPS[op]
    dtype_number, scalar = DTYPES[dtype]
    sources, dst = operands(scalar, args.nbytes)
    raw = [s.view(np.uint8) for s in sources]
    out, copy = dst.view(np.uint8), np.empty(args.nbytes, np.uint8)
    divisor = RANKS if op == "avg" else 0
    pair = raw[:2]
    calls = [
        lambda: np.copyto(copy, raw[0]),
        lambda: _kernels.reduce(op_number, dtype_number, out, pair, divisor, args.variant),
        lambda: _kernels.reduce(op_number, dtype_number, out, raw, divisor, args.variant),
    ]
    if ufunc is not None:
        calls.append(lambda: ufunc(sources[0], sources[1], out=dst))
    times = measure(calls, args.rounds)
    memcpy, two, many = times[:3]
    rate = 3 * args.nbytes / statistics.median(two) / 1e9
    rate_many = (MANY + 1) * args.nbytes / statistics.median(many) / 1e9
    to_memcpy = statistics.median(1.5 * c / t for c, t in zip(memcpy, two))
    to_numpy = f"{statistics.median(n / t for n, t in zip(times[3], two)):8.2f}" if ufunc else f"{'-':>8}"
    return f"| {dtype:10} | {op:4} | {rate:8.1f} | {to_memcpy:8.2f} | {to_numpy} | {rate_many:9.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nbytes", type=int, default=1 << 18, help="bytes of each operand (default 256 KiB)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--variant", choices=list(_kernels.VARIANTS), help="default: the one in use")
    parser.add_argument("--dtype", choices=list(DTYPES), action="append")
    parser.add_argument("--op", choices=list(OPS), action="append")
    args = parser.parse_args()
    print(
        f"{platform.machine()}, variant {args.variant or list(_kernels.VARIANTS)[-1]} of {list(_kernels.VARIANTS)}; "
        f"NumPy {np.__version__}; {args.nbytes} bytes per operand; medians of {args.rounds} rounds\n"
    )
    print(f"| dtype      | op   | GB/s (2) | / memcpy | / NumPy  | GB/s ({MANY})  |")
    print("|------------|------|---------:|---------:|---------:|----------:|")
    defined = set(_kernels.defined())
    for dtype in args.dtype or DTYPES:
        for op in args.op or OPS:
            if (OPS[op][0], DTYPES[dtype][0]) in defined and DTYPES[dtype][1] is not None:
                print(row(op, dtype, args), flush=True)


if __name__ == "__main__":
    main()
