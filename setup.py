"""Build the extension modules: an explicit list, in layer order. Needs Cython and a C compiler, nothing else."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import device_kernels

# Layer order (docs/architecture.md): a module may cimport only from those before it.
MODULES = [
    "_abi",
    "_mutex",
    "_dl",
    "_verbs_errors",
    "_verbs",
    "_runtime",
    "_cuda",
    "_hip",
    "_host",
    "_device_compiler",
    "_ccl",
    "_nccl",
    "_oneccl",
    "_dtype",
    "_layout",
    "_overlap",
    "_foreign",
    "_array",
    "_buffer",
    "_spec",
    "_kernels",
    "_device_kernels",
    "_op",
    "_stream",
    "_watched",
    "_vendor",
    "_shm",
    "_board",
    "_rail",
    "_mr_cache",
    "_mr_notes",
    "_mr_trial",
    "_rdma_device",
    "_rdma",
    "_tcp",
    "_rail_trial",
    "_wire_peer",
    "_wire_trial",
    "_wire_record",
    "_wire_poll",
    "_wire",
    "_wire_device_trial",
    "_calls",
    "_program",
    "_passage",
    "_letters",
    "_outbox",
    "_mailbox",
    "_mailbox_trial",
    "_ferry",
    "_agree",
    "_row",
    "_progress",
    "_engine",
    "_reporter",
    "_executor",
    "_launch",
    "_reducible",
    "_marks",
    "_crossing",
    "_crossing_messages",
    "_lists",
    "_request",
    "_burst",
    "_compose",
    "_arguments",
    "_endpoint",
    "_placement",
    "_reductions",
    "_movements",
    "_messages",
    "_comm",
]

STAGE = Path("build/cython/hetccl")
DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "cdivision": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "always_allow_keywords": True,
}


def stage():
    """Link pyx/ to where Cython expects the package: it finds a module's .pxd by the package's folder name."""
    STAGE.parent.mkdir(parents=True, exist_ok=True)
    if not STAGE.is_symlink():
        STAGE.symlink_to(os.path.relpath("pyx", STAGE.parent), target_is_directory=True)
    # The kernels' source is part of _device_kernels: it is compiled where no code was built ahead for a device.
    device_kernels.write_header(STAGE.parent / "device_source.h")


class BuildWithKernels(build_py):
    """Takes device code along that `make kernels` built of this source; without it, it is compiled at run time."""

    def run(self):
        super().run()
        for path in device_kernels.built() if not self.editable_mode else ():
            target = Path(self.build_lib, "hetccl", "device_code", path.name)
            self.mkpath(str(target.parent))
            self.copy_file(str(path), str(target))


def extensions():
    headers = [str(p) for p in sorted(Path("include/hetccl").glob("*.h"))]
    return [
        Extension(
            f"hetccl.{name}",
            [str(STAGE / f"{name}.pyx")],
            include_dirs=["include", str(STAGE.parent)],
            depends=headers,
            libraries=["dl"],
            extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-Wno-unused-function"],
        )
        for name in MODULES
    ]


if __name__ == "__main__":
    stage()
    setup(
        cmdclass={"build_py": BuildWithKernels},
        ext_modules=cythonize(
            extensions(), include_path=["build/cython"], compiler_directives=DIRECTIVES, nthreads=os.cpu_count()
        ),
    )
