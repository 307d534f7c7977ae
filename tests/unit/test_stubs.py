"""The stubs against what they describe, and the docstrings against their template.

A docstring is a summary, then entries "name : text" in a fixed order: arguments, Returns, Blocks, Raises, Cost, Source.
The nonblocking and persistent forms of a call have one line that names the blocking one.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hetccl
from hetccl.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
STUBS = {path.stem: ast.parse(path.read_text()) for path in (ROOT / "hetccl").glob("*.pyi")}
CLASSES = {
    node.name: (module, node)
    for module, tree in STUBS.items()
    for node in tree.body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
}
SECTIONS = ("Returns", "Blocks", "Raises", "Cost", "Source")
ENTRY = re.compile(r"(?P<names>[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)\s* : ?(?P<text>.*)")
SHORT = re.compile(r"(Nonblocking|Persistent) (\w+)")


def stub_members(name):
    """{member: its node} of a class in the stubs, with what it inherits from classes in the stubs."""
    _, node = CLASSES[name]
    members = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in CLASSES:
            members.update(stub_members(base.id))
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            members[item.name] = item
        elif isinstance(item, ast.AnnAssign):
            members[item.target.id] = item
    return members


def is_property(node):
    return any(ast.unparse(line).split(".")[-1] in ("property", "setter") for line in node.decorator_list)


def runtime_class(name):
    module, _ = CLASSES[name]
    return getattr(importlib.import_module(f"hetccl.{module}"), name)


def public(names):
    return {name for name in names if not name.startswith("_")}


def runtime_members(cls):
    """What the class itself and its bases in hetccl have, not Python's own."""
    bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "hetccl"]
    names = {name for base in bases for name in vars(base)}
    if issubclass(cls, Exception):
        names.update(vars(cls()))
    return public(names.union(getattr(cls, "__dataclass_fields__", ())))


def stub_signature(function):
    """[(name, kind, default as text or None)] of a function in a stub, without self or cls."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + a.defaults
    found = [(arg.arg, "positional", default) for arg, default in zip(positional, defaults)]
    found += [(arg.arg, "keyword", default) for arg, default in zip(a.kwonlyargs, a.kw_defaults)]
    skip = 1 if positional and positional[0].arg in ("self", "cls") else 0
    return [(name, kind, default and ast.unparse(default)) for name, kind, default in found[skip:]]


def runtime_signature(function):
    """The same of a function at run time."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        kind = "keyword" if parameter.kind is parameter.KEYWORD_ONLY else "positional"
        found.append((parameter.name, kind, None if parameter.default is parameter.empty else repr(parameter.default)))
    return found[1:] if found and found[0][0] in ("self", "cls") else found


def methods():
    """(class, method) of all public methods of the public classes."""
    for name in ("Comm", "Request", "Prequest", "Message", "Op"):
        for member, node in stub_members(name).items():
            if isinstance(node, ast.FunctionDef) and not member.startswith("_") and not is_property(node):
                yield name, member


METHODS = list(methods())
each_method = pytest.mark.parametrize("name, member", METHODS, ids=[".".join(pair) for pair in METHODS])


def test_all_names_are_there():
    (names,) = (ast.literal_eval(node.value) for node in STUBS["__init__"].body if isinstance(node, ast.Assign))
    assert names == sorted(hetccl.__all__, key=names.index)
    assert all(hasattr(hetccl, name) for name in names)


@pytest.mark.parametrize("name", CLASSES)
def test_same_members(name):
    assert public(stub_members(name)) == runtime_members(runtime_class(name))


@each_method
def test_same_signature(name, member):
    stub, real = stub_signature(stub_members(name)[member]), runtime_signature(getattr(runtime_class(name), member))
    # A default that the stub does not spell out is `...`.
    stub = [
        (arg, kind, other[2] if default == "..." else default) for (arg, kind, default), other in zip(stub, real)
    ] + stub[len(real) :]
    assert stub == real


@pytest.mark.parametrize("module", [module for module in STUBS if module != "__init__"])
def test_functions_and_values(module):
    """What a stub has besides classes is there, and functions have the same signature."""
    real = importlib.import_module(f"hetccl.{module}")
    for node in STUBS[module].body:
        if isinstance(node, ast.FunctionDef):
            assert stub_signature(node) == runtime_signature(getattr(real, node.name))
        elif isinstance(node, ast.AnnAssign):
            assert type(getattr(real, node.target.id)).__name__ == ast.unparse(node.annotation)


def docstring(function):
    """Its lines, without the signature that Cython puts first."""
    text = re.sub(r"\A[\w.]+\(.*\)\n\s*", "", inspect.getdoc(function))
    return text.splitlines()


def entries(lines):
    """[(names, text)] of the entries that follow the summary."""
    found = []
    for line in lines[1:]:
        match = ENTRY.fullmatch(line)
        if match:
            found.append((match["names"].split(", "), match["text"]))
        elif line.startswith(" ") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


@each_method
def test_docstring_has_the_template(name, member):
    function = getattr(runtime_class(name), member)
    lines = docstring(function)
    assert re.match(r"[A-Z].*[.:]", lines[0]), lines[0]
    arguments = [arg for arg, _, _ in runtime_signature(function)]
    named = [word for words, _ in entries(lines) for word in words]
    order = [word for word in named if word in SECTIONS]
    assert order == sorted(order, key=SECTIONS.index), f"sections in the order {order}"
    assert not (set(named) - set(SECTIONS) - set(arguments)), "entries that are no argument and no section"
    short = SHORT.match(lines[0])
    if short:
        assert (name, short[2]) in METHODS, f"{short[2]} is no call"
        return
    whole = [arg for arg in arguments if arg in named]
    assert whole == sorted(whole, key=arguments.index) and len(set(named)) == len(named)
    documented = member in dir(hetccl.Comm) or arguments
    if documented and lines[1:] and arguments:
        assert set(arguments) - set(named) <= {"self"}, f"arguments without an entry: {set(arguments) - set(named)}"
    if any(arg.endswith("buf") for arg in arguments):
        assert "Raises" in named, "a call that takes buffers says what it raises"


def test_api_page_has_everything():
    """docs/api.md lists each method and property of Comm once; the other classes it shows whole."""
    listed = re.findall(r"auto(?:method|attribute):: Comm\.(\w+)", (ROOT / "docs" / "api.md").read_text())
    members = [name for name, node in stub_members("Comm").items() if isinstance(node, ast.FunctionDef)]
    assert sorted(listed) == sorted(public(members))


def test_api_page_has_the_commands():
    named = re.findall(r"^\| `python -m hetccl (\w+)`", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(COMMANDS)


def mypy(*arguments):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed; `make lint` installs it and runs it on these files")
    command = [sys.executable, "-m", "mypy", "--no-incremental", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_typed_program():
    """A program with types passes, and one wrong word in it does not."""
    done = mypy("--strict", "tests/unit/typed_program.py")
    assert done.returncode == 0, done.stdout
    done = mypy("-c", "import hetccl; x: str = hetccl.Request.Waitall([])")
    assert done.returncode == 1 and "Incompatible types" in done.stdout
