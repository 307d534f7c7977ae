"""The other ways through the engine give the same results: two copies instead of one, small rings, sleeping at once,
checking every call, TCP instead of shared memory, and every algorithm that a communicator would not choose for these
ranks by itself.

One job per layout goes all ways, each with a communicator of its own.
"""

import json

import pytest

from hetccl.plan import algorithms, steps
from mpi import jobs, matrix

# Islands that are unequal, that are interleaved, and one alone.
LAYOUTS = ("AABBB", "ABBA", "AAA")
WAYS = {
    "copies": {"HETCCL_SINGLE_COPY": "off"},
    # 96 bytes of payload in a cell: messages go round the ring many times, and the producer waits for the consumer.
    "small-rings": {"HETCCL_SINGLE_COPY": "off", "HETCCL_RING_BYTES": "1024"},
    "sleeping": {"HETCCL_SPIN_US": "0"},
    "checked": {"HETCCL_CHECK": "1"},
    "tcp": {"HETCCL_TRANSPORT": "tcp"},
    "tcp-sleeping": {"HETCCL_TRANSPORT": "tcp", "HETCCL_SPIN_US": "0"},
    # 96 bytes go eagerly: nearly all messages are asked for by their receivers.
    "tcp-small-cells": {"HETCCL_TRANSPORT": "tcp", "HETCCL_EAGER_BYTES": "96", "HETCCL_TCP_CONNECTIONS": "4"},
}
ALGORITHMS = sorted({name for collective in steps.COLLECTIVES for name in algorithms(collective)})
WAYS |= {f"algorithm-{name}": {"HETCCL_ALGORITHM": name} for name in ALGORITHMS}
JOB_S = 600


@pytest.fixture(scope="module")
def results(request):
    """Function: (layout, way) -> (Outcome of the layout's job, {case: {rank: problem}} of the way)."""
    chosen, outcomes = {}, {}
    for item in request.session.items:
        if item.function is test_way:
            chosen.setdefault(item.callspec.params["layout"], []).append(item.callspec.params["way"])

    def of(layout, way):
        if layout not in outcomes:
            variables = [json.dumps(WAYS[name]) for name in chosen[layout]]
            outcomes[layout] = jobs.run("prog_exact.py", layout, matrix.BRIEF, *variables, timeout=JOB_S)
        return outcomes[layout], outcomes[layout].by_case(chosen[layout].index(way))

    return of


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
def test_way(way, layout, results):
    outcome, by_case = results(layout, way)
    wanted = [str(case) for case in matrix.cases(len(layout), matrix.BRIEF)]
    wrong = jobs.faults(by_case, wanted, len(layout))
    assert not wrong, "\n".join([*wrong[:20], "" if by_case else outcome.text])
    assert outcome.job.returncode == 0, outcome.text
