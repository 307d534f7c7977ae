"""Counts, displacements and messages beyond 2 GiB, on two ranks: `make test-long`. They need 14 GiB of memory."""

from pathlib import Path

import pytest

from mpi import jobs

NEEDED_BYTES = 14 << 30


def available_bytes():
    """Memory that programs can still get, as Linux sees it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@pytest.mark.limit(900)
@pytest.mark.parametrize("layout", ["AA", "AB"])
@pytest.mark.parametrize("name", jobs.check_names("check_huge.py"))
def test_huge(name, layout):
    if available_bytes() < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of memory, {available_bytes() >> 30} GiB are free")
    outcome = jobs.run("check_huge.py", layout, name, timeout=600)
    ran = outcome.by_rank("name")
    assert not [line["problem"] for line in ran.values() if line["problem"]], ran
    assert sorted(ran) == [0, 1] and outcome.job.returncode == 0, outcome.text
