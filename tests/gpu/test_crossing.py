"""Collectives on GPU buffers between islands: on the fakes of CUDA and HIP anywhere, and on real GPUs.

What the fakes show is hetccl's own code, its order of streams, events and waits; nothing of a vendor's software.
"""

import functools

import crossing_cases
import device_jobs
import pytest
from test_peer_lost import Loss, pool_of

from mpi import jobs

CHECKS, MESSAGES, STREAMS, OF_STREAMS = (
    str(device_jobs.HERE / f"check_{name}.py")
    for name in ("crossing", "crossing_messages", "crossing_streams", "streams")
)
# How the fakes queue: all at once, in a queue for each stream, in one queue for all streams.
AT_ONCE, QUEUES, ONE_QUEUE = ((("FAKE_CUDA_QUEUES", n), ("FAKE_HIP_QUEUES", n)) for n in ("0", "4", "1"))
BLOCKING = (("CUDA_LAUNCH_BLOCKING", "1"),)
ONE_CONNECTION = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)
COMPARED = (("HETCCL_CHECK", "1"),)
# (place, islands, kinds of memory, variables, how much); kinds as in device_support
MATRICES = (
    ("fake", "AB", "GG", ONE_QUEUE, crossing_cases.BROAD),
    ("fake", "AB", "GG", AT_ONCE, crossing_cases.DEEP),
    ("fake", "AB", "GH", QUEUES, crossing_cases.DEEP),
    ("fake", "AAB", "GNH", QUEUES, crossing_cases.DEEP),
    ("fake", "ABAB", "GGNN", ONE_QUEUE, crossing_cases.DEEP),
    ("fake", "AABB", "GGHH", QUEUES, crossing_cases.DEEP),
    ("cupy", "AB", "GG", (), crossing_cases.BROAD),
    ("cupy", "AB", "GG", ONE_CONNECTION, crossing_cases.DEEP),
    ("cupy", "AB", "GG", BLOCKING, crossing_cases.DEEP),
    ("cupy", "ABCC", "GGNN", (), crossing_cases.DEEP),
    ("torch", "AB", "GG", (), crossing_cases.DEEP),
)
LAYOUTS = (
    ("fake", "AB", "GG", AT_ONCE),
    ("fake", "AB", "GN", ONE_QUEUE),
    ("fake", "ABC", "GNH", QUEUES),
    ("fake", "AABB", "GGHH", QUEUES),
    ("cupy", "AB", "GG", ()),
    ("cupy", "AB", "GG", ONE_CONNECTION),
    ("cupy", "ABCC", "GGNN", ()),
)
MESSAGE_LAYOUTS = (
    ("fake", "AB", "GG", ONE_QUEUE),
    ("fake", "AB", "GN", AT_ONCE),
    ("fake", "AAB", "GNH", QUEUES),
    ("fake", "ABAB", "GGHN", QUEUES),
    *(layout for layout in LAYOUTS if layout[0] != "fake"),
)
REAL = tuple(("cupy", "AB", "GG", env) for env in ((), ONE_CONNECTION, BLOCKING))
COMPARING = "check_compared_calls"
# Asks the fake driver.
COUNTING = "check_few_commands"
# Of the checks inside an island, those that hold between islands too.
INSIDE_ONLY = {"check_graph"}
OUTSIDE = [name for name in jobs.check_names(OF_STREAMS) if name not in INSIDE_ONLY]
CASES = [
    *((CHECKS, layout, name) for layout in LAYOUTS for name in jobs.check_names(CHECKS) if name != COMPARING),
    *((CHECKS, (*layout[:3], layout[3] + COMPARED), COMPARING) for layout in LAYOUTS),
    *(
        (MESSAGES, layout, name)
        for layout in MESSAGE_LAYOUTS
        for name in jobs.check_names(MESSAGES)
        if name != COUNTING or layout[0] == "fake" and layout[3] != AT_ONCE
    ),
    *((STREAMS, layout, name) for layout in REAL for name in jobs.check_names(STREAMS)),
    *((OF_STREAMS, layout, name) for layout in REAL for name in OUTSIDE),
]
JOB_S = 280


def run(program, layout, *args, timeout=JOB_S):
    """Run a program of this folder: Outcome; the test is skipped where its place is missing."""
    place, islands, kinds, env = layout
    why = device_jobs.missing(place, kinds.count("G"))
    if why:
        pytest.skip(why)
    return jobs.run(program, islands, *args, env=variables(place, kinds, env), timeout=timeout)


def variables(place, kinds, env):
    found = {**device_jobs.environment(place), "TEST_KINDS": kinds, "HETCCL_TIMEOUT": "60"}
    if "H" in kinds:
        from fakes import build

        found.update(HETCCL_HIP_LIB=build.build("fakehip"), FAKE_HIP_DEVICES="4")
    return {**found, **dict(env)}


@pytest.fixture(scope="module")
def matrices():
    """Function: one of MATRICES -> (Outcome, {case: {rank: problem}})."""

    @functools.cache
    def make(place, islands, kinds, env, scope):
        outcome = run(device_jobs.HERE / "prog_crossing.py", (place, islands, kinds, env), scope)
        return outcome, outcome.by_case()

    return make


class CheckRuns(jobs.CheckRuns):
    def start(self, program, layout, names):
        return run(program, layout, *names)

    def ranks(self, layout):
        return len(layout[1])


@pytest.fixture(scope="module")
def runs(request):
    return CheckRuns.of(request, test_check)


def name_of(value):
    if isinstance(value, tuple):
        place, islands, kinds, env = value[:4]
        return "-".join([place, islands, kinds, *(f"{name}={setting}" for name, setting in env), *value[4:]])
    return value.rpartition("/")[2].removesuffix(".py")


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize(
    "matrix, group",
    [(m, group) for m in MATRICES for group in crossing_cases.groups(len(m[1]), m[4], m[0])],
    ids=name_of,
)
def test_equals_numpy(matrix, group, matrices):
    outcome, by_case = matrices(*matrix)
    ranks = len(matrix[1])
    wrong = jobs.faults(by_case, crossing_cases.groups(ranks, matrix[4], matrix[0])[group], ranks)
    assert not wrong, "\n".join([*wrong[:5], "" if by_case else outcome.text])


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("matrix", MATRICES, ids=name_of)
def test_ends_well(matrix, matrices):
    outcome, _ = matrices(*matrix)
    ranks = len(matrix[1])
    assert sorted(outcome.by_rank("end")) == list(range(ranks)) and outcome.job.returncode == 0, outcome.text


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("program, layout, name", CASES, ids=name_of)
def test_check(program, layout, name, runs):
    runs.verify(program, layout, name)


def loss_of(place, islands, env, what):
    return Loss(islands, what, tuple(variables(place, "G" * len(islands), env).items()))


@pytest.fixture(scope="module")
def losses(request):
    running = pool_of(request, test_killed_rank, loss_of)
    yield running
    running.close()


@pytest.mark.parametrize("what", ["call", "wait", "idle", "message"])
@pytest.mark.parametrize(
    "place, islands, env", [("fake", "AB", QUEUES), ("fake", "AAB", ONE_QUEUE), ("cupy", "AB", ())], ids=str
)
def test_killed_rank(place, islands, env, what, losses):
    """No stream hangs, and the others raise PeerError in bounded time."""
    why = device_jobs.missing(place, len(islands))
    if why:
        pytest.skip(why)
    loss = loss_of(place, islands, env, what)
    loss.check(losses[loss])


def faulty(what, env, timeout="60"):
    """{rank: what its report says}, of a job of two ranks in which rank 1 is at fault. timeout: HETCCL_TIMEOUT"""
    options = {"env": {**variables("fake", "GG", env), "HETCCL_TIMEOUT": timeout}, "timeout": 240}
    outcome = jobs.run(device_jobs.HERE / "prog_crossing_faults.py", "AB", what, **options)
    assert sorted(outcome.by_rank("freed")) == [0, 1], outcome.text
    assert all(line["freed"] for line in outcome.by_rank("freed").values()), outcome.lines
    return outcome.by_rank("error"), outcome


@pytest.mark.parametrize("what", ["late", "late_later", "unsent"])
@pytest.mark.parametrize("env", [QUEUES, ONE_QUEUE], ids=["queues", "one_queue"])
def test_rank_never_calls(what, env):
    """The stream goes on, and Wait raises CommTimeout that names the rank."""
    errors, outcome = faulty(what, env, timeout="3")
    assert list(errors) == [0], outcome.text
    assert "CommTimeout" in errors[0]["classes"] and errors[0]["peers"] == [1], errors


def test_message_of_another_length():
    """A receive that is queued must get what it asked for: both ranks hear of it, and nothing hangs."""
    errors, outcome = faulty("length", QUEUES)
    assert "PeerError" in errors[0]["classes"] and errors[0]["peers"] == [1], outcome.lines
    assert "PeerError" in errors[1]["classes"] and errors[1]["peers"] == [0], outcome.lines


@pytest.mark.parametrize("env", [QUEUES, AT_ONCE], ids=["queues", "at_once"])
def test_driver_that_refuses(env):
    """A GpuError with the driver's function; the other rank hears of it."""
    errors, outcome = faulty("driver", env)
    assert "GpuError" in errors[1]["classes"] and errors[1]["code"] == 801, outcome.lines
    assert "cuLaunchHostFunc" in errors[1]["text"]
    assert "PeerError" in errors[0]["classes"] and errors[0]["peers"] == [1], outcome.lines


def test_driver_without_waits():
    """Refused at set-up on the rank that lacks them: nothing is under way, and the communicator works."""
    errors, outcome = faulty("set_up", QUEUES)
    assert list(errors) == [1] and "GpuError" in errors[1]["classes"], outcome.lines
