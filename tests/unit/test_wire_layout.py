"""Messages over a wire whose elements are scattered in memory, by an MPI datatype; packed and unpacked by MPI here."""

import pytest
from mailboxes import Room
from mpi4py import MPI
from wires import COLLECTIVE, PAYLOAD, POINT_TO_POINT, Ends, body

import hetccl.bootstrap  # noqa: F401 - it teaches hetccl to read MPI's datatypes

DATATYPES = {
    "runs of 3 bytes": lambda: MPI.BYTE.Create_vector(100, 3, 7),
    "column of 8 bytes": lambda: MPI.DOUBLE.Create_vector(70, 1, 3),
    "block of a cube": lambda: MPI.FLOAT.Create_subarray([10, 8, 9], [5, 3, 4], [1, 4, 2]),
    "one run": lambda: MPI.BYTE.Create_hindexed([300], [40]).Create_resized(0, 400),
    "last comes first": lambda: MPI.SHORT.Create_indexed([30, 1, 70], [80, 79, 0]),
}
memory = pytest.mark.parametrize("zero_copy", [True, False], ids=["direct", "copied"])


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("count", [1, 5, 20])
@pytest.mark.parametrize("cls", [COLLECTIVE, POINT_TO_POINT], ids=["collective", "point_to_point"])
@pytest.mark.parametrize("ends_with_layout", ["source", "target", "both"])
@memory
def test_scattered_messages(name, count, cls, ends_with_layout, zero_copy):
    datatype = DATATYPES[name]().Commit()
    size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    scattered, nbytes = body(1, count * extent + 1000), count * size
    packed = bytearray(nbytes)
    datatype.Pack(memoryview(scattered)[: count * extent], packed, 0, MPI.COMM_SELF)
    room = Room(len(scattered)) if ends_with_layout != "source" else Room(nbytes)
    expected = bytearray(room.view)
    if ends_with_layout == "source":
        expected = packed
    else:
        datatype.Unpack(packed, 0, memoryview(expected)[: count * extent], MPI.COMM_SELF)
    ends = Ends(zero_copy=(zero_copy, zero_copy))
    at_source = {} if ends_with_layout == "target" else {"nbytes": nbytes, "datatype": datatype}
    at_target = {} if ends_with_layout == "source" else {"datatype": datatype}
    ends.send(0, packed if ends_with_layout == "target" else scattered, cls=cls, **at_source)
    ends.receive(1, nbytes, cls=cls, room=room, **at_target)
    ends.settle()
    ends.assert_clean()
    assert room.got(len(expected)) == expected
    datatype.Free()


@pytest.mark.parametrize("skip, nbytes", [(0, 301), (1, 10), (7, PAYLOAD + 1), (301, 2000), (2999, 1)])
@memory
def test_a_part_of_the_packed_bytes(skip, nbytes, zero_copy):
    datatype = DATATYPES["runs of 3 bytes"]().Commit()
    scattered, packed = body(1, 10 * datatype.Get_extent()[1]), bytearray(10 * datatype.Get_size())
    datatype.Pack(scattered, packed, 0, MPI.COMM_SELF)
    ends = Ends(zero_copy=(zero_copy, zero_copy))
    ends.send(0, scattered, nbytes=nbytes, datatype=datatype, skip=skip)
    received = ends.receive(1, nbytes)
    ends.settle()
    assert received.got() == packed[skip : skip + nbytes]
    datatype.Free()


def test_elements_in_one_run_go_straight_from_the_users_memory():
    datatype = DATATYPES["one run"]().Commit()
    scattered = body(1, 400)
    ends = Ends()
    ends.send(0, scattered, nbytes=300, datatype=datatype)
    received = ends.receive(1, 300)
    ends.settle()
    assert received.got() == scattered[40:340]
    assert ends.pair.counters(0)["direct_out"] == 300
    datatype.Free()
