"""What `python -m hetccl plan` shows: every step, well-formed drawings, clear errors."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from plan_cases import contiguous, plans

from hetccl.plan import build, cli, render
from hetccl.plan.steps import COLLECTIVES, describe

SVG = "{http://www.w3.org/2000/svg}"
ISLANDS = (contiguous((1,)), contiguous((2,)), contiguous((3, 2)), ((0, 2), (1, 3)), contiguous((2, 1, 1)))


def each_plan(collective):
    return [plan for islands in ISLANDS for plan in plans(collective, islands, (0,))]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_text_has_every_step_in_its_rank(collective):
    for plan in each_plan(collective):
        sections = render.text(plan).split("\nrank ")[1:]
        assert len(sections) == plan.size
        for rank, section in enumerate(sections):
            steps = plan.program(rank).steps
            lines = section.splitlines()
            assert lines[0].startswith(f"{rank}, island ")
            assert len([line for line in lines[2:] if line]) == len(steps)
            for line, step in zip(lines[2:], steps):
                assert describe(step) in line
                assert ("[after" in line) == bool(step.after)


def test_text_of_one_rank():
    text = render.text(build("allreduce", contiguous((3, 2))), (3,))
    assert "rank 3, island B" in text and "rank 0" not in text


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_drawing_has_every_step(collective):
    """A tip per step, an arrow per message or fewer, and all inside the picture."""
    for plan in each_plan(collective):
        root = ElementTree.fromstring(render.svg(plan))
        tips = [line for title in root.iter(f"{SVG}title") for line in title.text.splitlines()]
        steps = [
            f"rank {rank}, step {i}, stage {step.stage}: {describe(step)}"
            for rank in range(plan.size)
            for i, step in enumerate(plan.program(rank).steps)
        ]
        assert sorted(tips) == sorted(steps)
        labels = {text.text for text in root.iter(f"{SVG}text")}
        assert {f"rank {rank}" for rank in range(plan.size)} <= labels
        width, height = float(root.get("width")), float(root.get("height"))
        for rect in root.iter(f"{SVG}rect"):
            x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
            assert x >= 0 and x + float(rect.get("width")) <= width
            assert y >= 0 and y + float(rect.get("height")) <= height


def test_bars_of_a_rank_do_not_overlap():
    for collective in COLLECTIVES:
        for plan in each_plan(collective):
            root = ElementTree.fromstring(render.svg(plan))
            bars = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
            spans = sorted((float(b.get("y")), float(b.get("x")), float(b.get("width"))) for b in bars)
            for (y1, x1, width), (y2, x2, _) in zip(spans, spans[1:]):
                assert y1 != y2 or x1 + width <= x2 + 1e-6


@pytest.mark.parametrize(
    "given,order,islands",
    [
        ("3+2", "block", ((0, 1, 2), (3, 4))),
        ("3+2", "interleaved", ((0, 2, 4), (1, 3))),
        ("2+1+1", "interleaved", ((0, 3), (1,), (2,))),
        ("4", "block", ((0, 1, 2, 3),)),
        ("ABAB", "block", ((0, 2), (1, 3))),
        ("BA", "block", ((0,), (1,))),
        ("aab", "block", ((0, 1), (2,))),
    ],
)
def test_islands(given, order, islands):
    assert cli.parse_islands(given, order) == islands


@pytest.mark.parametrize(
    "given", ["", "0", "3+", "+", "3+0", "3+-1", "3,2", "A+B", "A1", "3 2", "99999999", "40+40", "²", "ÄB"]
)
def test_bad_islands(given):
    with pytest.raises(ValueError, match="--islands"):
        cli.parse_islands(given)


def test_command(tmp_path, capsys):
    picture = tmp_path / "plan.svg"
    status = cli.main(["plan", "allreduce", "--islands", "3+2", "--svg", str(picture)])
    shown = capsys.readouterr()
    assert (status, shown.err) == (0, "")
    assert "rank 4, island B" in shown.out and "proved" in shown.out
    assert picture.read_text(encoding="utf-8") == render.svg(build("allreduce", contiguous((3, 2))))


@pytest.mark.parametrize(
    "arguments,shown",
    [
        (["scan", "--islands", "2+2"], "other algorithms: direct, recursive_doubling"),
        (["exscan", "--islands", "2+2", "--algorithm", "direct"], "Reduce OUT[0] = from 0 + from 1 + from 2"),
        (["gather", "--islands", "2+1", "--root", "1"], "root 1"),
        (["scatter", "--islands", "2+1", "--inner", "vendor"], "Vendor scatter OUT[0] = IN[0], root 0"),
        (["alltoall"], "units may differ in length"),
    ],
)
def test_command_shows(arguments, shown, capsys):
    assert cli.main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    assert shown in out and "proved for every count" in out


def test_even_units_only(capsys):
    assert cli.main(["plan", "reduce_scatter_block", "--islands", "4", "--algorithm", "ring"]) == 0
    assert "differ in length" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,named",
    [
        (["allreduce", "--islands", "x+1"], "--islands"),
        (["allreduce", "--islands", "AB", "--order", "interleaved"], "--order"),
        (["allreduce", "--algorithm", "best"], "algorithm"),
        (["allreduce", "--algorithm", "ring", "--inner", "vendor"], "algorithm"),
        (["bcast", "--root", "5"], "root"),
        (["bcast", "--rank", "5"], "--rank"),
        (["gather", "--root", "5"], "root"),
        (["scan", "--inner", "vendor"], "inner"),
        (["allreduce", "--svg", "/nowhere/at/all.svg"], "--svg"),
    ],
)
def test_bad_input(arguments, named, capsys):
    assert cli.main(["plan", *arguments]) == 2
    shown = capsys.readouterr()
    assert named in shown.err and shown.out == ""


@pytest.mark.parametrize("arguments", [["gatherv"], [], ["allreduce", "--root", "x"], ["allreduce", "--inner", "mpi"]])
def test_bad_usage(arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", *arguments])
    assert caught.value.code == 2


def test_drawing_in_the_docs_is_current():
    """docs/plan_allreduce_3+2.svg is what `python -m hetccl plan allreduce --islands 3+2 --svg FILE` draws."""
    drawn = Path(__file__).parents[2] / "docs" / "plan_allreduce_3+2.svg"
    assert drawn.read_text(encoding="utf-8") == render.svg(build("allreduce", contiguous((3, 2))))
