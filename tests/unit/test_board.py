"""The board: what a rank knows of the others, on this host (a segment) and on others (told by their connections)."""

import os

import pytest

from hetccl import _board, _shm

SECRET = bytes(range(16))
# HETCCL_REASON_*, as include/hetccl/shm.h numbers them.
DEAD, LEFT, TIMEOUT, FREED, NETWORK = 1, 2, 3, 4, 5


@pytest.fixture
def boards():
    """Function: (ranks of the communicator, those of this host) -> boards of the latter."""
    opened = []

    def make(nranks, near):
        descriptor = _shm.create(len(near), SECRET)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        segments = [_shm.Segment(place, len(near), path, SECRET) for place in range(len(near))]
        os.close(descriptor)
        for segment in segments:
            segment.probe_peers()
        for segment in segments:
            segment.connect(True)
        opened.extend(_board.Board(segment, rank, nranks, near) for segment, rank in zip(segments, near))
        return opened

    yield make
    for board in opened:
        board.close()


def test_a_fault_is_told_to_the_ranks_of_this_host(boards):
    first, second = boards(5, (1, 3))
    assert (first.fault(), second.fault()) == (None, None)
    second.break_off(NETWORK, 3, 4)
    assert first.fault() == second.fault() == (NETWORK, 3, 4)
    assert first.broken() and second.broken()


def test_the_first_fault_stands(boards):
    first, second = boards(4, (0, 2))
    first.break_off(TIMEOUT, 0, 3)
    second.break_off(DEAD, 2, 1)
    assert second.fault() == (TIMEOUT, 0, 3)


@pytest.mark.parametrize("note, broken", [("left", False), ("died", True)])
def test_the_end_of_a_rank_of_another_host(boards, note, broken):
    first, second = boards(3, (0, 2))
    getattr(first, note)(1)
    assert first.broken() is broken
    assert second.broken() is False, "each rank hears of it by its own connection"


def test_who_has_left_cannot_die(boards):
    (board,) = boards(2, (0,))
    board.left(1)
    board.died(1)
    assert board.broken() is False


@pytest.mark.parametrize("note", ["left", "died"])
def test_ranks_of_this_host_end_by_themselves(boards, note):
    first, _ = boards(3, (0, 2))
    with pytest.raises(ValueError, match="rank 2 is on this host"):
        getattr(first, note)(2)


def test_a_fault_here_wakes_those_who_tell_other_hosts(boards):
    (board,) = boards(2, (0,))
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        board.connect_far(wake, lambda peers: {})
        board.break_off(LEFT, 1, 1)
        with pytest.raises(BlockingIOError):  # what another host has told is news to nobody there
            os.eventfd_read(wake)
    finally:
        board.disconnect_far()
        os.close(wake)


def test_others_are_asked_how_far_they_are(boards):
    board = boards(4, (0, 1))[0]
    asked = []

    def ask(peers):
        asked.append(peers)
        return {3: (17, 2)}

    assert board.note_far(range(4)) == {2, 3}, "nobody can be asked yet"
    board.connect_far(-1, ask)
    assert board.note_far(range(4)) == {2}
    assert asked == [(2, 3)]


def test_no_rank_has_entered_a_collective_at_first(boards):
    assert [board.entered() for board in boards(2, (0, 1))] == [(0, 0), (0, 0)]


def test_a_closed_board_says_what_it_last_said(boards):
    """Who speaks to other hosts may ask it later than the communicator's end; the segment's memory is gone then."""
    first, second = boards(4, (1, 3))
    first.break_off(DEAD, 1, 2)
    for board in (first, second):
        board.close()
    first.break_off(TIMEOUT, 1, 0)
    assert first.fault() == second.fault() == (DEAD, 1, 2)
    assert first.entered() == second.entered() == (0, 0)
    first.died(2)
    assert first.broken() is True


def test_a_closed_board_takes_no_fault(boards):
    (board,) = boards(2, (0,))
    board.close()
    board.break_off(DEAD, 0, 1)
    assert board.fault() is None
