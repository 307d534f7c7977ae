"""`topo`: what a picture shows, that nothing in it overlaps, and what is refused before anything runs."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from made_jobs import Maker, cluster, islands, job_of, plain_ways, three_hosts, with_gpu
from rdma_hosts import member

import launch
from hetccl.__main__ import main
from hetccl.cli import drawing, scene, topo

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """jobs(name) -> JobMap"""
    maker = Maker(monkeypatch, tmp_path)
    made = {
        "two": lambda: maker.job(islands("AA"), {})[0],
        "two islands": lambda: maker.job(islands("AAAB"), {})[0],
        "three hosts": lambda: maker.job(three_hosts(), {"node0": 2, "node1": 2})[0],
        "64 ranks": lambda: fast(cluster(8, 8, 4), maker, 4),
        "64 ranks of a host": lambda: fast(cluster(1, 64, 1), maker, 2),
        "64 hosts": lambda: fast(cluster(64, 1, 30), maker, 1),
        "no path": lambda: maker.job([member("n0"), member("n1")], {}, transport=("shm",))[0],
        "over tcp": lambda: maker.job(islands("ABAB"), {}, transport=("tcp",))[0],
        "300 ranks of a host": lambda: fast(cluster(2, 300, 1), maker, 8),
        "long names": lambda: maker.job(long_names(), {LONG: 3})[0],
        "20 islands": lambda: maker.job(islands([f"island{number}" for number in range(20)]), {})[0],
    }
    return lambda name: made[name]()


LONG = "a-host-with-a-name-as-long-as-the-cloud-makes-them"


def long_names():
    """Two ranks with names longer than any tile."""
    made = with_gpu(member(LONG), "nvidia")
    return [replace(made, label="x" * 64, device="NVIDIA A100-SXM4-80GB, an instance of a seventh")] * 2


def fast(members, maker, nports):
    """A job of many ranks, whose hosts have the same ports."""
    seen, _ = maker.job([members[0], member("other")], {members[0].host: nports, "other": nports})
    return job_of(members, [seen.nets[0]] * len(members), plain_ways(members))


NAMES = (
    *("two", "two islands", "three hosts", "64 ranks", "64 ranks of a host", "64 hosts"),
    *("no path", "over tcp", "300 ranks of a host", "long names", "20 islands"),
)


def boxes_of(svg):
    """(x1, y1, x2, y2) of each rectangle but the paper."""
    found = []
    for rect in list(svg.iter(f"{SVG}rect"))[1:]:
        x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def holds(one, other):
    """Whether the first rectangle holds the second."""
    return one[0] <= other[0] and one[1] <= other[1] and other[2] <= one[2] and other[3] <= one[3]


def overlap(one, other):
    """Whether two rectangles cross, neither being inside the other."""
    if one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]:
        return False
    return not holds(one, other) and not holds(other, one)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_overlaps(jobs, name):
    seen = jobs(name)
    shown = scene.compose(seen)
    svg = ElementTree.fromstring(drawing.draw(shown, seen.matrix))
    width, height = float(svg.get("width")), float(svg.get("height"))
    found = boxes_of(svg)
    # Behind a box of several hosts stands a second one, up and right of it.
    shadows = [one for one in found if any(one == (x1 + 4, y1 - 4, x2 + 4, y2 - 4) for x1, y1, x2, y2 in found)]
    solid = [one for one in found if one not in shadows]
    assert [(one, other) for one in solid for other in solid if overlap(one, other)] == []
    hosts = [one for one in solid if any(other != one and holds(one, other) for other in solid)]
    for line in svg.iter(f"{SVG}line"):
        x1, y1, x2, y2 = (float(line.get(key)) for key in ("x1", "y1", "x2", "y2"))
        crossed = [box for box in hosts if x1 < box[2] and box[0] < x2 + 0.1 and y1 < box[3] and box[1] < y2 + 0.1]
        # The line of shared memory lies within its host; no other line enters one.
        assert len(crossed) <= 1 and (not crossed or y1 == y2 and crossed[0][0] < x1 and x2 < crossed[0][2])
        assert max(x1, x2) <= width and max(y1, y2) <= height
    for text in svg.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height
        fits(text, solid, width)
    assert width <= 1400


def fits(text, boxes, width):
    """A text in the middle of a tile stays within it; another one within the picture."""
    reach = len(text.text) * float(text.get("font-size")) * drawing.CHARACTER
    x, y = float(text.get("x")), float(text.get("y"))
    if text.get("text-anchor") == "start":
        assert x + reach <= width + 1
        return
    around = [box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
    if around and text.get("text-anchor") == "middle":
        least = min(box[2] - box[0] for box in around)
        assert reach <= least + 1, text.text


def test_what_three_hosts_show(jobs):
    shown = scene.compose(jobs("three hosts"))
    assert shown.title == "12 ranks on 3 hosts, 3 islands"
    assert [box.name for box in shown.boxes] == ["host node0", "host node1", "host node2"]
    assert [[tile.island for tile in box.ranks] for box in shown.boxes] == [[0] * 4, [1] * 4, [2] * 4]
    assert [(network.path, [box.number for box in network.boxes]) for network in shown.networks] == [
        ("V", [0, 1]),
        ("T", [0, 1, 2]),
    ]
    assert all(box.shares for box in shown.boxes)
    assert [(nic.name, nic.rate, nic.used) for nic in shown.boxes[0].nics] == [
        ("mlx5_0:1", "100 Gb/s", True),
        ("mlx5_1:1", "100 Gb/s", True),
        ("eth0", "10 Gb/s", True),
    ]


@pytest.mark.parametrize("name, paths", [("over tcp", ["T"]), ("two islands", []), ("no path", [])])
def test_networks(jobs, name, paths):
    shown = scene.compose(jobs(name))
    assert [network.path for network in shown.networks] == paths
    assert shown.boxes[0].shares == (name == "two islands")


def test_like_hosts_are_one_box(jobs):
    shown = scene.compose(jobs("64 hosts"))
    assert [(box.name, box.count) for box in shown.boxes] == [("30 x gpu0000", 30), ("34 x amd0030", 34)]
    assert len(scene.compose(jobs("64 ranks")).boxes) == 8


def test_markup_in_a_name_is_text(jobs, monkeypatch, tmp_path):
    seen = Maker(monkeypatch, tmp_path).job(islands(["<b>&"] * 2), {})[0]
    svg = ElementTree.fromstring(drawing.draw(scene.compose(seen), seen.matrix))
    assert any("<b>&" in text.text for text in svg.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", NAMES)
def test_text(jobs, name):
    seen = jobs(name)
    said = topo.text(seen)
    assert said.startswith(scene.compose(seen).title) and len(said.splitlines()) < 150
    assert re.search(r"^ *[A0] ", said, re.MULTILINE) or len(seen.members) == 1


def test_one_process(tmp_path, capsys):
    picture = tmp_path / "job.svg"
    assert main(["topo", "--svg", str(picture)]) == 0
    assert ElementTree.fromstring(picture.read_text()).tag == f"{SVG}svg"
    capsys.readouterr()
    assert main(["topo"]) == 0
    assert capsys.readouterr().out.startswith("1 rank on 1 host, 1 island")


@pytest.mark.parametrize("place, words", [("there.svg", "exists already"), ("no/folder.svg", "No such file")])
def test_a_file_that_cannot_be_written(tmp_path, capsys, place, words):
    (tmp_path / "there.svg").write_text("mine")
    with pytest.raises(SystemExit) as caught:
        main(["topo", "--svg", str(tmp_path / place)])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and words in said and "--svg" in said
    assert (tmp_path / "there.svg").read_text() == "mine"


def test_a_wrong_variable_leaves_no_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HETCCL_TIMEOUT", "soon")
    assert main(["topo", "--svg", str(tmp_path / "job.svg")]) == 1
    assert "HETCCL_TIMEOUT" in capsys.readouterr().err and not (tmp_path / "job.svg").exists()


TWICE = """
import sys
from hetccl.__main__ import main
assert main(["topo", "--svg", sys.argv[1]]) == 0
sys.exit(main(["topo", "--svg", sys.argv[1]]))
"""


@pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")
def test_a_job_is_drawn_once_and_refused_on_all_ranks(tmp_path):
    picture, each = tmp_path / "job.svg", [{"HETCCL_ISLAND": label} for label in "AB"]
    done = launch.mpirun(2, TWICE, picture, per_rank_env=each, timeout=60, keep_alive=True, check=False)
    assert done.returncodes == (2, 2) and done.stdout == (f"{picture}: 2 ranks drawn\n", "")
    assert "exists already" in done.stderr[0] and done.stderr[1] == ""
    assert all(words in picture.read_text() for words in ("rank 0", "rank 1", "island A", "island B"))
