"""Imports go down only: the rules of docs/architecture.md, read from the sources, and the checker on bad ones."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules():
    """setup.py's MODULES, lowest first; read without running it, since that would build."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "MODULES":
            return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no MODULES")


def strip_cython(text):
    """The text without comments, docstrings and continuation lines: an import is then one line."""
    text = re.sub(r'""".*?"""', '""', text, flags=re.DOTALL)
    text = re.sub(r"#[^\n]*", "", text).replace("\\\n", " ")
    return re.sub(r"\([^()]*\)", lambda m: m[0].replace("\n", " "), text)


def cython_imports(text):
    """Yield each module of hetccl that Cython source imports or cimports, without the leading "hetccl."."""
    line = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+(.*)|c?import\s+(.*))$", re.MULTILINE)
    for match in line.finditer(strip_cython(text)):
        source, names, plain = match.groups()
        members = [part.split()[0] for part in re.sub(r"[()]", " ", names or plain).split(",") if part.strip()]
        if source in ("hetccl", "."):
            yield from members
        elif source:
            if source.startswith(("hetccl.", ".")):
                yield source.removeprefix("hetccl").lstrip(".")
        else:
            yield from (m.removeprefix("hetccl").lstrip(".") for m in members if m.split(".")[0] == "hetccl")


def cython_faults(name, text, order):
    """What module `name` of pyx/ does that its layer may not."""
    below = order[: order.index(name)]
    faults = [f"{name} imports {m or 'hetccl'}" for m in cython_imports(text) if m not in (*below, name, "errors")]
    if re.search(r"\bos\.(environb?|getenv)|\b(secure_)?getenv\s*\(|from\s+os\s+import[^\n]*(environ|getenv)", text):
        faults.append(f"{name} reads the environment")
    if re.search(r"^\s*(from|c?import)\s+mpi4py", strip_cython(text), re.MULTILINE):
        faults.append(f"{name} imports mpi4py")
    return faults


def python_imports(name, tree):
    """Yield the absolute name of each module that a module of hetccl/ imports; name: "hetccl.plan.build"."""
    package = name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def python_faults(name, text):
    """What module `name` of hetccl/ does that only another one may."""
    tree = ast.parse(text)
    imports = set(python_imports(name, tree))
    faults = []
    if name != "hetccl.bootstrap" and any(m.split(".")[0] == "mpi4py" for m in imports):
        faults.append(f"{name} imports mpi4py")
    if name.startswith("hetccl.plan.") and name != "hetccl.plan.cli":
        outside = [m for m in imports if m.startswith("hetccl") and not m.startswith(("hetccl.plan", "hetccl.errors"))]
        # `from ..errors import X` names hetccl.errors and hetccl.errors.X alone, so nothing else is let through.
        faults += [f"{name} imports {m}" for m in sorted(outside)]
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {m.removeprefix("os.") for m in imports if m.startswith("os.")}
    if name != "hetccl.config" and words & {"environ", "environb", "getenv", "getenvb"}:
        faults.append(f"{name} reads the environment")
    return faults


def python_sources():
    """{module name: path} of hetccl/."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.glob("hetccl/**/*.py"))
    }


def find_cycle(graph):
    """A list of modules that import each other in a circle, or None."""
    done = set()

    def visit(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for target in sorted(graph[node]):
            if cycle := visit(target, [*path, node]):
                return cycle
        done.add(node)
        return None

    return next(filter(None, (visit(node, []) for node in sorted(graph))), None)


@pytest.mark.parametrize("path", sorted(ROOT.glob("pyx/_[a-z]*.p[yx][xd]")), ids=lambda path: path.name)
def test_pyx_imports_downward(path):
    assert path.stem in modules(), "every module is in setup.py's MODULES"
    assert cython_faults(path.stem, path.read_text(), modules()) == []


@pytest.mark.parametrize("name", python_sources())
def test_python_rules(name):
    assert python_faults(name, python_sources()[name].read_text()) == []


def test_python_has_no_cycle():
    sources = python_sources()
    graph = {}
    for name, path in sources.items():
        found = set(python_imports(name, ast.parse(path.read_text())))
        # A package itself is not in the graph: its __init__ gathers what its modules offer.
        graph[name] = {m for m in found if m in sources and m != name}
    assert find_cycle(graph) is None


def test_modules_exist():
    missing = [name for name in modules() if not (ROOT / "pyx" / f"{name}.pyx").exists()]
    assert missing == []


ORDER = ["_abi", "_shm", "_comm"]


@pytest.mark.parametrize(
    "text",
    [
        "from hetccl._comm cimport Comm",
        "from hetccl._comm import Comm",
        "cimport hetccl._comm",
        "cimport cython, hetccl._comm as c",
        "from hetccl cimport _abi, _comm",
        "from hetccl cimport (\n    _abi,\n    _comm,\n)",
        "from . cimport _comm",
        "from ._comm cimport (\n    Comm,\n)",
        "from hetccl._comm \\\n    cimport Comm",
        "def f():\n    from hetccl import config",
        "import hetccl",
        "import hetccl.config",
        "from hetccl.plan import build",
        "import os\nx = os.environ['A']",
        "from os import path, getenv",
        "cdef char* x = getenv('A')",
        "from mpi4py import MPI",
        "cimport mpi4py.MPI",
    ],
)
def test_checker_sees_cython_faults(text):
    assert len(cython_faults("_shm", text, ORDER)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from hetccl._abi cimport (\n    A,  # hetccl._comm\n    B,\n)",
        "cimport cython\nfrom libc.stdint cimport int64_t",
        "from hetccl.errors import PeerError",
        "from hetccl._shm cimport Segment",
        '"""Words:\nfrom hetccl._comm cimport Comm\n"""',
        "# import hetccl.config",
        "import os\nos.close(1)",
    ],
)
def test_checker_lets_good_cython_pass(text):
    assert cython_faults("_shm", text, ORDER) == []


@pytest.mark.parametrize(
    "name, text",
    [
        ("hetccl.topology", "from mpi4py import MPI"),
        ("hetccl.topology", "def f():\n    import mpi4py.rc"),
        ("hetccl.topology", "import importlib\nimportlib.import_module('mpi4py.MPI')"),
        ("hetccl.topology", "import os\nos.environ.get('A')"),
        ("hetccl.topology", "import os as o\no.getenv('A')"),
        ("hetccl.topology", "from os import environ"),
        ("hetccl.plan.build", "from hetccl import config"),
        ("hetccl.plan.build", "from ..config import load"),
    ],
)
def test_checker_sees_python_faults(name, text):
    assert python_faults(name, text) != []


@pytest.mark.parametrize(
    "name, text",
    [
        ("hetccl.bootstrap", "from mpi4py import MPI"),
        ("hetccl.config", "import os\nos.environ.get('A')"),
        ("hetccl.plan.build", "from ..errors import HetcclError\nfrom . import steps\nfrom .steps import Plan"),
        ("hetccl.topology", "from hetccl import config\nimport os\nos.getpid()"),
    ],
)
def test_checker_lets_good_python_pass(name, text):
    assert python_faults(name, text) == []


def test_checker_sees_cycles():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
