"""Rails over verbs and the messages on them, docs/wire-protocol.md, chapters 3 and 4: written from the document alone.

Needs pyverbs. Simple rather than fast: each write is waited for, and completion queues are polled.
"""

import collections
import ctypes
import mmap
import os
import socket
import struct
import time

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

CELL, CTS, FIN, CREDIT = range(4)
EAGER, RTS = 1, 2
HEADER = struct.Struct("<QIIIHHQ")
ENTRY = struct.Struct("<QQQQIIII4I")
CELLS_AT, ENTRIES, VALUE = 8192, 64, (1 << 25) - 1
SECONDS = 30

Cell = collections.namedtuple("Cell", "nbytes seq tag position kind flags zero payload", defaults=[b""])
Entry = collections.namedtuple("Entry", "address offset nbytes total seq tag position zero rkey")


def immediate(kind, cls, value, parts=1, part=0):
    return kind << 30 | cls << 29 | (parts - 1) << 27 | part << 25 | value & VALUE


class Shape(collections.namedtuple("Shape", "cells cell_bytes")):
    """Of an inbox."""

    @property
    def nbytes(self):
        return -(-(CELLS_AT + 2 * self.cells * self.cell_bytes) // 4096) * 4096

    @property
    def eager(self):
        return self.cell_bytes - HEADER.size

    def cell(self, cls, position):
        return CELLS_AT + (cls * self.cells + position % self.cells) * self.cell_bytes

    def entry(self, cls, position):
        return 4096 * cls + position % ENTRIES * ENTRY.size


class Rail:
    """A queue pair on a device, with the memory registered there.

    card : {"device", "gid" (32 hexadecimal digits), "gid_index"}     address, nbytes : of the memory
    """

    def __init__(self, card, address, nbytes, receives):
        self.card = card
        self.context = Context(name=card["device"])
        self.pd = PD(self.context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.mr = MR(self.pd, nbytes, access, address=address)
        self.cq = CQ(self.context, receives + 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1), attr)
        self.scratch, self.receives = address, receives
        self.remote, self.stopped = None, False
        self.psn = int.from_bytes(os.urandom(3), "little")
        self.mtu = 128 << self.context.query_port(1).active_mtu
        self.posted = self.completed = 0
        for _ in range(receives):
            self.post_receive()

    def post_receive(self):
        # pyverbs wants a piece of memory; of no length, it is none.
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.scratch, 0, self.mr.lkey)]))

    def record(self):
        return {"qpn": self.qp.qp_num, "psn": self.psn, "gid": self.card["gid"], "lid": 0, "mtu": self.mtu}

    def connect(self, remote):
        self.remote = remote
        attr = QPAttr(port_num=1)
        attr.path_mtu = min(self.mtu, remote["mtu"]).bit_length() - 8
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = remote["qpn"], remote["psn"], self.psn
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 6, 6
        digits = remote["gid"]
        gid = GID(":".join(digits[i : i + 4] for i in range(0, 32, 4)))
        route = GlobalRoute(dgid=gid, sgid_index=self.card["gid_index"], hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rtr(attr)
        self.qp.to_rts(attr)

    def stop(self):
        """Take the queue pair to ERR and everything back. Returns the immediate values that had come."""
        self.stopped = True
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        values, left, deadline = [], self.receives, time.monotonic() + SECONDS
        while left:
            assert time.monotonic() < deadline, f"{left} receives do not come back"
            for wc in self.cq.poll(16)[1]:
                if wc.status == e.IBV_WC_SUCCESS:
                    values.append(socket.ntohl(wc.imm_data))
                left -= 1
        return values

    def post(self, source, nbytes, address, rkey, imm):
        pieces = [SGE(source, nbytes, self.mr.lkey)]
        opcode = e.IBV_WR_RDMA_WRITE if imm is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        wr = SendWR(opcode=opcode, num_sge=1, sg=pieces, send_flags=e.IBV_SEND_SIGNALED)
        wr.imm_data = socket.htonl(imm or 0)
        wr.set_wr_rdma(rkey, address)
        self.qp.post_send(wr)
        self.posted += 1

    def poll(self):
        """Immediate values that have come."""
        values = []
        for wc in self.cq.poll(16)[1]:
            if wc.status != e.IBV_WC_SUCCESS:
                raise ConnectionError(f"{self.card['device']}: completion with status {wc.status}")
            if wc.opcode & e.IBV_WC_RECV:
                values.append(socket.ntohl(wc.imm_data))
                self.post_receive()
            else:
                self.completed += 1
        return values


class Lane:
    """One class of traffic, both ways."""

    def __init__(self):
        self.seq = self.cells_filled = self.cells_freed = self.asks_arrived = 0
        self.cells_arrived = self.cells_emptied = self.cts_filled = 0
        self.asks = []
        self.kept = {CELL: [], CTS: []}  # all that were filled: (where in the peer's inbox, bytes)
        self.parts = []  # that were written: (rail, position, parts, part, address, bytes, key of each rail)
        self.open = {}  # position -> [parts, set of parts that have come]


class Side:
    """This side of a pair: inbox, memory for pieces (`landing`) and for what is sent (`source`), rails."""

    def __init__(self, cards, shape, most=1 << 20):
        self.shape, self.remote, self.most = Shape(*shape), None, most
        self.landing, self.source = self.shape.nbytes, self.shape.nbytes + most
        nbytes = self.source + most
        self.memory = mmap.mmap(-1, nbytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        receives = 2 * (self.shape.cells + 64 + 256 + 4)
        self.rails = [Rail(card, self.base, nbytes, receives) for card in cards]
        self.lanes = Lane(), Lane()
        self.credits = self.carrier = 0

    def record(self):
        inbox = {"address": self.base, **self.shape._asdict(), "rkeys": [rail.mr.rkey for rail in self.rails]}
        return {
            "kind": "verbs",
            "rails": [rail.record() for rail in self.rails],
            "inbox": inbox,
            "connections": 1,
        }

    def connect(self, record):
        inbox = record["inbox"]
        assert record["kind"] == "verbs" and len(record["rails"]) == len(self.rails), record
        self.remote, self.address = Shape(inbox["cells"], inbox["cell_bytes"]), inbox["address"]
        self.rkeys = inbox["rkeys"]
        for rail, remote in zip(self.rails, record["rails"]):
            rail.connect(remote)

    # Writing and noticing.

    def write(self, data, address, rkey, imm=None, rail=0):
        """One write, and wait for its completion. It is lost if the rail has been stopped."""
        assert len(data) <= self.most
        rail = self.rails[rail]
        if rail.stopped:
            return
        self.memory[self.source : self.source + len(data)] = data
        rail.post(self.base + self.source, len(data), address, rkey, imm)
        self.until(lambda: rail.completed == rail.posted)

    def carry(self, kind, cls, position, where=0, data=b""):
        """Write a cell, an entry or a credit."""
        rkey = self.rkeys[self.carrier]
        self.write(data, self.address + where, rkey, immediate(kind, cls, position), self.carrier)

    def fill(self, kind, cls, position, where, data):
        """Write a cell or an entry and keep it."""
        self.lanes[cls].kept[kind].append((where, data))
        self.carry(kind, cls, position, where, data)

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, "nothing came for too long"
            for rail in self.rails:
                for value in [] if rail.stopped else rail.poll():
                    self.notice(value)

    def notice(self, imm):
        kind, cls, parts, part, value = imm >> 30, imm >> 29 & 1, (imm >> 27 & 3) + 1, imm >> 25 & 3, imm & VALUE
        lane = self.lanes[cls]
        if kind == CELL:
            assert (value, parts, part) == (lane.cells_arrived, 1, 0), hex(imm)
            lane.cells_arrived += 1
            assert lane.cells_arrived - lane.cells_emptied <= self.shape.cells
        elif kind == CTS:
            assert (value, parts, part) == (lane.asks_arrived, 1, 0), hex(imm)
            fields = ENTRY.unpack_from(self.memory, self.shape.entry(cls, value))
            lane.asks.append(Entry(*fields[:8], fields[8:]))
            assert (lane.asks[-1].position, lane.asks[-1].zero) == (value, 0), lane.asks[-1]
            lane.asks_arrived += 1
        elif kind == FIN:
            entry = lane.open[value]
            assert part < parts and entry[0] in (0, parts) and part not in entry[1], hex(imm)
            entry[0] = parts
            entry[1].add(part)
        else:
            more = value - lane.cells_freed
            assert (parts, part) == (1, 0) and 0 <= more <= lane.cells_filled - lane.cells_freed, hex(imm)
            lane.cells_freed += more
            self.credits += 1

    # Sending.

    def put_cell(self, cls, tag, kind, nbytes, payload=b"", **wrong):
        """Fill the next cell and number the message. wrong: {field: value} of the header that is to be wrong."""
        lane = self.lanes[cls]
        self.until(lambda: lane.cells_filled - lane.cells_freed < self.remote.cells)
        position, seq = lane.cells_filled, lane.seq
        header = Cell(nbytes, seq, tag, position, kind, 0, 0)._replace(**wrong)
        room = -(-len(payload) // 32) * 32
        data = payload + bytes(room - len(payload)) + HEADER.pack(*header[:7])
        lane.cells_filled, lane.seq = position + 1, seq + 1
        end = self.remote.cell(cls, position) + self.remote.cell_bytes
        self.fill(CELL, cls, position, end - len(data), data)
        return seq

    def send_eager(self, cls, tag, data):
        assert len(data) <= self.remote.eager
        return self.put_cell(cls, tag, EAGER, len(data), data)

    def announce(self, cls, tag, nbytes):
        return self.put_cell(cls, tag, RTS, nbytes)

    def next_ask(self, cls, seq):
        """The next CTS entry for a message."""
        lane, found = self.lanes[cls], []

        def look():
            found[:] = [ask for ask in lane.asks if ask.seq == seq][:1]
            return found

        self.until(look)
        lane.asks.remove(found[0])
        return found[0]

    def serve(self, cls, seq, tag, data):
        """Send the pieces of a message as they are asked for, cut over all rails; returns how many they were."""
        sent = pieces = 0
        while sent < len(data) or pieces == 0:
            ask = self.next_ask(cls, seq)
            assert (ask.offset, ask.total, ask.tag) == (sent, len(data), tag), ask
            self.answer(cls, ask, data)
            sent += ask.nbytes
            pieces += 1
        return pieces

    def answer(self, cls, ask, data):
        """A part for each rail, the last rail's first; each in two writes, the last of which says FIN."""
        parts = len(self.rails) if ask.nbytes > 1 else 1
        cuts = [ask.nbytes * i // parts for i in range(parts + 1)]
        for part in reversed(range(parts)):
            begin, end = cuts[part], cuts[part + 1]
            chunk = data[ask.offset + begin : ask.offset + end]
            sent = part, ask.position, parts, part, ask.address + begin, chunk, ask.rkey
            self.lanes[cls].parts.append(sent)
            self.write_part(cls, *sent)

    def write_part(self, cls, rail, position, parts, part, address, data, rkeys):
        middle = len(data) // 3
        if middle:
            self.write(data[:middle], address, rkeys[rail], rail=rail)
        self.write(data[middle:], address + middle, rkeys[rail], immediate(FIN, cls, position, parts, part), rail)

    # Receiving.

    def take_cell(self, cls):
        """The next cell, emptied."""
        lane = self.lanes[cls]
        self.until(lambda: lane.cells_arrived > lane.cells_emptied)
        position = lane.cells_emptied
        end = self.shape.cell(cls, position) + self.shape.cell_bytes
        cell = Cell(*HEADER.unpack_from(self.memory, end - HEADER.size))
        assert (cell.position, cell.flags, cell.zero) == (position, 0, 0), cell
        if cell.kind == EAGER:
            begin = end - HEADER.size - -(-cell.nbytes // 32) * 32
            cell = cell._replace(payload=self.memory[begin : begin + cell.nbytes])
        lane.cells_emptied += 1
        if lane.cells_emptied % (self.shape.cells // 2) == 0:
            self.carry(CREDIT, cls, lane.cells_emptied)
        return cell

    def ask(self, cls, seq, tag, total, offset, nbytes, at):
        """Ask for a piece, into the landing memory from `at` on. Returns the entry's position."""
        lane = self.lanes[cls]
        position = lane.cts_filled
        self.until(lambda: self.is_complete(cls, position - ENTRIES))
        keys = [rail.mr.rkey for rail in self.rails] + [0] * (4 - len(self.rails))
        entry = ENTRY.pack(self.base + self.landing + at, offset, nbytes, total, seq, tag, position, 0, *keys)
        lane.cts_filled += 1
        lane.open[position] = [0, set()]
        self.fill(CTS, cls, position, self.remote.entry(cls, position), entry)
        return position

    def is_complete(self, cls, position):
        parts, here = self.lanes[cls].open.get(position, (0, ()))
        return position < 0 or len(here) == parts > 0

    def receive(self, cls, cell, cuts=()):
        """The bytes of an announced message, asked for in pieces that end at the cuts, all at once."""
        edges = sorted({0, *cuts, cell.nbytes} - {0}) or [0]
        at, positions = 0, []
        for edge in edges:
            positions.append(self.ask(cls, cell.seq, cell.tag, cell.nbytes, at, edge - at, at))
            at = edge
        self.until(lambda: all(self.is_complete(cls, position) for position in positions))
        return self.memory[self.landing : self.landing + cell.nbytes]

    # A rail that fails.

    def stop(self, index):
        """Close a rail, of which the peer hears nothing yet: what it writes there is lost, and what this side does."""
        for value in self.rails[index].stop():
            self.notice(value)

    def state(self):
        """What has arrived, for RAIL_DOWN."""
        opened = [
            [
                [position, parts, sum(1 << part for part in here)]
                for position, (parts, here) in lane.open.items()
                if not self.is_complete(cls, position)
            ]
            for cls, lane in enumerate(self.lanes)
        ]
        return {
            "cells": [lane.cells_arrived for lane in self.lanes],
            "cts": [lane.asks_arrived for lane in self.lanes],
            "open": opened,
        }

    def resume(self, index, state):
        """Say again what the peer has not got over a closed rail. Returns the numbers of (cells, entries, parts)."""
        was_carrier, cells, entries, parts = index == self.carrier, 0, 0, 0
        self.carrier = next(i for i, rail in enumerate(self.rails) if not rail.stopped)
        for cls, lane in enumerate(self.lanes):
            if was_carrier:
                cells += self.refill(CELL, cls, state["cells"][cls], self.remote.cells)
                entries += self.refill(CTS, cls, state["cts"][cls], ENTRIES)
                self.carry(CREDIT, cls, lane.cells_emptied)
            missing = {position: mask for position, _, mask in state["open"][cls]}
            for rail, position, of, part, *rest in lane.parts:
                if rail == index and position in missing and not missing[position] >> part & 1:
                    self.write_part(cls, self.carrier, position, of, part, *rest)
                    parts += 1
        return cells, entries, parts

    def refill(self, kind, cls, position, most):
        kept = self.lanes[cls].kept[kind]
        assert 0 <= len(kept) - position <= most, (position, len(kept))
        for i in range(position, len(kept)):
            self.carry(kind, cls, i, *kept[i])
        return len(kept) - position
