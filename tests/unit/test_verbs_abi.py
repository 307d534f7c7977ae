"""What hetccl declares by hand of libibverbs, against the system's <infiniband/verbs.h> and the library: layouts and
numbers by a C compiler, signatures by a C++ compiler, symbol versions by nm. None of it needs an RDMA device."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABI = ROOT / "include" / "hetccl" / "verbs_abi.h"
TABLE = ROOT / "include" / "hetccl" / "verbs.h"
CC = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
CXX = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
PLACES = ("x86_64-linux-gnu/", "aarch64-linux-gnu/", "../lib64/", "")
LIBRARY = next((path for path in (Path(f"/usr/lib/{place}libibverbs.so.1") for place in PLACES) if path.exists()), None)

# Where ours and theirs have different names, or ours leaves a level out.
FIELDS = {
    ("gid", "half"): "global",
    ("send_wr", "remote_addr"): "wr.rdma.remote_addr",
    ("send_wr", "rkey"): "wr.rdma.rkey",
}
# Made by the library alone: ours declares their beginning.
PREFIXES = {"device", "context", "cq", "qp"}


def has_header():
    if CC is None:
        return False
    command = [CC, "-E", "-x", "c", "-", "-o", os.devnull]
    return (
        subprocess.run(command, input="#include <infiniband/verbs.h>", text=True, capture_output=True).returncode == 0
    )


needs_header = pytest.mark.skipif(not has_header(), reason="no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)")


def plain(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def structs(text):
    """{"wc": ("struct", [fields])} of the header's text, without the members called reserved."""
    found = {}
    body = re.compile(r"^(?:typedef )?(struct|union) hetccl_ibv_(\w+) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
    member = re.compile(r"(?:\(\*(\w+)\)\([^)]*\)|(\w+)(?:\[\d+\])*);")
    for kind, name, inside in body.findall(plain(text)):
        names = [one or other for one, other in member.findall(inside)]
        found[name] = (kind, [field for field in names if not field.startswith("reserved")])
    return found


def constants(text):
    return re.findall(r"\b(HETCCL_IBV_\w+) =", plain(text))


def facts(text):
    """C expressions in pairs: (what, ours, theirs)."""
    for name, (kind, fields) in structs(text).items():
        if name == "async_element":
            continue
        theirs = f"{kind} ibv_{name}"
        if name not in PREFIXES:
            yield f"sizeof {name}", f"sizeof(hetccl_ibv_{name}_t)", f"sizeof({theirs})"
        for field in fields:
            known = FIELDS.get((name, field), field)
            ours = f"hetccl_ibv_{name}_t"
            yield f"{name}.{field}", f"offsetof({ours}, {field})", f"offsetof({theirs}, {known})"
            yield f"{name}.{field} bytes", f"sizeof((({ours} *)0)->{field})", f"sizeof((({theirs} *)0)->{known})"
    for name in constants(text):
        yield name, name, name.removeprefix("HETCCL_")


def differences(folder, text):
    """What of the text's declarations is not as the system's header has it: list of str."""
    (folder / "hetccl").mkdir()
    (folder / "hetccl" / "verbs_abi.h").write_text(text)
    lines = [f'    compare("{what}", (long)({ours}), (long)({theirs}));' for what, ours, theirs in facts(text)]
    source = folder / "compare.c"
    source.write_text(
        '#include <infiniband/verbs.h>\n#include <stdio.h>\n#include "hetccl/verbs_abi.h"\n'
        "static void compare(const char *what, long ours, long theirs) {\n"
        '    if (ours != theirs) printf("%s: %ld, not %ld\\n", what, ours, theirs);\n}\n'
        "int main(void) {\n" + "\n".join(lines) + "\n    return 0;\n}\n"
    )
    program = folder / "compare"
    done = subprocess.run(
        [CC, "-std=gnu11", f"-I{folder}", str(source), "-o", str(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


@needs_header
def test_layouts_and_numbers(tmp_path):
    assert differences(tmp_path, ABI.read_text()) == []


@needs_header
@pytest.mark.parametrize(
    "right, wrong, noticed",
    [
        ("    uint32_t vendor_err;\n", "", "wc.byte_len"),
        ("void *reserved0[11];", "void *reserved0[10];", "context_ops.poll_cq"),
        ("int32_t reserved1[16];", "int32_t reserved1[15];", "device_attr.phys_port_cnt"),
        ("uint32_t reserved[19];", "uint32_t reserved[17];", "sizeof send_wr"),
        ("    uint16_t port_cap_flags2;\n    uint16_t reserved;\n", "", "sizeof port_attr"),
        ("uint16_t dlid;", "uint8_t dlid;", "ah_attr.dlid bytes"),
        ("IBV_WC_RETRY_EXC_ERR = 12", "IBV_WC_RETRY_EXC_ERR = 13", "HETCCL_IBV_WC_RETRY_EXC_ERR"),
        ("IBV_QP_RQ_PSN = 1 << 12", "IBV_QP_RQ_PSN = 1 << 13", "HETCCL_IBV_QP_RQ_PSN"),
    ],
)
def test_a_wrong_declaration_is_noticed(tmp_path, right, wrong, noticed):
    text = ABI.read_text()
    assert text.count(right) == 1
    assert noticed in [line.partition(": ")[0] for line in differences(tmp_path, text.replace(right, wrong))]


def test_all_declarations_were_read():
    text = plain(ABI.read_text())
    assert len(structs(text)) == len(re.findall(r"\b(?:struct|union) hetccl_ibv_\w+ \{", text)) > 20
    members = [line for line in re.findall(r"^ .*;", text, re.MULTILINE) if "reserved" not in line]
    assert sum(len(fields) for _, fields in structs(text).values()) == len(members)
    assert len(constants(text)) == text.count("HETCCL_IBV_") > 90


SHAPES = """
#include <infiniband/verbs.h>
#include <type_traits>
#include "hetccl/verbs.h"
// Numbers and pointers by their bytes alone; enums are passed as int.
template <class T> constexpr unsigned long kind() { return sizeof(T) * 2 + std::is_pointer<T>::value; }
template <> constexpr unsigned long kind<void>() { return 0; }
template <unsigned long... K> struct kinds {};
template <class R, class... A> kinds<kind<R>(), kind<A>()...> shape_of(R (*)(A...));
"""


def rows():
    """[(result, slot, symbol, version, needed, parameters)] of include/hetccl/verbs.h."""
    text = TABLE.read_text().replace("\\\n", " ")
    row = re.compile(r'X\(([\w \*]+), (\w+), (\w+), "(IBVERBS_1\.\d+)", ([01]),\s+(\([^()]*\))\)')
    return [tuple(" ".join(part.split()) for part in found) for found in row.findall(text)]


ROWS = rows()


def test_all_rows_were_read():
    assert len(ROWS) == len(re.findall(r"\bX\(\w+.*ibv_", TABLE.read_text())) > 25


@needs_header
@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@pytest.mark.parametrize("wrong", [False, True], ids=["as-declared", "one-wrong"])
def test_signatures(tmp_path, wrong):
    lines = []
    for result, _, symbol, _, _, parameters in ROWS:
        declared = parameters.replace("size_t nbytes", "unsigned nbytes") if wrong else parameters
        lines.append(
            f"static_assert(std::is_same<decltype(shape_of(&{symbol})), "
            f'decltype(shape_of(({result} (*){declared})0))>::value, "{symbol}");'
        )
    source = tmp_path / "signatures.cpp"
    source.write_text(SHAPES + "\n".join(lines) + "\n")
    command = [CXX, "-std=c++17", "-fsyntax-only", f"-I{ROOT}/include", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    names = re.findall(r"static assertion failed: (\w+)", done.stderr)
    if wrong:
        assert {"ibv_reg_mr", "ibv_reg_dmabuf_mr"} == set(names)
    else:
        assert (done.returncode, names) == (0, []), done.stderr


@pytest.mark.skipif(LIBRARY is None, reason="no libibverbs.so.1 in the system's folders")
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm (binutils)")
def test_symbol_versions():
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    # The default version, "@@": the newest layout of the arguments is the one that verbs_abi.h declares.
    assert [(symbol, version) for _, _, symbol, version, _, _ in ROWS if f"{symbol}@@{version}" not in exported] == []
