"""Messages whose elements are scattered in memory, by an MPI datatype: what arrives is what MPI packs and unpacks."""

import pytest
from mailboxes import BY_ADDRESS, Group, body
from mpi4py import MPI

import hetccl.bootstrap  # noqa: F401 - it teaches hetccl to read MPI's datatypes

# A Held struct is less than this.
SMALL = 512

DATATYPES = {
    "column of 8 bytes": lambda: MPI.DOUBLE.Create_vector(700, 1, 3),
    "runs of 20 bytes": lambda: MPI.INT.Create_vector(300, 5, 7),
    "runs of 1 KiB": lambda: MPI.BYTE.Create_vector(50, 1024, 1500),
    "runs of 8 KiB": lambda: MPI.BYTE.Create_vector(7, 8192, 9001),
    "block of a cube": lambda: MPI.FLOAT.Create_subarray([30, 20, 50], [29, 11, 31], [1, 4, 9]),
    "slab of a cube": lambda: MPI.FLOAT.Create_subarray([30, 20, 50], [11, 20, 50], [7, 0, 0]),
    "last comes first": lambda: MPI.SHORT.Create_indexed([3000, 1, 7000], [8000, 7990, 0]),
    "wider than it is": lambda: MPI.DOUBLE.Create_resized(0, 32),
}

datatypes = pytest.mark.parametrize("name", DATATYPES)
counts = pytest.mark.parametrize("count", [0, 1, 3, 2500])
single_copy = pytest.mark.parametrize("single_copy", [True, False], ids=["address", "stream"])
MOST_BYTES = 1 << 20


@pytest.fixture
def group(single_copy):
    made = Group(2, single_copy)
    yield made
    made.close()


def memory_for(name, count, seed):
    """(datatype, count that is not too large, memory that holds so many elements)"""
    datatype = DATATYPES[name]().Commit()
    extent = datatype.Get_extent()[1]
    count = min(count, MOST_BYTES // extent)
    return datatype, count, body(seed, extent * count)


def pack(memory, datatype, count):
    packed = bytearray(datatype.Get_size() * count)
    datatype.Pack(memory, packed, 0, MPI.COMM_SELF)
    return packed


def unpacked(packed, memory, datatype):
    """What memory becomes when packed is received into it."""
    expected = bytearray(memory)
    datatype.Unpack(
        packed, 0, memoryview(expected)[: len(packed) // datatype.Get_size() * datatype.Get_extent()[1]], MPI.COMM_SELF
    )
    return expected


def transfer(group, send, receive, aside):
    """Post a send and a receive, each by its arguments; aside: a receive of a later message comes first."""
    memory, nbytes, datatype = send
    sent = group[0].send(memory, 1, 1, nbytes=nbytes, datatype=datatype)
    if aside:
        group[0].send(bytearray(1), 1, 2)
        group[1].receive(bytearray(1), 0, 2)
        group.settle()
    memory, capacity, datatype = receive
    received = group[1].receive(memory, 0, 1, capacity=capacity, datatype=datatype)
    group.settle()
    assert (sent.state, received.state, received.matched) == ("complete", "complete", (0, 1, nbytes))
    group.assert_empty()


@datatypes
@counts
@single_copy
@pytest.mark.parametrize("aside", [False, True], ids=["head", "set aside"])
def test_sender_packs(group, name, count, single_copy, aside):
    datatype, count, memory = memory_for(name, count, 1)
    expected = pack(memory, datatype, count)
    before, received = bytes(memory), bytearray(len(expected))
    transfer(group, (memory, len(expected), datatype), (received, len(expected), None), aside)
    assert received == expected
    assert memory == before


@datatypes
@counts
@single_copy
@pytest.mark.parametrize("aside", [False, True], ids=["head", "set aside"])
def test_receiver_unpacks(group, name, count, single_copy, aside):
    datatype, count, memory = memory_for(name, count, 2)
    packed = body(3, datatype.Get_size() * count)
    expected = unpacked(packed, memory, datatype)
    transfer(group, (packed, len(packed), None), (memory, len(packed), datatype), aside)
    assert memory == expected


@pytest.mark.parametrize("name", ["column of 8 bytes", "runs of 8 KiB", "last comes first"])
@counts
@single_copy
def test_both(group, name, count, single_copy):
    datatype, count, source = memory_for(name, count, 4)
    _, _, target = memory_for(name, count, 5)
    packed = pack(source, datatype, count)
    expected = unpacked(packed, target, datatype)
    transfer(group, (source, len(packed), datatype), (target, len(packed), datatype), False)
    assert target == expected


@pytest.mark.parametrize("single_copy", [True], ids=["address"])
@pytest.mark.parametrize("name, kept", [("slab of a cube", True), ("block of a cube", False)])
def test_the_sender_keeps_what_lies_in_one_run(group, name, kept):
    datatype, _, memory = memory_for(name, 1, 6)
    nbytes = datatype.Get_size()
    assert nbytes > min(BY_ADDRESS, 32768)
    group[0].send(memory, 1, 1, nbytes=nbytes, datatype=datatype)
    group[0].send(bytearray(1), 1, 2)
    group[1].receive(bytearray(1), 0, 2)
    group.settle()
    held = group[1].counts[0]
    assert (held < SMALL) if kept else (held > nbytes)


@pytest.mark.parametrize("single_copy", [True], ids=["address"])
@datatypes
def test_a_shorter_message_leaves_the_rest_alone(group, name):
    datatype, count, memory = memory_for(name, 3, 7)
    packed = body(8, datatype.Get_size())
    expected = unpacked(packed, memory, datatype)
    transfer(group, (packed, len(packed), None), (memory, datatype.Get_size() * count, datatype), False)
    assert memory == expected
