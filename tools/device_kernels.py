"""Compile the reduction kernels ahead of time, for the GPUs that the compilers found here know.

usage: python tools/device_kernels.py [--folder DIR] [--nvcc FILE] [--clang FILE] [--needs nvidia,amd]

Writes hetccl/device_code/kernels-<key>.fatbin (NVIDIA) and kernels-<key>-<architecture>.co (AMD), which a wheel takes
along; the key is the source's, so that code of another source is never loaded. A compiler that is not there, or does
not know an architecture, is said and left out: what is missing is compiled at run time. See docs/kernels.md.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
MAIN = "hetccl/device_reduce.h"
FOLDER = ROOT / "hetccl" / "device_code"

# The first is also compiled to PTX, which a driver turns into code for any later GPU.
NVIDIA = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")
AMD = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
# No fused product and sum, and IEEE 754's division and subnormals: results equal the host's to the bit.
NVCC_OPTIONS = (
    "-x",
    "cu",
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-Xfatbin",
    "-compress-all",
)
CLANG_OPTIONS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"),
    *("-std=c++17", "-O3", "-ffp-contract=off", "-mcode-object-version=4", "-Wl,-s"),
)
COMPILE_S = 900


def source(include=INCLUDE):
    """The kernels as one text: hetccl/device_reduce.h with each header in the place of its first #include."""
    seen = set()

    def expanded(name):
        seen.add(name)
        for line in (include / name).read_text().splitlines():
            found = re.fullmatch(r'#include "(hetccl/\w+\.h)"', line)
            if found is None:
                yield line
            elif found[1] not in seen:
                yield from expanded(found[1])

    return "\n".join(expanded(MAIN)) + "\n"


def key(text):
    """Names a source: 12 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def built(folder=FOLDER):
    """The files of code built ahead of this source: sorted list of Path."""
    return sorted(folder.glob(f"kernels-{key(source())}*"))


def header(text):
    """A C header with the source as a string, and its key."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    lines = "\n".join(f'    "{line}\\n"' for line in escaped.splitlines())
    return (
        f'static const char hetccl_device_key[] = "{key(text)}";\n'
        f"static const char hetccl_device_source[] =\n{lines};\n"
    )


def write_header(path):
    """Write the header unless it is there already: its age decides what is compiled again."""
    text = header(source())
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def run(*command):
    """None, or what the compiler said when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def nvcc_architectures(nvcc):
    """Those of NVIDIA that this nvcc knows."""
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, timeout=60)
    return [arch for arch in NVIDIA if arch in done.stdout.split()]


def nvidia(nvcc, text, folder):
    """Make the fatbin. Returns the architectures in it, raises RuntimeError with the compiler's words."""
    known = nvcc_architectures(nvcc)
    if not known:
        raise RuntimeError(f"{nvcc} knows none of {', '.join(NVIDIA)}")
    # Threads of nvcc's own: it compiles one architecture after another else.
    codes = ["--threads=0", *(f"-gencode=arch=compute_{arch[3:]},code={arch}" for arch in known)]
    ptx = f"-gencode=arch=compute_{known[0][3:]},code=compute_{known[0][3:]}"
    with tempfile.TemporaryDirectory() as scratch:
        path, out = Path(scratch, "kernels.cu"), Path(scratch, "kernels.fatbin")
        path.write_text(text)
        problem = run(nvcc, *NVCC_OPTIONS, *codes, ptx, "--fatbin", "-o", str(out), str(path))
        if problem:
            raise RuntimeError(problem)
        shutil.move(out, folder / f"kernels-{key(text)}.fatbin")
    return [*known, "PTX"]


def amd(clang, text, folder):
    """Make the code objects. Returns (architectures made, {architecture: why not})."""
    made, refused = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        path, out = Path(scratch, "kernels.hip"), Path(scratch, "kernels.co")
        path.write_text(text)
        for arch in AMD:
            problem = run(clang, *CLANG_OPTIONS, f"--offload-arch={arch}", "-o", str(out), str(path))
            if problem:
                refused[arch] = problem.splitlines()[0]
            else:
                out.chmod(0o644)
                shutil.move(out, folder / f"kernels-{key(text)}-{arch}.co")
                made.append(arch)
    return made, refused


def clangs():
    """Names of clang's programs, the newest first; the plain name may be of any release."""
    return [*(f"clang++-{release}" for release in range(24, 13, -1)), "clang++", "/opt/rocm/llvm/bin/clang++"]


def find(chosen, names):
    return chosen or next(filter(None, map(shutil.which, names)), None)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the code goes (default: the package)")
    parser.add_argument("--nvcc", help="default: nvcc in PATH")
    parser.add_argument("--clang", help="default: the newest clang++ in PATH")
    parser.add_argument("--needs", default="", help="vendors without which to fail: nvidia, amd or both with a comma")
    args = parser.parse_args(arguments)
    text = source()
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    made = {"nvidia": [], "amd": []}
    nvcc, clang = find(args.nvcc, ("nvcc", "/usr/local/cuda/bin/nvcc")), find(args.clang, clangs())
    if nvcc:
        try:
            made["nvidia"] = nvidia(nvcc, text, args.folder)
        except RuntimeError as error:
            print(f"kernels: not for NVIDIA: {error}")
    if clang:
        made["amd"], refused = amd(clang, text, args.folder)
        for arch, why in refused.items():
            print(f"kernels: not for {arch}: {why}")
    for vendor, compiler in (("nvidia", nvcc), ("amd", clang)):
        print(f"kernels: {vendor}: {', '.join(made[vendor]) or 'none'} by {compiler or 'no compiler'}")
    nbytes = sum(path.stat().st_size for path in args.folder.iterdir())
    print(f"kernels: {nbytes / 2**20:.1f} MiB in {args.folder}, source {key(text)}")
    missing = [vendor for vendor in filter(None, args.needs.split(",")) if not made[vendor]]
    if missing:
        sys.exit(f"kernels: none for {' and '.join(missing)}")


if __name__ == "__main__":
    main(sys.argv[1:])
