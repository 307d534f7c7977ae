"""Layer L2: what two ranks tell each other of a connection, between C structs and what JSON carries.

The connector takes these records from the network and hands them on as they are: every key, type and range is checked
here, and what is wrong is a ValueError that says so.
"""

from libc.string cimport memset

from hetccl._wire_peer cimport HETCCL_WIRE_CLASSES, HETCCL_WIRE_CTS_MAX

cdef enum:
    # Parts of a piece, as an immediate value counts them, and bits for them.
    MOST_PARTS = 4
    MOST_MASK = (1 << MOST_PARTS) - 1

UINT32_MOST = (1 << 32) - 1
UINT64_MOST = (1 << 64) - 1


cdef int inbox_read(record, Inbox* inbox, uint32_t* rkeys, int nrails) except -1:
    cdef int i
    values = members("inbox", record, ("address", "cells", "cell_bytes", "rkeys"))
    inbox.address = number("inbox: address", values[0], UINT64_MOST)
    inbox.shape.ncells = number("inbox: cells", values[1], UINT32_MOST)
    inbox.shape.cell_bytes = number("inbox: cell_bytes", values[2], UINT32_MOST)
    keys = sequence("inbox: rkeys", values[3], nrails, nrails)
    for i in range(nrails):
        rkeys[i] = number("inbox: rkeys", keys[i], UINT32_MOST)
    return 0


cdef dict arrived_record(const hetccl_wire_arrived_t* arrived):
    """{"cells", "cts": [position of the next one, per class], "open": per class, [position, parts, mask] of each CTS
    entry whose piece is not complete}."""
    cdef int cls, i
    return {
        "cells": [arrived.cells[cls] for cls in range(HETCCL_WIRE_CLASSES)],
        "cts": [arrived.cts[cls] for cls in range(HETCCL_WIRE_CLASSES)],
        "open": [
            [[arrived.open[cls][i].position, arrived.open[cls][i].parts, arrived.open[cls][i].mask]
             for i in range(<int>arrived.nopen[cls])]
            for cls in range(HETCCL_WIRE_CLASSES)
        ],
    }


cdef int arrived_read(record, hetccl_wire_arrived_t* arrived) except -1:
    cdef int cls, i
    memset(arrived, 0, sizeof(hetccl_wire_arrived_t))
    cells, cts, opens = members("arrived", record, ("cells", "cts", "open"))
    cells = sequence("arrived: cells", cells, HETCCL_WIRE_CLASSES, HETCCL_WIRE_CLASSES)
    cts = sequence("arrived: cts", cts, HETCCL_WIRE_CLASSES, HETCCL_WIRE_CLASSES)
    opens = sequence("arrived: open", opens, HETCCL_WIRE_CLASSES, HETCCL_WIRE_CLASSES)
    for cls in range(HETCCL_WIRE_CLASSES):
        arrived.cells[cls] = number("arrived: cells", cells[cls], UINT32_MOST)
        arrived.cts[cls] = number("arrived: cts", cts[cls], UINT32_MOST)
        entries = sequence("arrived: open", opens[cls], 0, HETCCL_WIRE_CTS_MAX)
        arrived.nopen[cls] = len(entries)
        for i, entry in enumerate(entries):
            position, parts, mask = sequence("arrived: open", entry, 3, 3)
            arrived.open[cls][i].position = number("arrived: open: position", position, UINT32_MOST)
            arrived.open[cls][i].parts = number("arrived: open: parts", parts, MOST_PARTS)
            arrived.open[cls][i].mask = number("arrived: open: mask", mask, MOST_MASK)
    return 0


def members(name, record, keys):
    """The record's values in the order of keys, which are all that it has."""
    if type(record) is not dict or set(record) != set(keys):
        raise ValueError(f"{name}: {shown(record)}; a dict of {', '.join(keys)} is needed")
    return [record[key] for key in keys]


def sequence(name, value, least, most):
    """The list, of least to most elements."""
    if type(value) is not list or not least <= len(value) <= most:
        raise ValueError(f"{name}: {shown(value)}; a list of {least} to {most} elements is needed")
    return value


def number(name, value, most):
    """The int, from 0 to most."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}: {shown(value)}; a whole number from 0 to {most} is needed")
    return value


def shown(value):
    """What the network brought, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
