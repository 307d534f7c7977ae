"""The documents against what they describe: variables, links, commands and the example that everybody copies."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import doc_commands
import pytest

import launch
from hetccl import config
from hetccl.libraries import LIBRARIES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".", "bench", "docs", "examples", "packaging", "slurm", "tests", "tests/softroce")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()
README = (ROOT / "README.md").read_text()


def document_name(path):
    return str(path.relative_to(ROOT))


def rows():
    """The table of docs/configuration.md that the code describes."""
    for name, field in config.variables().items():
        about = field.metadata
        default = "not set" if about["default"] is None else about["default"]
        yield f"| `{name}` | {about['type'].words} | {default} | {about['meaning']} |"


def test_configuration_table():
    assert re.findall(r"^\| `.*$", CONFIGURATION, re.MULTILINE) == list(rows())


def test_map_of_the_modules():
    """docs/architecture.md has each module of setup.py in its map, but for those of tests."""
    (listed,) = (
        node.value
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "MODULES"
    )
    shown = re.findall(r"(?<!\S)_\w+", (ROOT / "docs" / "architecture.md").read_text())
    assert {name for name in ast.literal_eval(listed) if not name.endswith("_trial")} <= set(shown)


def test_map_of_the_networks_headers():
    """docs/architecture.md has them all, and no other."""
    shown = re.findall(r"`(\w+\.h)`", (ROOT / "docs" / "architecture.md").read_text())
    kinds = ("mr", "rail", "tcp", "verbs", "wire")
    found = [path.name for kind in kinds for path in ROOT.glob(f"include/hetccl/{kind}[_.]*")]
    assert sorted(set(shown)) == sorted(found)


def test_library_table():
    """docs/configuration.md has the names that are tried for each library that a variable can replace."""
    table = re.findall(r"^\| ([^|`]+) \| (lib[^|]+) \| `(HETCCL_\w+)` \|$", CONFIGURATION, re.MULTILINE)
    replaceable = [known for known in LIBRARIES if known.setting]
    assert table == [(k.name, ", ".join(k.sonames), f"HETCCL_{k.setting.upper()}") for k in replaceable]


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_name)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    missing = [t for t in targets if not t.startswith(("http:", "https:")) and not (path.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_name)
def test_targets_of_make_exist(path):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^    (?:\w+=\S+ )?)make ([a-z-]+)", path.read_text(), re.MULTILINE)
    assert set(named) <= known


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_name)
def test_variables_exist(path):
    named = set(re.findall(r"\bHETCCL_[A-Z_]+\b", path.read_text()))
    assert named <= set(config.variables())


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_name)
def test_values_are_valid(path):
    """Each value that a document gives to a variable is one, and so is each that the page about tuning suggests."""
    text = path.read_text()
    given = re.findall(r"\b(HETCCL_[A-Z_]+)=([^\s`,;<…()]+(?:,[^\s`;<…()]+)*)", text)
    for names, tried in re.findall(r"^\| ((?:`HETCCL_\w+`(?:, )?)+) \| [^|]* \| ([^|]*`[^|]*) \|", text, re.MULTILINE):
        given += [(name, value) for name in re.findall(r"\w+", names) for value in re.findall(r"`([^`]+)`", tried)]
    for name, value in given:
        config.load({name: value.rstrip(".:")})


def test_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    islands = [{"HETCCL_ISLAND": label} for label in "AAB"]
    job = launch.mpirun(3, code, per_rank_env=islands)
    assert job.stdout == tuple(f"rank {rank} of 3: [6. 6. 6. 6.]\n" for rank in range(3))


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def snippets():
    """The programs of pages on host buffers: a page's first block, which all others begin with, before each of them."""
    found = []
    for page in ("from-mpi4py", "islands"):
        first, *others = python_blocks(ROOT / "docs" / f"{page}.md")
        found += [first, *(first + other for other in others)]
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=document_name)
def test_python_is_python(path):
    """What is not run is at least written right; of a session, what is typed."""
    for block in python_blocks(path):
        typed = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
        compile("\n".join(typed) or block, path, "exec")


def test_first_job_shows_the_same_program():
    assert python_blocks(ROOT / "docs" / "first-job.md")[0] == python_blocks(ROOT / "README.md")[0]


@pytest.mark.parametrize("labels", ["A", "AA", "AAB"])
def test_snippets_run(labels):
    """Each by itself, one after another in one job; what they show they also assert."""
    code = f"""
for number, code in enumerate({snippets()!r}):
    exec(compile(code, f"snippet {{number}}", "exec"), {{"__name__": "__main__"}})
"""
    launch.mpirun(len(labels), code, per_rank_env=[{"HETCCL_ISLAND": label} for label in labels])


def shown_commands():
    """{command: names of the documents that show it}"""
    shown = {}
    for path in DOCUMENTS:
        for command in doc_commands.commands(path.read_text()):
            shown.setdefault(command, []).append(document_name(path))
    return shown


COMMANDS = shown_commands()
RUN = [command for command in COMMANDS if not doc_commands.why_not_run(command)]


def test_commands_are_found():
    """In each kind of block, with what stands before and behind them."""
    text = """
    python -m hetccl info      what is installed
    NAME="a b" X=$(echo $(pwd)) mpirun -n 2 python x.py    # why
    rank 0: [6. 6.]

1. one

       make test

```console
$ anything -x   # y
```

```sh
mpirun -n 1 python x.py : \\
       -n 1 python y.py
# said
```

```
makes no command
make demo
```

```python
make = 1
```
"""
    assert doc_commands.commands(text) == [
        "python -m hetccl info",
        'NAME="a b" X=$(echo $(pwd)) mpirun -n 2 python x.py',
        "make test",
        "anything -x",
        "mpirun -n 1 python x.py : -n 1 python y.py",
        "make demo",
    ]


def test_commands_that_are_not_run_are_shown():
    """Each reason is needed by a document, and no command has two."""
    reasons = [doc_commands.why_not_run(command) for command in COMMANDS]
    assert max(map(len, reasons)) == 1
    unneeded = [p for p, _ in doc_commands.NOT_RUN if not any(re.fullmatch(p, command) for command in COMMANDS)]
    assert unneeded == []
    tests = [reason.partition(": ")[2] for _, reason in doc_commands.NOT_RUN if reason.startswith("a test runs it")]
    assert tests and all((ROOT / test).is_file() for test in tests)


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory):
    """(folder, environment) of somebody who types what the documents say: a checkout with the README's program."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", ".mpi", "build"):
            (folder / path.name).symlink_to(path)
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("example.py", "program.py", "train.py"):
        (folder / name).write_text(program)
    found = launch.launchers().get("default")
    if found is None:
        pytest.skip("no mpirun on this machine")
    exported = dict(re.findall(r"^export (\w+) := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    path = [str(Path(sys.executable).parent), str(found.path.parent), os.environ["PATH"]]
    here = {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "HETCCL_TIMEOUT": "60"}
    return folder, {**launch.inherited(), **found.environment(), **exported, **here}


@pytest.mark.parametrize("command", RUN)
def test_command_runs(newcomer, command):
    """What the documents show does what it says, in as far as an exit status of 0 tells."""
    folder, environment = newcomer
    done = subprocess.run(
        ["timeout", "-k", "10", "120", "bash", "-c", doc_commands.short(command)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{COMMANDS[command]}\n{done.stdout}\n{done.stderr}"


def rules():
    """(name, text, tests) of each rule of docs/semantics.md; tests is a list of (file, function)."""
    for item in re.findall(r"^- (\*\*R-.*?)(?=\n- |\n\n|\Z)", SEMANTICS, re.MULTILINE | re.DOTALL):
        name, text, held = re.fullmatch(r"\*\*(R-[a-z0-9]+-\d+)\*\* (.*?)\n  \*Test: (.*)\*", item, re.DOTALL).groups()
        tests = []
        for entry in re.findall(r"`([^`]+)`", held):
            file, functions = re.split(r":\s+", entry)
            tests += [(file, function) for function in re.split(r",\s+", functions)]
        yield name, text, tests


RULES = list(rules())


def test_rules_are_numbered():
    """Each section's rules count from 1, so that a name is never used twice."""
    sections = {}
    for name, _, _ in RULES:
        section, number = name.rsplit("-", 1)
        sections.setdefault(section, []).append(int(number))
    assert len(RULES) > 100
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sections.values())


@pytest.mark.parametrize("name, tests", [(name, tests) for name, _, tests in RULES], ids=[name for name, *_ in RULES])
def test_each_rule_has_a_test(name, tests):
    """What docs/semantics.md says is held by functions that exist and that pytest runs."""
    assert tests
    runners = "".join(path.read_text() for path in ROOT.glob("tests/*/test_*.py") if path.parent.name in ("mpi", "gpu"))
    for file, function in tests:
        (path,) = ROOT.glob(f"tests/*/{file}.py")
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{name}: {path.name} has no {function}"
        named = f'"{file}.py"', f'"{file.removeprefix("check_")}"'
        assert file.startswith("test_") or any(name in runners for name in named), f"{file} is run in no layout"


def test_site_builds(tmp_path):
    """As `make docs` does: every page in the table of contents, every link, every docstring; a warning is an error."""
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; `make docs` installs it and builds the site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-c", "docs", "-n", "-q", "-W", "--keep-going"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", ".", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(ROOT).with_suffix(".html") for path in DOCUMENTS if path.name != "CONTRIBUTING.md"}
    assert all((tmp_path / "site" / page).exists() for page in pages)
