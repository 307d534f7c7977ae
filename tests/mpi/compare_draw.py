"""For the tests: hypothesis strategies for the cases of compare_case. What they draw first is what shrinks to least."""

from hypothesis import strategies as st

from mpi import compare_case as cc

FORMS = ("blocking", "nonblocking", "persistent")
SPECS = {
    "one": ("plain", "typed", "string", "count_only", "counted", "none", "pair_only", "tuple", "full"),
    "v": ("plain", "count_only", "typed", "string", "counted", "none", "pair_only", "tuple", "full"),
    "w": ("full", "tuple", "typed"),
}
# Lengths by which counts are multiplied: mostly none; beyond a cell of a ring; beyond what is sent at once.
SCALES = (1, 1, 1, 1, 1, 97, 3001)
LARGE = 3001
FINISHES = ("wait", "test")


def chance(draw, one_in):
    return draw(st.integers(0, one_in - 1)) == one_in - 1


def moved(derived):
    """Dtypes that are moved. Open MPI leaves some bytes of a long double complex behind in long derived datatypes."""
    return st.sampled_from([dtype for dtype in cc.MOVED if not derived or dtype != "clongdouble"])


@st.composite
def sides(draw, kind, size, derived):
    """A Side for a buffer of a kind; derived: it may have a datatype of its own."""
    names = cc.DATATYPES if derived else ("base",)
    description = st.tuples(st.sampled_from(names), st.integers(0, 7), st.integers(0, 7))
    types = draw(st.lists(description, min_size=1, max_size=3))
    return cc.Side(
        spec=draw(st.sampled_from(SPECS["one" if kind in (None, "blocks") else kind])),
        types=[list(one) for one in types] if any(one[0] != "base" for one in types) else [["base"]],
        gaps=draw(st.lists(st.integers(0, 3), min_size=1, max_size=size)),
        order=draw(st.permutations(range(size))) if chance(draw, 2) else [],
        shift=draw(st.integers(0, 3)),
        slack=draw(st.integers(0, 2)),
        counts=draw(st.sampled_from(("list", "array", "single"))),
    )


@st.composite
def counts(draw, kind, size, scale, symmetric):
    numbers = st.integers(0, 5).map(lambda number: number * scale)
    if kind == "one":
        return [[draw(numbers)]]
    if kind == "each":
        return [draw(st.lists(numbers, min_size=size, max_size=size))]
    rows = [draw(st.lists(numbers, min_size=size, max_size=size)) for _ in range(size)]
    if symmetric:
        rows = [[rows[min(i, j)][max(i, j)] for j in range(size)] for i in range(size)]
    return rows


@st.composite
def collectives(draw, size, calls=tuple(cc.COLLECTIVES), forms=FORMS):
    """A collective among `size` ranks."""
    # With one rank Open MPI's Alltoallw takes no heed of displacements, and writes beside the buffer.
    call = draw(st.sampled_from([call for call in calls if size > 1 or call != "Alltoallw"]))
    shape = cc.COLLECTIVES[call]
    faults = cc.faults_of(call, size)
    if faults and chance(draw, 12):
        return draw(refused_collectives(size, call, faults))
    derived = not shape.reduces and chance(draw, 2)
    dtype = draw(st.sampled_from([d for d in cc.MOVED if cc.ops_of(d)]) if shape.reduces else moved(derived))
    op = draw(st.sampled_from(cc.ops_of(dtype))) if shape.reduces else ""
    scale = draw(st.sampled_from(SCALES))
    in_place = shape.in_place and chance(draw, 3)
    form = draw(st.sampled_from(forms))
    random = op in ("SUM", "PROD") and dtype in cc.FLOATS + cc.COMPLEX and chance(draw, 3)
    return cc.Collective(
        call=call,
        form=form,
        finish=draw(st.sampled_from(FINISHES)) if form != "blocking" else "wait",
        starts=draw(st.integers(1, 3)) if form == "persistent" else 1,
        dtype=dtype,
        packed=draw(st.integers(1, 6)) if derived and scale < LARGE else 1,
        op=op,
        root=draw(st.integers(0, size - 1)) if shape.rooted else 0,
        in_place=in_place,
        counts=draw(counts(shape.counts, size, scale, in_place)) if call != "Barrier" else [[0]],
        data="random" if random else "whole",
        send=draw(sides(shape.send, size, derived)) if shape.send else cc.Side(),
        recv=draw(sides(shape.recv, size, derived)) if shape.recv or call == "Bcast" else cc.Side(),
        whose=draw(st.sampled_from(("mpi", "hetccl"))),
        unused=draw(st.sampled_from(("none", "text", "array"))) if shape.rooted else "none",
        comm=draw(st.sampled_from(("world", "dup", "reversed"))),
    )


@st.composite
def refused_collectives(draw, size, call, faults):
    """A collective that is wrong on all ranks."""
    shape = cc.COLLECTIVES[call]
    dtype = draw(st.sampled_from(("int32", "float32")))
    return cc.Collective(
        call=call,
        form=draw(st.sampled_from(FORMS)),
        dtype=dtype,
        op="SUM" if shape.reduces else "",
        counts={"one": [[2]], "each": [[2] * size], "pair": [[2] * size] * size}[shape.counts],
        root=draw(st.integers(0, size - 1)) if shape.rooted else 0,
        fault=draw(st.sampled_from(faults)),
    )


@st.composite
def together(draw, size):
    """Two to four nonblocking collectives."""
    cases = draw(st.lists(collectives(size, forms=("nonblocking",)).filter(_joins), min_size=2, max_size=4))
    order = draw(st.permutations(range(len(cases)))) if chance(draw, 2) else []
    return cc.Together(cases, order)


def _joins(case):
    return not case.fault and case.comm == "world"


PATTERNS = (
    "nonblocking", "late", "blocking_sends", "blocking_receives", "probe", "iprobe", "mprobe", "improbe", "turns",
    "persistent", "group",
)  # fmt: skip
COMPLETIONS = ("waitall", "wait", "test", "testall", "waitany", "testany", "waitsome", "testsome")


@st.composite
def messages(draw, size, patterns=PATTERNS):
    """Messages between any ranks, and receives in an order of their own."""
    pattern = draw(st.sampled_from(patterns))
    scale = draw(st.sampled_from(SCALES))
    one = st.tuples(
        st.integers(-1, size - 1),
        st.integers(-1, size - 1),
        st.integers(0, 4),
        st.integers(0, 4).map(lambda number: number * scale),
    )
    found = [list(message) for message in draw(st.lists(one, min_size=1, max_size=8))]
    order = draw(st.permutations(range(len(found)))) if pattern != "turns" else list(range(len(found)))
    wishes = draw(st.lists(st.integers(0, 2), min_size=len(found), max_size=len(found)))
    derived = chance(draw, 2)
    modes = {"turns": ("", "s", "b"), "group": ("",)}.get(pattern, ("", "s", "b"))
    if pattern in ("nonblocking", "blocking_sends", "persistent"):
        modes += ("r",)
    wild, extra = wilds(found, order, wishes), st.integers(0, 3)
    return cc.Messages(
        messages=found,
        order=order,
        wild=wild,
        room=rooms(found, order, wild, draw(st.lists(extra, min_size=len(found), max_size=len(found)))),
        pattern=pattern,
        mode=draw(st.sampled_from(modes)),
        finish=draw(st.sampled_from(COMPLETIONS)),
        starts=draw(st.integers(1, 3)) if pattern == "persistent" else 1,
        dtype=draw(moved(derived)),
        packed=draw(st.integers(1, 6)) if derived and scale < LARGE else 1,
        send=draw(sides("one", size, derived)),
        recv=draw(sides("one", size, derived)),
        comm=draw(st.sampled_from(("world", "dup", "reversed"))),
    )


def wilds(found, order, wishes):
    """Which receives may ask for any tag or source: those for which MPI leaves no choice of the message.

    Any source: no other rank sends a message of that tag to the same rank. Any tag, with the source given: taking each
    message, in the order of sending, by the first receive that fits must give every receive the very message that it
    is meant for, so that all of them end and their buffers are long enough.
    """
    wild = [0] * len(found)
    for number in order:
        source, dest, tag, _ = found[number]
        rivals = [other for other in found if other[1] == dest and other[2] == tag and other[0] != source]
        if wishes[number] == 2 and not rivals and min(source, dest) >= 0:
            wild[number] = 2
    for number in order:
        source, dest, _, _ = found[number]
        if wishes[number] == 1 and not wild[number] and min(source, dest) >= 0:
            trial = [*wild]
            trial[number] = 1
            if _matching(found, order, trial, source, dest) == _matching(found, order, wild, source, dest):
                wild[number] = 1
    return wild


def rooms(found, order, wild, extra):
    """Units by which each receive is longer than the message it stands for: enough for the one that it gets."""
    room = list(extra)
    for source, dest in {tuple(message[:2]) for message in found}:
        for number, got in _matching(found, order, wild, source, dest).items():
            room[number] += max(found[got][3] - found[number][3], 0)
    return room


def _matching(found, order, wild, source, dest):
    """{receive: message} of one pair of ranks: MPI takes each message by the first receive that fits."""
    receives = [number for number in order if tuple(found[number][:2]) == (source, dest)]
    taken = {}
    for number, message in enumerate(found):
        if tuple(message[:2]) == (source, dest):
            fits = [r for r in receives if r not in taken and (wild[r] == 1 or found[r][2] == message[2])]
            if fits:
                taken[fits[0]] = number
    return taken


@st.composite
def shifts(draw, size):
    """One of the Sendrecv calls between neighbours."""
    call = draw(st.sampled_from(("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace")))
    derived = chance(draw, 2)
    scale = draw(st.sampled_from(SCALES))
    return cc.Shift(
        call=call,
        distance=draw(st.integers(-2, 2)),
        wrap=draw(st.booleans()),
        tag=draw(st.integers(0, 9)),
        any_tag=draw(st.booleans()),
        count=draw(st.integers(0, 5)) * scale,
        dtype=draw(moved(derived)),
        packed=draw(st.integers(1, 6)) if derived and scale < LARGE else 1,
        send=draw(sides("one", size, derived)),
        recv=draw(sides("one", size, derived)),
        comm=draw(st.sampled_from(("world", "dup", "reversed"))),
    )


P2P_CALLS = (
    "Send", "Ssend", "Bsend", "Rsend", "Recv", "Isend", "Issend", "Ibsend", "Irsend", "Irecv",
    "Send_init", "Ssend_init", "Bsend_init", "Rsend_init", "Recv_init",
)  # fmt: skip
P2P_FAULTS = ("strided", "readonly", "number", "peer_beyond", "tag_negative", "float_rank", "float_tag")


@st.composite
def refused(draw):
    """A message that neither library takes."""
    call = draw(st.sampled_from(P2P_CALLS))
    faults = P2P_FAULTS if "ecv" in call else [fault for fault in P2P_FAULTS if fault != "readonly"]
    return cc.Refused(call, draw(st.sampled_from(faults)))


def point_to_point(size, patterns=PATTERNS):
    """Any case of point-to-point calls."""
    return st.one_of(*[messages(size, patterns)] * 3, shifts(size), refused())
