"""Which GPU runtime and which CCL serve a vendor's devices, and how they are opened: the one registry of vendors."""

from typing import NamedTuple

from hetccl import _cuda, _hip, _host, _nccl, _oneccl, libraries


class Vendor(NamedTuple):
    """How a vendor's libraries are opened; both are opened once per process, and stay.

    runtime         : function (override, folders) -> _runtime.Runtime
    runtime_setting : the field of config.Config with the path of its library that the user wants
    ccl             : function (override, folders) -> _ccl.Ccl
    ccl_setting     : as runtime_setting
    unready_runtime : as runtime, and nothing is initialized
    """

    runtime: object
    runtime_setting: str
    ccl: object
    ccl_setting: str
    unready_runtime: object


VENDORS = {
    "nvidia": Vendor(_cuda.open, "cuda_lib", _nccl.open_nccl, "nccl_lib", _cuda.load),
    "amd": Vendor(_hip.open, "hip_lib", _nccl.open_rccl, "rccl_lib", _hip.load),
    "host": Vendor(lambda *where: _host.open(), "", _oneccl.open, "oneccl_lib", lambda *where: _host.open()),
}


def open_runtime(vendor, settings):
    """The GPU runtime of a vendor.

    vendor   : "nvidia" | "amd" | "host"
    settings : config.Config
    Returns  : _runtime.Runtime, the same one each time
    Raises   : LibraryNotFound, SymbolNotFound, GpuError (no device, or a driver that does not work)
    """
    known = VENDORS[vendor]
    return known.runtime(getattr(settings, known.runtime_setting, None), libraries.wheel_folders())


def load_runtime(vendor, settings):
    """The same without initializing it: only to be asked what its library has. Raises LibraryNotFound."""
    known = VENDORS[vendor]
    return known.unready_runtime(getattr(settings, known.runtime_setting, None), libraries.wheel_folders())


def open_ccl(vendor, settings):
    """The CCL of a vendor; as open_runtime.

    Returns : _ccl.Ccl, the same one each time
    Raises  : LibraryNotFound (or too old), SymbolNotFound
    """
    known = VENDORS[vendor]
    return known.ccl(getattr(settings, known.ccl_setting), libraries.wheel_folders())
