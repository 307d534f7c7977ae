from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHetccl(PythonPackage):
    """Collectives and messages for clusters that mix GPU vendors, through mpi4py's API.

    CUDA, ROCm, oneCCL and libibverbs are opened at run time, where they are: none is a dependency."""

    pypi = "hetccl/hetccl-0.1.0.tar.gz"

    license("Apache-2.0")

    # Not released yet, so that there is no checksum: `spack develop` takes the checkout.
    version("0.1.0")

    depends_on("c", type="build")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cython@3.0.11:3", type="build")

    depends_on("py-mpi4py@4", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))

    # memfd, futex and process_vm_readv are Linux's.
    requires("platform=linux")
