"""Looks into the kernels' code for GPUs, which nothing here can run: built ahead by `make kernels`, and made by NVRTC.

What is looked at is in hetccl/device_code, or in the folder that DEVICE_CODE names.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from device_kernel_cases import Arguments, library
from elf import EM_AMDGPU, Elf

import amd_files
import device_kernels as tool
import launch
from amd.need import fetched
from hetccl import _device_kernels, kernels, libraries
from hetccl._device_compiler import Compiler
from hetccl.errors import GpuError, LibraryNotFound

FOLDER = Path(os.environ.get("DEVICE_CODE") or tool.FOLDER)
# EF_AMDGPU_MACH_*: the last byte of an AMD ELF file's flags (LLVM's AMDGPU guide, "ELF header").
MACHINES = {
    "gfx906": 0x2F, "gfx908": 0x30, "gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F, "gfx1030": 0x36, "gfx1100": 0x41,
    "gfx1201": 0x4E,
}  # fmt: skip
ELFOSABI_AMDGPU_HSA, ABI_VERSION_4 = 64, 2
EM_CUDA = 190
DISASSEMBLERS = [*(f"llvm-objdump-{release}" for release in range(24, 13, -1)), "llvm-objdump"]
built = kernels.built_ahead("hip", FOLDER)

every_object = pytest.mark.parametrize("arch", built or [pytest.param("", marks=pytest.mark.skip("no code for AMD"))])


@cache
def names():
    """All kernels, from the source's build for the host."""
    return {name for name in Elf.of(library()._name).symbols() if name.startswith("hetccl_")}


@cache
def code_object(arch):
    return Elf.of(_device_kernels.built_ahead("hip", arch, FOLDER))


@cache
def instructions(arch, name):
    """A kernel's instructions by llvm-objdump: list of str; skips without it."""
    disassembler = os.environ.get("LLVM_OBJDUMP") or next(filter(None, map(shutil.which, DISASSEMBLERS)), None)
    if disassembler is None:
        pytest.skip("no llvm-objdump to read the instructions with")
    path = _device_kernels.built_ahead("hip", arch, FOLDER)
    symbol = code_object(arch).symbols()[name]
    bounds = [f"--start-address={symbol.value}", f"--stop-address={symbol.value + symbol.nbytes}"]
    done = subprocess.run([disassembler, "-d", *bounds, path], capture_output=True, text=True, timeout=120)
    if done.returncode or "<unknown>" in done.stdout:
        pytest.skip(f"{disassembler} does not know {arch}: {done.stderr.strip()[:200]}")
    return re.findall(r"^\t(\w+)", done.stdout, re.MULTILINE)


def some(pattern, found):
    return [name for name in found if re.fullmatch(pattern, name)]


def test_architectures_built():
    """All that the tool asks for, but those that an older clang refused."""
    if not built:
        pytest.skip("no code for AMD: `make kernels` found no clang with its target")
    assert set(built) <= set(tool.AMD) and len(built) >= 5


@every_object
def test_object_is_of_its_architecture(arch):
    elf = code_object(arch)
    assert (elf.machine, elf.os_abi, elf.abi_version) == (EM_AMDGPU, ELFOSABI_AMDGPU_HSA, ABI_VERSION_4)
    assert elf.flags & 0xFF == MACHINES[arch]


@every_object
def test_object_has_every_kernel(arch):
    symbols = {name: symbol for name, symbol in code_object(arch).symbols().items() if name.startswith("hetccl_")}
    assert {name for name in symbols if not name.endswith(".kd")} == names()
    assert {name.removesuffix(".kd") for name in symbols if name.endswith(".kd")} == names()
    assert all(symbols[name].nbytes > 100 for name in names())


@every_object
def test_kernel_descriptors(arch):
    """No memory of a block's or a thread's own, an argument of the host's size, and the entry where the code is."""
    elf = code_object(arch)
    symbols = elf.symbols()
    for name in names():
        descriptor = symbols[f"{name}.kd"]
        shared, private, kernarg, entry = struct.unpack_from("<III4xq", elf.bytes_of(descriptor))
        assert (shared, private, kernarg) == (0, 0, ctypes.sizeof(Arguments)), name
        assert descriptor.value + entry == symbols[name].value, name


@every_object
def test_memory_is_moved_16_bytes_at_a_time(arch):
    found = instructions(arch, "hetccl_reduce_sum_f32")
    assert len(some("global_load_(dwordx4|b128)", found)) >= 3, "the first source, the next, and one more in turn"
    assert some("global_store_(dwordx4|b128)", found)
    assert some("global_load_(dword|b32)", found) and some("global_store_(dword|b32)", found)
    assert not some("flat_.*|scratch_.*|buffer_.*|ds_.*", found)


@every_object
@pytest.mark.parametrize(
    "name, wanted",
    [
        ("hetccl_reduce_sum_f32", "v_(pk_|dual_)?add_f32.*"),
        ("hetccl_reduce_prod_f32", "v_(pk_|dual_)?mul_f32.*"),
        ("hetccl_reduce_sum_f64", "v_add_f64.*"),
        ("hetccl_reduce_sum_bf16", "v_(pk_|dual_)?add_f32.*"),
        ("hetccl_reduce_prod_c64", "v_(pk_|dual_)?mul_f32.*"),
        ("hetccl_scale_e4m3", "v_(pk_|dual_)?mul_f32.*"),
    ],
)
def test_arithmetic_is_not_fused(arch, name, wanted):
    found = instructions(arch, name)
    assert some(wanted, found)
    assert not some(r"v_(pk_)?(fma|mac|fmac|mad)_f(32|64).*|v_(pk_)?(fma|mad)_mix.*|v_dual_fmac.*", found)


@every_object
def test_division_is_exact(arch):
    """The steps of a division that is rounded rightly, not an approximate reciprocal alone."""
    assert some("v_div_fixup_f32.*", instructions(arch, "hetccl_reduce_avg_f32"))
    assert some("v_div_fixup_f64.*", instructions(arch, "hetccl_reduce_avg_f64"))


def test_fat_binary_has_every_architecture():
    """Those that this nvcc knows, and PTX of the first."""
    path = Path(_device_kernels.built_ahead("cuda", "", FOLDER))
    nvcc = tool.find(None, ("nvcc", "/usr/local/cuda/bin/nvcc"))
    if not path.exists() or nvcc is None:
        pytest.skip("no code for NVIDIA: `make kernels` found no nvcc")
    known = [int(arch[3:]) for arch in tool.nvcc_architectures(nvcc)]
    entries = kernels.fatbin_entries(path.read_bytes())
    assert sorted(number for kind, number in entries if kind == kernels.FATBIN_CODE) == sorted(known)
    assert [number for kind, number in entries if kind == kernels.FATBIN_PTX] == known[:1]


def test_code_is_small_enough_for_a_wheel():
    files = [path for path in FOLDER.glob("*") if _device_kernels.KEY in path.name]
    if not files:
        pytest.skip("nothing was built ahead")
    assert sum(path.stat().st_size for path in files) < 5 << 20


@cache
def nvrtc():
    try:
        return Compiler.open("cuda", folders=libraries.wheel_folders())
    except LibraryNotFound as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("arch", tool.NVIDIA)
def test_nvrtc_compiles_the_source(arch):
    """Code that is not in the fat binary's compressed form: each kernel's, without memory of a thread's own."""
    if arch not in nvrtc().architectures():
        pytest.skip(f"this NVRTC ({nvrtc().version()}) does not know {arch}")
    image, target = nvrtc().compile(_device_kernels.source().encode(), arch)
    assert target == arch
    elf = Elf(image)
    sections = {section.name for section in elf.sections}
    assert elf.machine == EM_CUDA
    assert {name.removeprefix(".text.") for name in sections if name.startswith(".text.hetccl_")} == names()
    assert not [name for name in sections if name.startswith((".nv.local", ".nv.shared.hetccl_"))]


def test_nvrtcs_ptx():
    """For a GPU that it does not know: 16 bytes at a time, nothing fused, no memory of a thread's own."""
    image, target = nvrtc().compile(_device_kernels.source().encode(), "sm_999")
    text = image.rstrip(b"\0").decode()
    assert target.startswith("compute_") and f".target sm_{target[8:]}" in text
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?\n)\}\n", text, re.DOTALL))
    assert set(bodies) == names()
    body = bodies["hetccl_reduce_sum_f32"]
    assert len(re.findall(r"ld\.global\.v[42]\.[bu](?:32|64)", body)) >= 3 and re.search(r"st\.global\.v[42]", body)
    assert re.search(r"add(\.rn)?\.f32", body)
    for name, body in bodies.items():
        assert ".local" not in body, name
        assert "avg" in name or not re.search(r"\bfma\.|\bmad\.(rn\.)?f", body), name
    assert re.search(r"div\.rn\.f32", bodies["hetccl_reduce_avg_f32"])


def test_nvrtc_tells_what_is_wrong():
    with pytest.raises(GpuError, match=r"nvrtcCompileProgram.*\n.*this_is_no_type"):
        nvrtc().compile(b"__global__ void f(this_is_no_type x) {}", "sm_90")


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a", "gfx1030"])
def test_hiprtc_compiles_the_source(arch, tmp_path):
    """AMD's own, of Debian's ROCm 5.2; it needs no device, and knows these."""
    library, out = fetched(amd_files.debian_library), tmp_path / "image"
    paths = {"LD_LIBRARY_PATH": library.parent, "PYTHONPATH": launch.ROOT}
    before = {name: os.environ.get(name) for name in paths}
    environment = {name: os.pathsep.join(filter(None, [str(path), before[name]])) for name, path in paths.items()}
    command = [sys.executable, Path(__file__).with_name("prog_compile.py"), "hip", library, arch, out]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    elf = Elf(out.read_bytes())
    assert elf.machine == EM_AMDGPU and elf.flags & 0xFF == MACHINES[arch]
    symbols = {name for name in elf.symbols() if name.startswith("hetccl_")}
    assert symbols == names() | {f"{name}.kd" for name in names()}
