"""The recipes of packaging/ against pyproject.toml: version, dependencies, and names that the formats know."""

import re
import sys
import types
from pathlib import Path

import pytest

from hetccl._version import VERSION

ROOT = Path(__file__).resolve().parents[2]
CONDA = ROOT / "packaging" / "conda" / "recipe.yaml"
SPACK = ROOT / "packaging" / "spack" / "spack_repo" / "hetccl"
# Top-level keys of a recipe of one package, in the order that conda-forge's linter wants.
SECTIONS = ["schema_version", "context", "package", "source", "build", "requirements", "tests", "about", "extra"]


def wanted(key):
    """{name: version specifiers} of a list of pyproject.toml; only its own lines, since Python 3.10 has no tomllib."""
    (listed,) = re.findall(rf"^{key} = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    pairs = re.findall(r'"([\w-]+)([^"]*)"', listed)
    assert pairs
    return {name.lower(): specifiers for name, specifiers in pairs}


def conda_section(name):
    """{package: version specifiers} of requirements/<name>."""
    (block,) = re.findall(rf"^  {name}:\n((?:    .*\n)+)", CONDA.read_text(), re.MULTILINE)
    return dict(re.findall(r"^    - ([\w-]+)(?: (\S+))?$", block, re.MULTILINE))


def test_conda_sections():
    found = re.findall(r"^(\w+):", CONDA.read_text(), re.MULTILINE)
    assert found == [name for name in SECTIONS if name in found]
    assert 'version: "' + VERSION + '"' in CONDA.read_text()


def test_conda_dependencies():
    assert conda_section("run") == {"python": "", **wanted("dependencies")}
    assert conda_section("host") == {"python": "", "pip": "", **wanted("requires")}
    (oldest,) = re.findall(r'match\(python, "<([\d.]+)"\)', CONDA.read_text())
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_conda_cross_compiles_with_the_same_cython():
    stated = set(re.findall(r"- cython (\S+)", CONDA.read_text()))
    assert stated == {wanted("requires")["cython"]}


@pytest.fixture
def spack(monkeypatch):
    """What the recipe tells Spack: {directive: [(arguments, keywords)]}, and its class."""
    told = {}

    def directive(name):
        return lambda *args, **keywords: told.setdefault(name, []).append((args, keywords))

    package = types.ModuleType("spack.package")
    names = ("depends_on", "license", "requires", "version")
    vars(package).update({name: directive(name) for name in names})
    python = types.ModuleType("spack_repo.builtin.build_systems.python")
    python.PythonPackage = type("PythonPackage", (), {})
    for module in (package, python):
        parts = module.__name__.split(".")
        for depth in range(1, len(parts)):
            name = ".".join(parts[:depth])
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = SPACK / "packages" / "py_hetccl" / "package.py"
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return told, scope["PyHetccl"]


def test_spack_version_and_place(spack):
    told, recipe = spack
    assert [args for args, _ in told["version"]] == [(VERSION,)]
    assert recipe.pypi == f"hetccl/hetccl-{VERSION}.tar.gz"
    assert re.fullmatch(r"repo:\n  namespace: hetccl\n  api: v2\.0\n", (SPACK / "repo.yaml").read_text())


def spack_range(specifiers):
    """Specifiers of Python's packages as a range of Spack's: ">=3.0.11,<4" is "@3.0.11:3"."""
    low = re.search(r">=([\d.]+)", specifiers)[1].removesuffix(".0")
    high = re.search(r"<(\d+)$", specifiers)
    if high is None:
        return f"@{low}:"
    last = str(int(high[1]) - 1)
    return f"@{last}" if low == last else f"@{low}:{last}"


def test_spack_dependencies(spack):
    told, _ = spack
    stated = {}
    for (spec,), keywords in told["depends_on"]:
        name, _, versions = spec.partition("@")
        stated[name] = (f"@{versions}" if versions else "", keywords["type"])
    expected = {f"py-{name}": (spack_range(s), ("build", "run")) for name, s in wanted("dependencies").items()}
    expected |= {f"py-{name}": (spack_range(s), "build") for name, s in wanted("requires").items()}
    assert stated == {"c": ("", "build"), "python": ("@3.10:", ("build", "run")), **expected}
