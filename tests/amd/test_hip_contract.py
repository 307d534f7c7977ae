"""hetccl's HIP table against HIP's own headers of 5.2 and 7.1, and against what AMD compiled of 7.15.

Each function's signature, each constant and each offset. A compiler judges, with AMD's declarations on the one side.
"""

import functools
import re

import pytest

import amd_files
from amd import contract
from amd.contract import Function
from amd.need import fetched

OWN = contract.own("runtime.h", "runtime_hip.h")
FUNCTIONS = {name: function for function in contract.hip_functions() for name in function.names}
FLAGS = ("-D__HIP_PLATFORM_AMD__",)
HEADERS = ("hip/hip_runtime_api.h", "hsa/hsa_ext_amd.h")
# What AMD published, by HIP's release: headers of the first two, bindings of the last.
RELEASES = {"5.2": 5, "7.1": 7, "7.15": None}
# From HIP 6 on, headers make another symbol of the old name; the old one is asked for in older libraries alone.
HIDDEN_SINCE_6 = {"hipGetDeviceProperties"}
# AMD's bindings hold HIP and RCCL, not HSA.
NOT_IN_BINDINGS = {"hsa_amd_portable_export_dmabuf"}

# What must be equal, by the least release of HIP that it is asked of. PLACE is offsetof, SIZE is sizeof.
SINCE_5 = {
    "HETCCL_HIP_INVALID_VALUE": "hipErrorInvalidValue",
    "HETCCL_HIP_INVALID_POINTER": "hipErrorInvalidDevicePointer",
    "HETCCL_HIP_NO_DEVICE": "hipErrorNoDevice",
    "HETCCL_HIP_NOT_READY": "hipErrorNotReady",
    "HETCCL_HIP_NOT_SUPPORTED": "hipErrorNotSupported",
    "HETCCL_HIP_UNKNOWN": "hipErrorUnknown",
    "HETCCL_HIP_POINTER_BUFFER_ID": "HIP_POINTER_ATTRIBUTE_BUFFER_ID",
    "HETCCL_HIP_COPY_DEFAULT": "hipMemcpyDefault",
    "HETCCL_HIP_HOST_ALLOC": "(int)(hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent)",
    "HETCCL_HIP_HOST_REGISTER": "(hipHostRegisterPortable | hipHostRegisterMapped)",
    "HETCCL_HIP_STREAM_NON_BLOCKING": "hipStreamNonBlocking",
    "HETCCL_HIP_EVENT_DISABLE_TIMING": "hipEventDisableTiming",
    "HETCCL_HIP_WAIT_GTE": "hipStreamWaitValueGte",
    "sizeof(hetccl_hip_ipc_t)": "SIZE(hipIpcMemHandle_t)",
    "sizeof(hetccl_hip_attributes_t)": "SIZE(hipPointerAttribute_t)",
    "offsetof(hetccl_hip_attributes_t, device)": "PLACE(hipPointerAttribute_t, device)",
    "offsetof(hetccl_hip_attributes_t, on_device)": "PLACE(hipPointerAttribute_t, devicePointer)",
    "offsetof(hetccl_hip_attributes_t, on_host)": "PLACE(hipPointerAttribute_t, hostPointer)",
    "offsetof(hetccl_hip_attributes_t, managed)": "PLACE(hipPointerAttribute_t, isManaged)",
    "offsetof(hetccl_hip_attributes_t, flags)": "PLACE(hipPointerAttribute_t, allocationFlags)",
}
ONLY_5 = {
    "HETCCL_HIP5_DEVICE": "hipMemoryTypeDevice",
    "HETCCL_HIP5_ARCH_OFFSET": "PLACE(hipDeviceProp_t, gcnArchName)",
    "offsetof(hetccl_hip_attributes_t, type)": "PLACE(hipPointerAttribute_t, memoryType)",
    # What ipc_open tries first.
    "0": "hipIpcMemLazyEnablePeerAccess",
}
SINCE_6 = {
    "HETCCL_HIP6_UNREGISTERED": "hipMemoryTypeUnregistered",
    "HETCCL_HIP6_DEVICE": "hipMemoryTypeDevice",
    "HETCCL_HIP6_MANAGED": "hipMemoryTypeManaged",
    "HETCCL_HIP6_ARCH_OFFSET": "PLACE(hipDeviceProp_t, gcnArchName)",
    "HETCCL_HIP_RANGE_DMABUF": "hipMemRangeHandleTypeDmaBufFd",
    "offsetof(hetccl_hip_attributes_t, type)": "PLACE(hipPointerAttribute_t, type)",
    "1": "hipIpcMemLazyEnablePeerAccess",
}
ENOUGH_ROOM = "HETCCL_HIP_PROPERTIES_NBYTES >= SIZE(hipDeviceProp_t)"
HSA = "HETCCL_HSA_FIRST == HSA_STATUS_ERROR"


def claims(release):
    major = int(release.split(".")[0])
    pairs = {**SINCE_5, **(SINCE_6 if major >= 6 else ONLY_5)}
    threshold = f"(HIP_VERSION >= HETCCL_HIP_6) == {int(major >= 6)}"
    return [*(f"{ours} == {theirs}" for ours, theirs in pairs.items()), ENOUGH_ROOM, threshold]


class Source:
    """One of the things of AMD's that hetccl's table is compared with.

    release      : (major, minor) of HIP
    names        : functions that it declares
    declarations : C++ text that declares them
    prelude      : C text with its constants, PLACE (offsetof) and SIZE (sizeof)
    flags        : for the compiler
    """

    def __init__(self, release, names, declarations, prelude, flags=()):
        self.release = tuple(map(int, release.split(".")))
        self.names = names
        self.declarations = declarations
        self.prelude = prelude + OWN
        self.flags = flags

    def must_have(self, name):
        since = tuple(map(int, (FUNCTIONS[name].release or "5.0").split(".")))
        left_out = (HIDDEN_SINCE_6 if self.release >= (6, 0) else set()) | (set() if self.flags else NOT_IN_BINDINGS)
        return since <= self.release and name not in left_out


def from_headers(release):
    include = fetched(amd_files.headers, RELEASES[release])
    names = set().union(*(contract.declared(include, header, FLAGS) for header in HEADERS))
    text = "".join(f"#include <{header}>\n" for header in HEADERS)
    as_c = f'#include "c_headers_begin.h"\n{text}#include "c_headers_end.h"\n'
    prelude = text + "#define PLACE offsetof\n#define SIZE sizeof\n"
    return Source(release, names, as_c, prelude, [*FLAGS, "-isystem", str(include)])


def from_bindings(release, declarations, compiled):
    lines = ["#define PLACE(type, field) place_##type##_##field", "#define SIZE(type) size_##type"]
    for name, struct in compiled["structs"].items():
        lines.append(f"#define size_{name} {struct['size']}")
        lines += [f"#define place_{name}_{field} {offset}" for field, offset in struct["offsets"].items()]
    values = compiled["values"].items()
    lines += [f"#define {name} {value}" for name, value in values if name.startswith(("hip", "HIP"))]
    names = set(declarations.functions)
    return Source(release, names, declarations.cpp([n for n in FUNCTIONS if n in names]), "\n".join([*lines, ""]))


@pytest.fixture(scope="module")
def source_of(request):
    """release -> Source, each made once."""

    @functools.cache
    def make(release):
        if RELEASES[release]:
            return from_headers(release)
        return from_bindings(release, *map(request.getfixturevalue, ("declarations", "compiled")))

    return make


@pytest.fixture(scope="module")
def wrong_in(source_of):
    """release -> names of the functions that are declared otherwise there."""

    @functools.cache
    def compare(release):
        source = source_of(release)
        there = [Function((name,), f.parameters, f.result) for name, f in FUNCTIONS.items() if name in source.names]
        return contract.mismatches(there, source.declarations, OWN, source.flags)

    return compare


@pytest.fixture(scope="module")
def untrue_in(source_of):
    """release -> the claims that do not hold there."""

    @functools.cache
    def compare(release):
        source = source_of(release)
        return contract.untrue(claims(release), source.prelude, source.flags)

    return compare


def test_table_is_read_whole():
    known = {"hipMalloc", "hipInit", "hipLaunchHostFunc", "hipGetErrorName", "hsa_amd_portable_export_dmabuf"}
    assert known <= set(FUNCTIONS)


def test_every_constant_is_compared():
    compared = " ".join([HSA, *(claim for release in RELEASES for claim in claims(release))])
    constants = contract.constants("runtime_hip.h")
    assert constants
    assert not [name for name in constants if not re.search(rf"\b{name}\b", compared)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_function(source_of, wrong_in, release, name):
    source = source_of(release)
    if name not in source.names:
        assert not source.must_have(name), f"HIP {release} has no {name}"
    assert name not in wrong_in(release), f"HIP {release} declares {name} otherwise"


@pytest.mark.parametrize(("release", "claim"), [(release, claim) for release in RELEASES for claim in claims(release)])
def test_number(untrue_in, release, claim):
    assert claim not in untrue_in(release)


def test_hsa_status():
    include = fetched(amd_files.headers, 7)
    assert not contract.untrue([HSA], OWN + "#include <hsa/hsa.h>\n", ["-isystem", str(include)])


# The tests above can fail: what is wrong in one place is refused, whatever of AMD's it is compared with.

WRONG = {
    "size of 32 bits": Function(("hipMalloc",), "void **ptr, int nbytes"),
    "no stream": Function(("hipMemcpyAsync",), "void *dst, const void *src, size_t nbytes, int kind"),
    "size and stream swapped": Function(("hipMallocAsync",), "void **ptr, void *stream, size_t nbytes"),
    "handle by address": Function(("hipIpcOpenMemHandle",), "void **ptr, void *handle, unsigned flags"),
    "mask of 64 bits": Function(("hipStreamWaitValue32",), "void *, void *, uint32_t, unsigned, uint64_t"),
    "device of 64 bits": Function(("hipGetDevice",), "size_t *device"),
    "a code for a text": Function(("hipGetErrorName",), "int code"),
    "callback without code": Function(("hipStreamAddCallback",), "void *, void (*)(void *, void *), void *, unsigned"),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=what) for what, function in WRONG.items()])
@pytest.mark.parametrize("release", RELEASES)
def test_wrong_signature_is_refused(source_of, release, function):
    source = source_of(release)
    assert contract.mismatches([function], source.declarations, OWN, source.flags) == list(function.names)


@pytest.mark.parametrize(
    ("release", "claim"),
    [
        ("5.2", "HETCCL_HIP6_DEVICE == hipMemoryTypeDevice"),
        ("7.1", "HETCCL_HIP5_DEVICE == hipMemoryTypeDevice"),
        ("7.15", "HETCCL_HIP5_DEVICE == hipMemoryTypeDevice"),
        ("7.1", "HETCCL_HIP5_ARCH_OFFSET == PLACE(hipDeviceProp_t, gcnArchName)"),
        ("7.15", "HETCCL_HIP5_ARCH_OFFSET == PLACE(hipDeviceProp_t, gcnArchName)"),
        ("5.2", "HETCCL_HIP_NOT_READY == hipErrorInvalidHandle"),
        ("7.15", "offsetof(hetccl_hip_attributes_t, managed) == PLACE(hipPointerAttribute_t, hostPointer)"),
    ],
)
def test_wrong_number_is_refused(source_of, release, claim):
    source = source_of(release)
    assert contract.untrue([claim], source.prelude, source.flags) == [claim]


def test_missing_function_is_refused(source_of):
    """What the library must have and has not is an error of test_function's kind."""
    source = source_of("5.2")
    assert not source.must_have("hipGetDevicePropertiesR0600")
    assert source_of("7.1").must_have("hipGetDevicePropertiesR0600")
    function = Function(("hipMallocNowhere",), "void **ptr, size_t nbytes")
    with pytest.raises(contract.CompilerError, match="hipMallocNowhere"):
        contract.mismatches([function], source.declarations, OWN, source.flags)
