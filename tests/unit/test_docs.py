"""The documents against what they describe: variables, links, commands and the example that everybody copies."""

import re
from pathlib import Path

import pytest

import launch
from hetccl import config

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
README = (ROOT / "README.md").read_text()


def rows():
    """The table of docs/configuration.md that the code describes."""
    for name, field in config.variables().items():
        about = field.metadata
        default = "not set" if about["default"] is None else about["default"]
        yield f"| `{name}` | {about['type'].words} | {default} | {about['meaning']} |"


def test_configuration_table():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert re.findall(r"^\| `.*$", text, re.MULTILINE) == list(rows())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    missing = [t for t in targets if not t.startswith(("http:", "https:")) and not (path.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_targets_of_make_exist(path):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^    (?:\w+=\S+ )?)make ([a-z-]+)", path.read_text(), re.MULTILINE)
    assert set(named) <= known


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_variables_exist(path):
    named = set(re.findall(r"\bHETCCL_[A-Z_]+\b", path.read_text()))
    assert named <= set(config.variables())


def test_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    islands = [{"HETCCL_ISLAND": label} for label in "AAB"]
    job = launch.mpirun(3, code, per_rank_env=islands)
    assert job.stdout == tuple(f"rank {rank} of 3: [6. 6. 6. 6.]\n" for rank in range(3))
