"""The CUDA functions that hetccl declares by hand, against the toolkit's cuda.h: a C++ compiler compares the sizes of
result and arguments. It needs a toolkit, no GPU."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = [Path(os.environ.get("CUDA_HOME") or "/usr"), *sorted(Path("/usr/local").glob("cuda*"))]
TOOLKIT = next((place for place in PLACES if (place / "include" / "cuda.h").exists()), None)
COMPILER = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")

HEAD = """
#include <cuda.h>
#include <cstddef>
#include <cstdint>
#include <type_traits>
struct hetccl_cuda_ipc_t { char bytes[64]; };
// Numbers and pointers by their bytes alone, since CUdeviceptr is a number; structs apart: they are passed otherwise.
template <class T> constexpr unsigned long kind() {
    return sizeof(T) * 2 + (std::is_class<T>::value ? 1 : 0);
}
template <unsigned long... K> struct kinds {};
template <class R, class... A> kinds<kind<R>(), kind<A>()...> shape_of(R (*)(A...));
"""


def declared():
    """[(symbol, parameters)] of include/hetccl/runtime_cuda.h."""
    text = (ROOT / "include" / "hetccl" / "runtime_cuda.h").read_text().replace("\\\n", " ")
    row = re.compile(r'X\(\w+,\s*(\w+),\s*(?:NULL|"\w+"),\s*"[\d.]+",\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\)')
    return [(symbol, " ".join(parameters.split())) for symbol, parameters in row.findall(text)]


ROWS = declared()


@pytest.mark.skipif(TOOLKIT is None, reason="no CUDA toolkit: set CUDA_HOME")
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("wrong", [False, True], ids=["as-declared", "one-wrong"])
def test_against_cuda_h(tmp_path, wrong):
    rows = [(symbol, parameters.replace("size_t", "unsigned")) for symbol, parameters in ROWS] if wrong else ROWS
    lines = [
        f"static_assert(std::is_same<decltype(shape_of(&{symbol})), "
        f'decltype(shape_of((int (*){parameters})0))>::value, "{symbol}");'
        for symbol, parameters in rows
    ]
    source = tmp_path / "signatures.cpp"
    source.write_text(HEAD + "\n".join(lines) + "\n")
    command = [COMPILER, "-std=c++17", "-fsyntax-only", f"-I{TOOLKIT}/include", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    wrong_names = re.findall(r"static assertion failed: (\w+)", done.stderr)
    if wrong:
        assert "cuMemAlloc_v2" in wrong_names
    else:
        assert (done.returncode, wrong_names) == (0, []), done.stderr


def test_all_rows_were_read():
    text = (ROOT / "include" / "hetccl" / "runtime_cuda.h").read_text()
    assert len(ROWS) == len(re.findall(r"\bX\(\w+, cu", text)) > 40
