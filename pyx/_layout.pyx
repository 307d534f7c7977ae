"""MPI datatypes as trees of loops: what is compiled from a description, and what it says.

Layer L2, below _buffer, with the GIL held. The bootstrap registers what decodes an MPI datatype; this module imports
neither MPI nor mpi4py. While a layout is compiled, a node is a tuple (offset, count, stride, run, lowest, highest,
parts), the fields of a hetccl_piece_t, and a list of nodes is what one element touches, in packed order.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from hetccl._abi cimport HETCCL_RAW
from hetccl._dtype cimport datatype_code, datatype_handle

cdef object decode = None   # mpi4py datatype -> description; see register_decoder
cdef dict layouts = {}      # MPI datatype handle -> Layout, until forget()
cdef int64_t EMPTY_RUN = 1  # of layouts without a byte: a run is divided by


cdef class Layout:
    def __cinit__(self):
        self.pieces = NULL

    def __init__(self):
        raise TypeError("Layout: is made from an MPI datatype by the buffer parser")

    def __dealloc__(self):
        free(self.pieces)

    cdef dict describe(self):
        return {"extent": self.tree.extent, "size": self.tree.size, "pieces": self.npieces}


cdef Layout layout_of(object datatype, object arg):
    handle = datatype_handle(datatype, arg)
    found = layouts.get(handle)
    if found is None:
        description = None if decode is None else decode(datatype)
        if description is None:
            label = getattr(datatype, "name", "") or "derived"
            raise TypeError(f"{arg}: MPI datatype {label} has no elements that could be moved")
        try:
            found = layout_compile(description)
        except (OverflowError, TypeError) as error:
            raise TypeError(f"{arg}: MPI datatype cannot be carried: {error}") from error
        layouts[handle] = found
    return <Layout> found


cdef Layout layout_compile(tuple description):
    cdef Layout self = Layout.__new__(Layout)
    codes = set()
    nodes = nodes_of(description, codes)
    extent = description[1]
    self.code = codes.pop() if len(codes) == 1 else HETCCL_RAW
    self.tree.size = nodes_size(nodes)
    self.tree.extent = extent
    if not nodes:
        root = (0, 0, extent, EMPTY_RUN, 0, 0, ())
    elif len(nodes) > 1:
        root = (0, 0, extent, nodes_size(nodes), *nodes_range(nodes), tuple(nodes))
    else:
        offset, count, stride, run, lowest, highest, parts = nodes[0]
        if count == 1:
            root = (offset, 0, extent, run, lowest, highest, parts)
        elif extent == count * stride:  # the loop runs on into the next element
            root = (offset, 0, stride, run, lowest, highest, parts)
        else:
            inner = (0, count, stride, run, lowest, highest, parts)
            root = (offset, 0, extent, run * count, *nodes_range([inner]), (inner,))
    self.contiguous = self.tree.size == extent and root[0] == 0 and not root[6]
    layout_analyse(self, root)
    self.npieces = nodes_total(root[6])
    self.pieces = <hetccl_piece_t*> calloc(self.npieces or 1, sizeof(hetccl_piece_t))
    if self.pieces == NULL:
        raise MemoryError()
    cdef hetccl_piece_t* free_piece = self.pieces
    piece_fill(&self.tree.root, root, 0, &free_piece)
    return self


cdef int layout_analyse(Layout self, tuple root) except -1:
    """Fill in what layout_apart starts from."""
    loops, reach, body = chain_of(root)
    self.loops = loops[1:]  # the count of the root's own is the caller's
    self.reach = reach
    self.body_apart = nodes_apart(body)
    self.apart = INT64_MAX if self.contiguous or not self.tree.size else 0
    return 0


cdef int piece_fill(hetccl_piece_t* piece, tuple node, int64_t first, hetccl_piece_t** free_p) except -1:
    """Write a node and all below it. free_p: where the next list of parts goes."""
    cdef hetccl_piece_t* parts = free_p[0]
    piece.offset, piece.count, piece.stride, piece.run, piece.lowest, piece.highest = node[:6]
    piece.first = first
    piece.nparts = len(node[6])
    piece.parts = parts
    free_p[0] += piece.nparts
    cdef int64_t packed = 0
    for part in node[6]:
        piece_fill(parts, part, packed, free_p)
        packed += parts.run * parts.count
        parts += 1
    return 0


cdef object nodes_total(nodes):
    return sum([1 + nodes_total(node[6]) for node in nodes])


cdef object nodes_size(nodes):
    return sum([node[1] * node[3] for node in nodes])


cdef tuple nodes_range(nodes):
    """Lowest and highest byte (exclusive) that the nodes touch."""
    low, high = [], []
    for offset, count, stride, _, lowest, highest, _ in nodes:
        last = (count - 1) * stride
        low.append(offset + lowest + min(last, 0))
        high.append(offset + highest + max(last, 0))
    return min(low), max(high)


cdef list nodes_shift(nodes, by):
    return [(node[0] + by, *node[1:]) for node in nodes] if by else nodes


cdef list nodes_repeat(nodes, count, stride):
    """The nodes in a loop: one node again, in as few loops as will do."""
    if not nodes or count < 1:
        return []
    if count == 1:
        return nodes
    if len(nodes) > 1:
        return [(0, count, stride, nodes_size(nodes), *nodes_range(nodes), tuple(nodes))]
    offset, inner_count, inner_stride, run, lowest, highest, parts = nodes[0]
    if inner_count > 1 and stride == inner_count * inner_stride:
        return [(offset, count * inner_count, inner_stride, run, lowest, highest, parts)]
    if inner_count > 1:
        inner = (0, inner_count, inner_stride, run, lowest, highest, parts)
        return [(offset, count, stride, run * inner_count, *nodes_range([inner]), (inner,))]
    if not parts and stride == run:
        return [(offset, 1, 0, run * count, 0, run * count, ())]
    return [(offset, count, stride, run, lowest, highest, parts)]


cdef bint is_run(tuple node) except -1:
    return node[1] == 1 and not node[6]


cdef list nodes_join(nodes):
    """One list of all: runs that touch become one, and equal nodes at equal distances a loop."""
    merged = []
    last = None
    for node in nodes:
        if last and is_run(last) and is_run(node) and last[0] + last[3] == node[0]:
            run = last[3] + node[3]
            merged.pop()
            node = (last[0], 1, 0, run, 0, run, ())
        merged.append(node)
        last = node
    joined = []
    begin = 0
    while begin < len(merged):
        end = begin + 1
        while end < len(merged) and merged[end][1:] == merged[begin][1:]:
            if merged[end][0] - merged[end - 1][0] != merged[begin + 1][0] - merged[begin][0]:
                break
            end += 1
        stride = merged[begin + 1][0] - merged[begin][0] if end - begin > 1 else 0
        joined += nodes_repeat([merged[begin]], end - begin, stride)
        begin = end
    return joined


cdef list nodes_of(tuple description, set codes):
    """Nodes of one element of a datatype. codes: receives the HETCCL_<dtype> of its elements."""
    combiner, extent, given, inner = description
    if combiner == "NAMED":
        codes.add(datatype_code(given["handle"]))
        return [(0, 1, 0, extent, 0, extent, ())] if extent else []
    if combiner == "STRUCT":
        lists = [nodes_of(child, codes) for child in inner]
        steps = [child[1] for child in inner]
        return nodes_join(blocks_of(lists, steps, given["blocklengths"], given["displacements"]))
    child = nodes_of(inner[0], codes)
    step = inner[0][1]
    if combiner == "DUP" or combiner == "RESIZED":
        return child
    if combiner == "CONTIGUOUS":
        return nodes_repeat(child, given["count"], step)
    if combiner == "VECTOR" or combiner == "HVECTOR":
        block = nodes_repeat(child, given["blocklength"], step)
        return nodes_repeat(block, given["count"], given["stride"] * (step if combiner == "VECTOR" else 1))
    if combiner == "SUBARRAY":
        return subarray_of(child, step, given)
    if combiner not in ("INDEXED", "HINDEXED", "INDEXED_BLOCK", "HINDEXED_BLOCK"):
        raise TypeError(f"it is made by {combiner.lower()}")
    displs = given["displacements"]
    if not combiner.startswith("H"):
        displs = [displ * step for displ in displs]
    lengths = given["blocklengths"] if "blocklengths" in given else [given["blocklength"]] * len(displs)
    return nodes_join(blocks_of([child] * len(displs), [step] * len(displs), lengths, displs))


cdef list blocks_of(lists, steps, lengths, displs):
    nodes = []
    for child, step, length, displ in zip(lists, steps, lengths, displs):
        nodes += nodes_shift(nodes_repeat(child, length, step), displ)
    return nodes


cdef list subarray_of(nodes, step, dict given):
    dims = list(zip(given["sizes"], given["subsizes"], given["starts"]))
    for size, subsize, start in dims if given["order"] == "F" else reversed(dims):
        nodes = nodes_shift(nodes_repeat(nodes, subsize, step), start * step)
        step *= size
    return nodes


cdef tuple chain_of(tuple node):
    """(loops, reach, body): the loops around what is no loop of one part: [(count, |stride|)], outermost first."""
    loops = [(node[1], abs(node[2]))]
    while len(node[6]) == 1:
        node = node[6][0]
        loops.append((node[1], abs(node[2])))
    return loops, node[5] - node[4], node[6]


cdef bint loops_apart(list loops, reach) except -1:
    """Whether loops around `reach` bytes surely touch none twice: each steps over what the shorter ones reach."""
    for count, stride in sorted(loops, key=lambda loop: loop[1]):
        if count > 1:
            if stride < reach:
                return False
            reach += (count - 1) * stride
    return True


cdef bint nodes_apart(nodes) except -1:
    """Whether the nodes surely touch no byte twice."""
    end = None
    for low, high in sorted([nodes_range([node]) for node in nodes]):
        if end is not None and low < end:
            return False
        end = high
    for node in nodes:
        loops, reach, body = chain_of(node)
        if not loops_apart(loops, reach) or not nodes_apart(body):
            return False
    return True


cdef bint layout_apart(Layout self, int64_t count) except -1:
    if count > self.apart:
        iterations = count * self.tree.size // self.tree.root.run
        if not self.body_apart or not loops_apart([(iterations, abs(self.tree.root.stride)), *self.loops], self.reach):
            return False
        self.apart = count
    return True


def register_decoder(decoder):
    """Tell the compiler what the bootstrap learnt from mpi4py.

    decoder : callable, MPI.Datatype -> description or None (no datatype). It sees to it that forget(handle) is called
              when the datatype is freed.
              A description is (combiner, extent in bytes, parameters, descriptions of the datatypes inside); combiner
              and parameters as in mpi4py's Datatype.decode(), with order "C" or "F", and {"handle": int} of a NAMED one
    """
    global decode
    decode = decoder


def forget(handle):
    """A datatype has been freed: its handle may come back as another's."""
    layouts.pop(handle, None)
