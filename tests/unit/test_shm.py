"""The shared-memory segment: who may map it, what it takes, what it leaves behind. Links are tested by tests/mpi."""

import os
import stat

import pytest

from hetccl import _shm
from hetccl.errors import LibraryError

SECRET = bytes(range(16))


@pytest.fixture
def segment_file():
    """Function: (ranks, ring size) -> path of a new segment's file."""
    opened = []

    def make(nranks, ring_bytes=None):
        opened.append(_shm.create(nranks, SECRET, ring_bytes))
        return f"/proc/{os.getpid()}/fd/{opened[-1]}"

    yield make
    for fd in opened:
        os.close(fd)


def test_only_the_user_may_open_it_and_nobody_may_shrink_it(segment_file):
    path = segment_file(2)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path, "r+b") as file, pytest.raises(PermissionError):
        file.truncate(0)


def test_a_ring_beyond_all_files_is_refused():
    with pytest.raises(ValueError, match="HETCCL_RING_BYTES"):
        _shm.create(2, SECRET, 1 << 61)


def test_it_has_no_name(segment_file):
    before = set(os.listdir("/dev/shm"))
    segment = _shm.Segment(0, 2, segment_file(2), SECRET)
    assert set(os.listdir("/dev/shm")) == before
    segment.close()


@pytest.mark.parametrize(
    "rank, nranks, secret",
    [(0, 2, bytes(16)), (0, 2, SECRET[:-1] + b"x"), (0, 3, SECRET), (0, 1, SECRET)],
    ids=["no secret", "wrong secret", "more ranks", "fewer ranks"],
)
def test_another_segment_is_refused(segment_file, rank, nranks, secret):
    path = segment_file(2)
    with pytest.raises(LibraryError):
        _shm.Segment(rank, nranks, path, secret)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\0" * (1 << 20)], ids=["empty", "short", "zeros"])
def test_a_file_that_is_no_segment_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(LibraryError):
        _shm.Segment(0, 2, path, SECRET)


def test_a_missing_file_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        _shm.Segment(0, 2, "/proc/self/fd/1000000", SECRET)


def mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:hetccl" in line for line in maps)


def test_close_gives_everything_back(segment_file):
    path = segment_file(2)
    descriptors = len(os.listdir("/proc/self/fd"))
    segments = [_shm.Segment(rank, 2, path, SECRET) for rank in range(2)]
    assert mappings() == 2
    assert len(os.listdir("/proc/self/fd")) == descriptors
    for segment in segments:
        segment.close()
        segment.close()
    assert mappings() == 0


def test_a_forgotten_segment_is_unmapped(segment_file):
    segment = _shm.Segment(0, 2, segment_file(2), SECRET)
    assert mappings() == 1
    del segment
    assert mappings() == 0


def test_peers_are_probed_and_connected(segment_file):
    path = segment_file(3)
    segments = [_shm.Segment(rank, 3, path, SECRET) for rank in range(3)]
    # All three are this process, which can read its own memory wherever process_vm_readv exists at all.
    assert [segment.probe_peers() for segment in segments] == [(), (), ()]
    segments[0].connect(True)
    segments[1].connect(False)
    assert segments[0].single_copy_peers() == (0, 1, 2)
    assert segments[1].single_copy_peers() == ()
    for segment in segments:
        segment.close()


def test_a_peer_that_cannot_be_read_gets_copies(segment_file):
    path = segment_file(2)
    segments = [_shm.Segment(rank, 2, path, SECRET) for rank in range(2)]
    # Rank 1 never probes, which leaves "cannot read" in its row: rank 0 must not send it addresses.
    segments[0].probe_peers()
    segments[0].connect(True)
    assert segments[0].single_copy_peers() == (0,)
    for segment in segments:
        segment.close()


@pytest.mark.parametrize("nranks", [1, 2, 8, 9, 16, 17, 32, 33, 64])
def test_address_space_stays_bounded(segment_file, nranks):
    assert os.stat(segment_file(nranks)).st_size < 300 << 20


@pytest.mark.parametrize("ring_bytes", [1, 1000, 4096, 65536, 1 << 20, 3 << 20])
def test_cells_hold_whole_elements(ring_bytes):
    """A reduction consumes cells piece by piece: their payload must be a multiple of the largest item, 16 bytes."""
    cell_header_bytes = 32
    cell = _shm.cell_bytes_for(2, ring_bytes)
    assert cell % 64 == 0 and (cell - cell_header_bytes) % 16 == 0 and cell > cell_header_bytes
    assert 8 * cell <= max(ring_bytes, 8 * 128)
