"""`bench` on buffers in GPU memory: on a fake CUDA driver anywhere, on real GPUs where there are two."""

import device_jobs
import pytest

from mpi import jobs

# (place, islands, kinds of memory)
LAYOUTS = (("fake", "AB", "GG"), ("fake", "AB", "GN"), ("fake", "AA", "GG"), ("cupy", "AB", "GG"), ("cupy", "AA", "GG"))


@pytest.mark.parametrize("place, islands, kinds", LAYOUTS)
def test_collectives_on_gpu_buffers(place, islands, kinds):
    why = device_jobs.missing(place, kinds.count("G"))
    if why:
        pytest.skip(why)
    env = {**device_jobs.environment(place), "HETCCL_TIMEOUT": "60"}
    outcome = jobs.run(device_jobs.HERE / "prog_bench.py", islands, place, kinds, env=env, timeout=200)
    lines = [line for line in outcome.lines if line["rank"] == 0]
    assert len(lines) == 8 and len(outcome.lines) == 16, outcome.text
    for line in lines:
        assert line["status"] == 0, line["text"]
        assert "# wrong elements: 0 OK" in line["text"]
        # Host-staged MPI takes part where all buffers are a GPU's; whoever does not is named.
        staged = line["name"] in ("allreduce", "allgather", "reduce_scatter", "alltoall") and kinds == "GG"
        assert ("geometric mean" in line["text"]) == staged or place != "fake"
        assert "# torch-gloo does not take part: " in line["text"] or place != "fake"
        assert ("# mpi4py-staged does not take part: does not take buffers in host memory" in line["text"]) == (
            kinds == "GN"
        )
