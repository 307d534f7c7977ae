"""The matrix of paths: which way each pair of ranks takes, by letters; of a big job a page of it.

Hosts whose rows and columns are equal become one row of a big job's matrix, so that its size is that of the differences
between hosts, and not of the job.
"""

import re
from typing import NamedTuple

from hetccl import topology
from hetccl.cli import job

# Jobs with more ranks are shown by host.
FULL_RANKS = 24
# Rows and columns that a page has room for.
MOST_GROUPS = 20
MOST_CHARACTERS = 60

LETTERS = {"shm": "S", "verbs": "V", "tcp": "T", "": "X"}
SELF, UNKNOWN = ".", "?"
# The second letter of a pair: what takes buffers in GPU memory.
CCL, PINNED = "c", "p"
LEGEND = {
    "S": "shared memory",
    "V": "verbs: RDMA between NICs",
    "T": "TCP",
    "X": "no path",
    UNKNOWN: "not known: a rank has a setting that its host cannot meet",
    CCL: "buffers in GPU memory: the vendor's CCL",
    PINNED: "buffers in GPU memory: through pinned host memory, on the same path",
}


class Group(NamedTuple):
    """A row of the matrix: a rank, or hosts of which all that it shows is equal.

    hosts, ranks : tuples: names of hosts, and int     islands, devices : tuples: labels, and models of GPUs
    """

    hosts: tuple
    ranks: tuple
    islands: tuple
    devices: tuple


class Matrix(NamedTuple):
    """groups : tuple of Group     cells : of each group, for each group, the sorted paths, tuple of str

    inner : of each group (paths inside a host, paths between its hosts), tuples of str
    by_host : whether a group is of hosts
    """

    groups: tuple
    cells: tuple
    inner: tuple
    by_host: bool

    def as_dict(self):
        """As plain values."""
        rows = [
            {**group._asdict(), "inside_host": inside, "between_hosts": between, "paths": cells}
            for group, (inside, between), cells in zip(self.groups, self.inner, self.cells)
        ]
        return {"by_host": self.by_host, "legend": LEGEND, "rows": rows}

    def letters(self):
        """The letters that occur."""
        found = {path for row in self.cells for cell in row for path in cell}
        return {letter for path in found.union(*(set().union(*pair) for pair in self.inner)) for letter in path}


def row(rank, members, ways, suffixes):
    """A rank's paths: by rank, or in a big job by host (in job.by_host()'s order): list of tuples of str.

    ways     : of hetccl.cli.network.ways()
    suffixes : of each peer the second letter, "" for none
    """
    paths = [SELF if peer == rank else UNKNOWN for peer in range(len(members))]
    for way in ways:
        for peer in way["ranks"]:
            paths[peer] = LETTERS[way["kind"]] + suffixes[peer]
    if len(members) <= FULL_RANKS:
        return [(path,) for path in paths]
    return [tuple(sorted({paths[peer] for peer in ranks} - {SELF})) for ranks in job.by_host(members).values()]


def fold(rows, members):
    """The Matrix. rows : of row(), of every rank"""
    hosts = job.by_host(members)
    labels, devices = [member.label for member in members], [member.device for member in members]
    if len(members) <= FULL_RANKS:
        host_of = {rank: name for name, ranks in hosts.items() for rank in ranks}
        groups = tuple(
            Group((host_of[rank],), (rank,), (labels[rank],), (devices[rank],)) for rank in range(len(members))
        )
        return Matrix(groups, tuple(map(tuple, rows)), (((), ()),) * len(groups), False)
    merged = []
    for ranks in hosts.values():
        merged.append(tuple(tuple(sorted(set().union(*cell))) for cell in zip(*(rows[rank] for rank in ranks))))
    names = list(hosts)
    colours = [_colour(ranks, labels) for ranks in hosts.values()]
    classes = _twins(merged, colours)
    groups, inner = [], []
    for places, between in classes:
        ranks = tuple(sorted(rank for place in places for rank in hosts[names[place]]))
        islands, models = (tuple(dict.fromkeys(table[rank] for rank in ranks)) for table in (labels, devices))
        groups.append(Group(tuple(names[place] for place in places), ranks, islands, models))
        inner.append((merged[places[0]][places[0]], between))
    cells = tuple(tuple(merged[one[0]][other[0]] for other, _ in classes) for one, _ in classes)
    return Matrix(tuple(groups), cells, tuple(inner), True)


def lines(matrix):
    """The matrix for a person: list of str, at most a page."""
    if len(matrix.groups) == 1 and not matrix.by_host:
        return []
    shown = range(min(len(matrix.groups), MOST_GROUPS if matrix.by_host else FULL_RANKS))
    names = [name(place, matrix) for place in shown]
    cells = [[cell(matrix, one, other) for other in shown] for one in shown]
    width = max(map(len, [*names, *(cell for row in cells for cell in row)])) + 1
    said = [" " * width + "".join(name.rjust(width) for name in names)]
    for place, row in zip(shown, cells):
        cells_text = "".join(cell.rjust(width) for cell in row)
        said.append(f"{names[place].rjust(width)}{cells_text}   {about(matrix, place)}")
    left = len(matrix.groups) - len(shown)
    if left:
        said.append(f"{left} more rows and columns are left out; --json has them")
    return said + [f"{letter}  {meaning}" for letter, meaning in legend(matrix)]


def hosts_text(names):
    """("n01", "n02", "n03", "login") -> "n[01-03],login", cut where it is too long."""
    runs, others = {}, []
    matches = [(name, re.fullmatch(r"(.*?)(\d+)", name)) for name in names]
    padded = {match[1] for _, match in matches if match and re.match(r"0\d", match[2])}
    for name, match in matches:
        if match:
            runs.setdefault((match[1], len(match[2]) if match[1] in padded else 0), []).append(match[2])
        else:
            others.append(name)
    parts = []
    for (prefix, digits), numbers in runs.items():
        if len(numbers) == 1:
            parts.append(prefix + numbers[0])
            continue
        ranges = topology.format_cpulist(map(int, numbers)).split(",")
        padded = ["-".join(end.zfill(digits) for end in part.split("-")) for part in ranges]
        parts.append(f"{prefix}[{','.join(padded)}]")
    return cut(",".join(parts + others))


def cut(text, most=MOST_CHARACTERS):
    """The text, or its beginning."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _colour(ranks, labels):
    """What hosts of one group have in common: how many ranks of each island, in order."""
    return tuple(labels[rank] for rank in ranks)


def _twins(rows, colours):
    """Classes of like hosts: [(places, paths between them)], in order of their first one.

    Two hosts are alike if exchanging them changes no cell.
    """
    columns = list(zip(*rows))
    buckets = {}
    for between in sorted({cell for row in rows for cell in row}):
        for place, row in enumerate(rows):
            others = tuple((*line[:place], between, *line[place + 1 :]) for line in (row, columns[place]))
            buckets.setdefault((between, colours[place], row[place], others), []).append(place)
    classes, done = [], set()
    for (between, *_), places in sorted(buckets.items(), key=lambda item: (-len(item[1]), item[1])):
        free = [place for place in places if place not in done]
        if free:
            classes.append((free, between if len(free) > 1 else ()))
            done.update(free)
    return sorted(classes)


def name(place, matrix):
    """What a row is called: a rank's number, or a letter."""
    if not matrix.by_host:
        return str(matrix.groups[place].ranks[0])
    return chr(ord("A") + place)


def cell(matrix, one, other):
    """The text of a cell."""
    if one != other or not matrix.by_host:
        return ",".join(matrix.cells[one][other]) or "-"
    inside, between = (",".join(paths) for paths in matrix.inner[one])
    return f"{inside}/{between}" if inside and between else inside or between or SELF


def about(matrix, place):
    """What stands beside a row."""
    group = matrix.groups[place]
    islands = cut("+".join(group.islands)) + "".join(f", {model}" for model in group.devices if model)
    if not matrix.by_host:
        return f"{group.hosts[0]}  {islands}"
    hosts = f"{job.plural(len(group.hosts), 'host')} {hosts_text(group.hosts)}"
    return f"{hosts}: {cut(job.ranks_text(group.ranks))}  {islands}"


def legend(matrix):
    """(letter, meaning) of those that occur."""
    found = matrix.letters()
    yield from ((letter, meaning) for letter, meaning in LEGEND.items() if letter in found)
    if any(inside and between for inside, between in matrix.inner):
        yield "a/b", "a inside a host, b between the hosts of the row"
