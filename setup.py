"""Build the extension modules: an explicit list, in layer order. Needs Cython and a C compiler, nothing else."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

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


def extensions():
    headers = [str(p) for p in sorted(Path("include/hetccl").glob("*.h"))]
    return [
        Extension(
            f"hetccl.{name}",
            [str(STAGE / f"{name}.pyx")],
            include_dirs=["include"],
            depends=headers,
            libraries=["dl"],
            extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-Wno-unused-function"],
        )
        for name in MODULES
    ]


if __name__ == "__main__":
    stage()
    setup(
        ext_modules=cythonize(
            extensions(), include_path=["build/cython"], compiler_directives=DIRECTIVES, nthreads=os.cpu_count()
        )
    )
