"""Runs a plan's order, not its data, under the strictest transport that plans must stand: used by verify and render.

A Send is complete only when the receiver has consumed it; a lane takes one message at a time on either side; a Reduce
takes the messages of all its peers at one moment; vendor steps wait for all of the island. A plan that gets to its end
this way gets there under any weaker rule, as no step waits for less here.
"""

from collections import deque

from ..errors import HetcclError
from .steps import Peer, Recv, Reduce, Send, Vendor, describe

# What a step takes in the clock of drawings: a round for what crosses ranks, less for what stays in one.
MESSAGE_ROUNDS = 1.0
LOCAL_ROUNDS = 0.5


class PlanError(HetcclError):
    """A plan is wrong; `.rank` and `.step` (index in that rank's program) say where, None where it is nowhere alone."""

    def __init__(self, message="", *, step=None, **where):
        super().__init__(message, **where)
        self.step = step


def fault(programs, rank, step, reason):
    """Return a PlanError that names the step."""
    what = describe(programs[rank].steps[step])
    return PlanError(f"rank {rank}, step {step} ({what}): {reason}", rank=rank, step=step)


class Run:
    """The order in which a plan's steps run.

    programs : list of Program, by rank
    order    : nodes in the order in which they take effect (a Send when it starts), (rank, step)
    senders  : {receiving node: [sending nodes in source order]}
    groups   : {vendor node: nodes of all members, in the order of its ranks}
    start, end : {node: rounds}
    """

    def __init__(self, programs, local_rounds=LOCAL_ROUNDS):
        self.programs = programs
        self._local_rounds = local_rounds
        self.order = []
        self.senders = {}
        self.groups = {}
        self.start = {}
        self.end = {}
        self._receiver = {}
        self._waiting = {}  # node -> nodes that wait for its completion
        self._missing = {}  # node -> how many events it still waits for
        self._match_lanes()
        self._match_vendor()
        self._count_events()
        self._run()

    def _match_lanes(self):
        sends, receives = {}, {}
        for rank, program in enumerate(self.programs):
            for i, step in enumerate(program.steps):
                if isinstance(step, Send):
                    sends.setdefault((rank, step.peer), []).append((rank, i))
                elif isinstance(step, Recv):
                    receives.setdefault((step.peer, rank), []).append((rank, i))
                elif isinstance(step, Reduce):
                    for source in step.sources:
                        if isinstance(source, Peer):
                            receives.setdefault((source.rank, rank), []).append((rank, i))
        self._lanes = (*sends.values(), *receives.values())
        for lane in sends.keys() | receives.keys():
            sent, received = sends.get(lane, []), receives.get(lane, [])
            if len(sent) != len(received):
                surplus = (sent if len(sent) > len(received) else received)[min(len(sent), len(received))]
                counts = f"{len(sent)} sends but {len(received)} receives from rank {lane[0]} to rank {lane[1]}"
                raise fault(self.programs, *surplus, counts)
            self._receiver.update(zip(sent, received))
        self._collect_senders(sends)

    def _collect_senders(self, sends):
        cursor = {lane: iter(sent) for lane, sent in sends.items()}
        for rank, program in enumerate(self.programs):
            for i, step in enumerate(program.steps):
                if isinstance(step, Recv):
                    self.senders[rank, i] = [next(cursor[step.peer, rank])]
                elif isinstance(step, Reduce):
                    peers = [source.rank for source in step.sources if isinstance(source, Peer)]
                    self.senders[rank, i] = [next(cursor[peer, rank]) for peer in peers]

    def _match_vendor(self):
        calls = [[i for i, step in enumerate(program.steps) if isinstance(step, Vendor)] for program in self.programs]
        self._calls = calls
        for rank, own in enumerate(calls):
            for k, i in enumerate(own):
                step = self.programs[rank].steps[i]
                if rank not in step.ranks:
                    raise fault(self.programs, rank, i, "this rank is not among the step's ranks")
                group = []
                for member in step.ranks:
                    if len(calls[member]) != len(own):
                        raise fault(self.programs, rank, i, f"rank {member} makes another number of vendor calls")
                    other = self.programs[member].steps[calls[member][k]]
                    if (other.op, other.ranks, other.root) != (step.op, step.ranks, step.root):
                        raise fault(self.programs, rank, i, f"rank {member} calls {describe(other)} at the same place")
                    group.append((member, calls[member][k]))
                self.groups[rank, i] = group

    def _count_events(self):
        for rank, program in enumerate(self.programs):
            for i, step in enumerate(program.steps):
                node = rank, i
                self._missing[node] = len(step.after) + len(self.senders.get(node, ()))
                for earlier in step.after:
                    if not 0 <= earlier < i:
                        raise fault(self.programs, rank, i, f"waits for step {earlier}, which is not an earlier one")
                    self._waiting.setdefault((rank, earlier), []).append(node)
        calls = [[(rank, i) for i in own] for rank, own in enumerate(self._calls)]
        for row in (*self._lanes, *calls):
            for earlier, later in zip(row, row[1:]):
                if earlier != later:
                    self._waiting.setdefault(earlier, []).append(later)
                    self._missing[later] += 1
        for node, group in self.groups.items():
            if group[0] == node:
                self._missing[node, "group"] = len(group)

    def _run(self):
        self._ready = deque(node for node, missing in self._missing.items() if missing == 0)
        while self._ready:
            node = self._ready.popleft()
            rank, i = node
            step = self.programs[rank].steps[i]
            self.start.setdefault(node, 0.0)
            if isinstance(step, Send):
                self.order.append(node)
                self._event(self._receiver[node], self.start[node])
            elif isinstance(step, Vendor):
                self._join(self.groups[node])
            else:
                self.order.append(node)
                senders = self.senders.get(node, ())
                end = self.start[node] + (MESSAGE_ROUNDS if senders else self._local_rounds)
                for done in (node, *senders):
                    self._complete(done, end)
        if len(self.end) < sum(len(program.steps) for program in self.programs):
            raise self._deadlock()

    def _join(self, group):
        key = (group[0], "group")
        self._missing[key] -= 1
        if self._missing[key] == 0:
            self.order.append(group[0])
            end = max(self.start[node] for node in group) + MESSAGE_ROUNDS
            for node in group:
                self._complete(node, end)

    def _complete(self, node, end):
        self.end[node] = end
        for later in self._waiting.get(node, ()):
            self._event(later, end)

    def _event(self, node, when):
        self.start[node] = max(self.start.get(node, 0.0), when)
        self._missing[node] -= 1
        if self._missing[node] == 0:
            self._ready.append(node)

    def _deadlock(self):
        stuck = [node for node in self.order if node not in self.end]  # sends that nobody consumes
        stuck += [node for node in self.groups if node not in self.end]
        everything = [(rank, i) for rank, program in enumerate(self.programs) for i in range(len(program.steps))]
        stuck = list(dict.fromkeys([*stuck, *(node for node in everything if node not in self.end)]))
        shown = "; ".join(f"rank {r} step {i} ({describe(self.programs[r].steps[i])})" for r, i in stuck[:4])
        rank, step = stuck[0]
        return PlanError(f"deadlock: {len(stuck)} steps never complete, among them {shown}", rank=rank, step=step)


def rounds(plan):
    """Return how many messages or vendor calls must follow one another until the last rank is done."""
    return int(max(Run([plan.program(rank) for rank in range(plan.size)], local_rounds=0.0).end.values(), default=0))


def units_sent(plan, rank, across=False):
    """Return how many units (a Fraction) a rank sends itself, or only those it sends to other islands."""
    home = {member: island for island in plan.islands for member in island}
    sends = [step for step in plan.program(rank).steps if isinstance(step, Send)]
    return sum(s.block.hi - s.block.lo for s in sends if not across or home[s.peer] != home[rank])
