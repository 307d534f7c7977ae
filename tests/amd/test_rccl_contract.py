"""hetccl's RCCL table against what AMD declared and compiled: names, signatures, numbers, and the layout of structs."""

import re

import pytest

import launch
from amd import contract
from amd.contract import Function

OWN = contract.own("nccl.h")
FUNCTIONS = contract.rccl_functions()
SYMBOLS = [name for function in FUNCTIONS for name in function.names]

# Fields of the configuration's common prefix: hetccl's name, AMD's.
CONFIG = [
    ("size", "size"),
    ("magic", "magic"),
    ("version", "version"),
    ("blocking", "blocking"),
    ("cga_cluster_size", "cgaClusterSize"),
    ("min_ctas", "minCTAs"),
    ("max_ctas", "maxCTAs"),
    ("split_share", "splitShare"),
]
# Numbers that go to the library as they are: hetccl's name (include/hetccl/abi.h), AMD's.
NUMBERS = [
    ("HETCCL_INT8", "ncclInt8"),
    ("HETCCL_UINT8", "ncclUint8"),
    ("HETCCL_INT32", "ncclInt32"),
    ("HETCCL_UINT32", "ncclUint32"),
    ("HETCCL_INT64", "ncclInt64"),
    ("HETCCL_UINT64", "ncclUint64"),
    ("HETCCL_FLOAT16", "ncclFloat16"),
    ("HETCCL_FLOAT32", "ncclFloat32"),
    ("HETCCL_FLOAT64", "ncclFloat64"),
    ("HETCCL_BFLOAT16", "ncclBfloat16"),
    ("HETCCL_FLOAT8_E4M3", "ncclFloat8e4m3"),
    ("HETCCL_FLOAT8_E5M2", "ncclFloat8e5m2"),
    ("HETCCL_SUM", "ncclSum"),
    ("HETCCL_PROD", "ncclProd"),
    ("HETCCL_MAX", "ncclMax"),
    ("HETCCL_MIN", "ncclMin"),
    ("HETCCL_AVG", "ncclAvg"),
    ("HETCCL_NVENDOR_OPS", "ncclNumOps"),
]
ABI = '#include "hetccl/abi.h"\n'


@pytest.fixture(scope="module")
def wrong(declarations):
    return contract.mismatches(FUNCTIONS, declarations.cpp(SYMBOLS), OWN)


def test_table_is_read_whole():
    assert {"ncclAllReduce", "ncclGetVersion", "ncclCommInitRankConfig", "ncclGetUniqueId"} <= set(SYMBOLS)
    assert len(SYMBOLS) == len(set(SYMBOLS))


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_function(declarations, wrong, symbol):
    assert symbol in declarations.functions, f"RCCL has no {symbol}"
    assert symbol not in wrong, f"RCCL's is {declarations.functions[symbol]}"


@pytest.mark.parametrize(("ours", "theirs"), CONFIG)
def test_config_prefix(compiled, ours, theirs):
    offset = compiled["structs"]["ncclConfig_v22800"]["offsets"][theirs]
    assert not contract.untrue([f"offsetof(hetccl_nccl_config_t, {ours}) == {offset}"], OWN)


def test_config_prefix_ends_where_a_field_of_rccls_ends(compiled):
    """The library reads as many bytes as `size` says: they must be whole fields of its own struct."""
    config = compiled["structs"]["ncclConfig_v22800"]
    end = config["offsets"]["splitShare"] + 4
    assert end < config["size"]
    assert not contract.untrue([f"sizeof(hetccl_nccl_config_t) - {end} < _Alignof(hetccl_nccl_config_t)"], OWN)


def test_unique_id(compiled):
    assert compiled["values"]["NCCL_UNIQUE_ID_BYTES"] == compiled["structs"]["ncclUniqueId"]["size"]
    size = compiled["structs"]["ncclUniqueId"]["size"]
    assert not contract.untrue([f"sizeof(hetccl_nccl_id_t) == {size}"], OWN)


@pytest.mark.parametrize(("ours", "theirs"), NUMBERS)
def test_number(compiled, ours, theirs):
    assert not contract.untrue([f"{ours} == {compiled['values'][theirs]}"], ABI)


def test_every_dtype_of_the_vendors_is_compared():
    """In abi.h hetccl's own dtypes begin at 32; all before are handed on as they are."""
    text = (contract.INCLUDE / "hetccl" / "abi.h").read_text()
    kinds = re.search(r"enum hetccl_dtype \{(.*?)\};", text, re.DOTALL)[1]
    vendors = [name for name, number in re.findall(r"(\w+) = (\d+)", kinds) if int(number) < 32]
    assert vendors == [ours for ours, theirs in NUMBERS[: len(vendors)]]


def test_scalar_in_host_memory(compiled):
    """_launch reads the factor of PREMUL_SUM at the call."""
    text = (launch.ROOT / "pyx" / "_launch.pyx").read_text()
    number = int(re.search(r"HOST_IMMEDIATE = (\d+)", text)[1])
    assert number == compiled["values"]["ncclScalarHostImmediate"]


def test_in_progress(compiled):
    assert not contract.untrue([f"HETCCL_NCCL_IN_PROGRESS == {compiled['values']['ncclInProgress']}"], OWN)


# The tests above can fail: tables that are wrong in one place are refused.

WRONG = {
    "count of 32 bits": Function(("ncclSend",), "const void *, int, int, int, void *, void *"),
    "no stream": Function(("ncclAllReduce",), "const void *, void *, size_t, int, int, void *"),
    "root before op": Function(("ncclBroadcast",), "const void *, void *, size_t, int, void *, int, void *"),
    "id by address": Function(("ncclCommInitRankConfig",), "void **, int, void *, int, void *"),
    "id too short": Function(("ncclCommInitRankConfig",), "void **, int, struct short_id, int, void *"),
    "text for a code": Function(("ncclGetErrorString",), "int"),
    "ranks of 64 bits": Function(("ncclCommCount",), "void *, size_t *"),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=what) for what, function in WRONG.items()])
def test_wrong_signature_is_refused(declarations, function):
    own = OWN + "\nstruct short_id { char bytes[127]; };"
    assert contract.mismatches([function], declarations.cpp(function.names), own) == list(function.names)


def test_wrong_name_is_refused(declarations):
    function = Function(("ncclAllreduce",), "const void *, void *, size_t, int, int, void *, void *")
    assert "ncclAllreduce" not in declarations.functions
    with pytest.raises(contract.CompilerError, match="ncclAllreduce"):
        contract.mismatches([function], declarations.cpp(function.names), OWN)


@pytest.mark.parametrize(
    "claim",
    ["offsetof(hetccl_nccl_config_t, split_share) == 36", "HETCCL_NCCL_IN_PROGRESS == 6", "HETCCL_BFLOAT16 == 8"],
)
def test_wrong_number_is_refused(claim):
    assert contract.untrue([claim], OWN + ABI) == [claim]
