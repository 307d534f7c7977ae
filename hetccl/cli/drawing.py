"""The picture of a job, as SVG: hosts with their ranks and NICs, islands by colour, and the links between hosts.

Every network is a bus: a line below each row of hosts, to which the hosts are joined whose ranks it connects, with a
trunk at the right where it goes through several rows. Who reaches whom, exactly, the matrix below tells. The card
behind it all is opaque, so that the page around it may be dark or white.
"""

from typing import NamedTuple
from xml.sax.saxutils import escape

from hetccl.cli import job, matrix
from hetccl.cli.scene import Box

FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
# Fill and border of islands; told apart with red-green blindness too, and the letters on them are dark.
ISLANDS = (
    ("#cfe3f7", "#2f6fab"),
    ("#fbdcb4", "#b5651d"),
    ("#d5efd0", "#3c8d40"),
    ("#f3d1e4", "#a83d7d"),
    ("#fff3b0", "#9a8200"),
    ("#dcd6f5", "#5f4bb6"),
    ("#c9eeee", "#1c8585"),
    ("#e3e0da", "#6b6257"),
)
PATHS = {
    "S": ("#3c8d40", ""),
    "V": ("#5f4bb6", ""),
    "T": ("#c2571a", "7 4"),
    "X": ("#b00020", "2 3"),
    ".": ("#9aa0a6", ""),
}
INK, FAINT, LINE, PAPER, PANEL = "#1f2328", "#59636e", "#8c959f", "#ffffff", "#f6f8fa"

GUTTER, MARGIN, GAP = 84, 20, 24
TILE_W, TILE_H, NIC_H, PAD, HEAD = 120, 40, 34, 10, 26
BAND, TRUNK = 22, 14
MOST_WIDTH = 1180
CELL = 24
CHARACTER = 0.62  # of the font's size, a wide guess


class Placed(NamedTuple):
    """A Box with its place. x, y, width, height : pixels     columns : tiles side by side"""

    box: Box
    x: int
    y: int
    width: int
    height: int
    columns: int


class Canvas:
    """Elements, and how far they reach."""

    def __init__(self):
        self.elements = []
        self.width = self.height = 0

    def rect(self, x, y, width, height, fill, stroke, dash="", title="", radius=5):
        """A rounded box. title : what a viewer shows when pointed at it"""
        self._reach(x + width, y + height)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        inner = f"<title>{escape(title)}</title>" if title else ""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}"{dashes}>{inner}</rect>'
        )

    def line(self, x1, y1, x2, y2, path, width=2):
        """A straight line in the colour of a path."""
        colour, dash = PATHS[path]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._reach(max(x1, x2), max(y1, y2))
        self.elements.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{width}"{dashes}/>'
        )

    def dot(self, x, y, path):
        """Where lines are joined."""
        self.elements.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{PATHS[path][0]}"/>')

    def text(self, x, y, words, size=11, fill=INK, anchor="start", bold=False, room=None):
        """A line of text, cut to `room` pixels."""
        if room is not None:
            most = max(1, int(room / (size * CHARACTER)))
            words = words if len(words) <= most else words[: most - 1] + "…"
        if anchor == "start":
            self._reach(x + int(len(words) * size * CHARACTER), y)
        weight = ' font-weight="bold"' if bold else ""
        where = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}'
        self.elements.append(f'<text {where} fill="{fill}">{escape(words)}</text>')

    def svg(self):
        """The document."""
        width, height = self.width + MARGIN, self.height + MARGIN
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="{FONT}">',
                f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}" stroke="{LINE}"/>',
                *self.elements,
                "</svg>\n",
            ]
        )

    def _reach(self, x, y):
        self.width, self.height = max(self.width, x), max(self.height, y)


def draw(scene, paths):
    """The picture. scene : scene.Scene     paths : matrix.Matrix     Returns : str, an SVG document"""
    canvas = Canvas()
    top = _head(canvas, scene)
    rows = _rows(scene.boxes)
    bars = {}  # of each network (x where it ends, y) in each row
    for row in rows:
        top, ends = _row(canvas, scene, row, top)
        for number, end in ends.items():
            bars.setdefault(number, []).append(end)
    _trunks(canvas, scene, bars)
    _matrix(canvas, paths, top + GAP)
    return canvas.svg()


def _head(canvas, scene):
    """Title and islands. Returns where the rest begins."""
    canvas.text(MARGIN, 34, scene.title, size=16, bold=True)
    x, y = MARGIN, 50
    for number, (label, vendor, count) in enumerate(scene.islands):
        words = f"island {label}: {job.plural(count, 'rank')}" + (f" ({vendor})" if vendor != label else "")
        words = words if len(words) <= 44 else words[:43] + "…"
        width = 26 + int(len(words) * 11 * CHARACTER) + 16
        if x + width > MOST_WIDTH:
            x, y = MARGIN, y + 22
        fill, stroke = _colours(number)
        canvas.rect(x, y, 18, 14, fill, stroke, radius=3)
        canvas.text(x + 24, y + 11, words)
        x += width
    return y + 14 + GAP


def _colours(number):
    return ISLANDS[number % len(ISLANDS)]


def _rows(boxes):
    """The boxes in rows: list of lists of (box, width, height, columns), none wider than the picture."""
    rows, x = [[]], 0
    for box in boxes:
        most = 4 if max(len(box.ranks), len(box.nics)) <= 16 else 8
        columns = max(1, min(most, max(len(box.ranks), len(box.nics))))
        width = max(columns * TILE_W + (columns - 1) * PAD, 150) + 2 * PAD
        lines = [-(-len(tiles) // columns) for tiles in (box.ranks, box.nics)]
        height = HEAD + lines[0] * (TILE_H + PAD) + (10 if box.shares else 0) + lines[1] * (NIC_H + PAD) + PAD
        if rows[-1] and x + width > MOST_WIDTH - GUTTER:
            rows.append([])
            x = 0
        rows[-1].append((box, width, height, columns))
        x += width + GAP
    return rows


def _row(canvas, scene, row, top):
    """One row of hosts and the networks below it. Returns (where the next begins, {network: (x, y) of its end})."""
    x, placed = GUTTER if scene.networks else MARGIN, []
    tallest = max(height for _, _, height, _ in row)
    for box, width, _, columns in row:
        placed.append(Placed(box, x, top, width, tallest, columns))
        x += width + GAP
    below, ends = top + tallest + (BAND if scene.networks else 0), {}
    for number, network in enumerate(scene.networks):
        ports = [port for place in placed for port in _ports(place, network, number)]
        if not ports:
            continue
        canvas.text(MARGIN, below + 4, network.name, fill=PATHS[network.path][0], bold=True, room=GUTTER - MARGIN)
        canvas.line(GUTTER - 8, below, max(x for x, _ in ports), below, network.path, width=3)
        for port_x, port_y in ports:
            canvas.line(port_x, port_y, port_x, below, network.path)
            canvas.dot(port_x, below, network.path)
        ends[number] = (max(x for x, _ in ports), below)
        below += BAND
    for place in placed:
        _host(canvas, place)
    return below + GAP, ends


def _ports(place, network, number):
    """Where a host is joined to a network: [(x, y)], the middle of each NIC's lower edge; of its box without one."""
    box = place.box
    if box not in network.boxes:
        return []
    tiles = _nic_places(place)
    used = [tile for tile, nic in zip(tiles, box.nics) if nic.path == network.path and nic.used]
    if not used:
        return [(place.x + place.width // 2 + 12 * number, place.y + place.height)]
    return [(x + TILE_W // 2 + 12 * number, place.y + place.height) for x, _ in used[-place.columns :]]


def _nic_places(place):
    """The corner of each NIC's tile, the last line of them at the bottom of the box."""
    lines = -(-len(place.box.nics) // place.columns)
    y = place.y + place.height - PAD - lines * (NIC_H + PAD) + PAD
    return [
        (place.x + PAD + column * (TILE_W + PAD), y + line * (NIC_H + PAD))
        for line, column in (divmod(number, place.columns) for number in range(len(place.box.nics)))
    ]


def _host(canvas, place):
    box = place.box
    if box.count > 1:
        canvas.rect(place.x + 4, place.y - 4, place.width, place.height, PANEL, LINE)
    canvas.rect(place.x, place.y, place.width, place.height, PANEL, LINE, title=box.about)
    canvas.text(place.x + PAD, place.y + 18, box.name, size=12, bold=True, room=place.width - 2 * PAD)
    for number, tile in enumerate(box.ranks):
        line, column = divmod(number, place.columns)
        x, y = place.x + PAD + column * (TILE_W + PAD), place.y + HEAD + line * (TILE_H + PAD)
        fill, stroke = _colours(tile.island)
        canvas.rect(x, y, TILE_W, TILE_H, fill, stroke, title=tile.about)
        canvas.text(x + TILE_W // 2, y + 16, tile.name, bold=True, anchor="middle", room=TILE_W - 8)
        canvas.text(x + TILE_W // 2, y + 31, tile.device, size=10, anchor="middle", room=TILE_W - 8)
    if box.shares:
        lines = -(-len(box.ranks) // place.columns)
        y = place.y + HEAD + lines * (TILE_H + PAD) - 1
        canvas.line(place.x + PAD, y, place.x + place.width - PAD, y, "S", width=4)
    for (x, y), nic in zip(_nic_places(place), box.nics):
        stroke = PATHS[nic.path][0] if nic.used else LINE
        canvas.rect(x, y, TILE_W, NIC_H, PAPER, stroke, dash="" if nic.used else "3 3", title=nic.about)
        canvas.text(x + TILE_W // 2, y + 14, nic.name, anchor="middle", room=TILE_W - 8)
        canvas.text(x + TILE_W // 2, y + 27, nic.rate, size=10, fill=FAINT, anchor="middle", room=TILE_W - 8)


def _trunks(canvas, scene, bars):
    """Join the bars of a network that stands below several rows."""
    right = canvas.width + TRUNK
    for number, ends in bars.items():
        if len(ends) > 1:
            path = scene.networks[number].path
            for x, y in ends:
                canvas.line(x, y, right, y, path, width=3)
                canvas.dot(right, y, path)
            canvas.line(right, ends[0][1], right, ends[-1][1], path, width=3)
            right += TRUNK


def _matrix(canvas, paths, top):
    """Who reaches whom how."""
    groups = paths.groups[: matrix.MOST_GROUPS if paths.by_host else matrix.FULL_RANKS]
    if len(paths.groups) == 1 and not paths.by_host:
        return
    canvas.text(MARGIN, top, "Path of each pair" + (" of hosts" if paths.by_host else " of ranks"), size=12, bold=True)
    names = [matrix.name(place, paths) for place in range(len(groups))]
    cells = [[matrix.cell(paths, one, other) for other in range(len(groups))] for one in range(len(groups))]
    width = max(CELL, int(max(len(cell) for row in cells for cell in row) * 11 * CHARACTER) + 10)
    left, y = MARGIN + 36, top + 14
    for column, name in enumerate(names):
        canvas.text(left + column * width + width // 2, y + 10, name, size=10, fill=FAINT, anchor="middle")
    y += 16
    for row, name in enumerate(names):
        canvas.text(left - 8, y + 16, name, size=10, fill=FAINT, anchor="end")
        for column, cell in enumerate(cells[row]):
            x, colour = left + column * width, PATHS.get(cell[0], PATHS["."])[0]
            canvas.rect(x, y, width - 2, CELL - 2, PAPER, colour, radius=3)
            canvas.text(x + width // 2 - 1, y + 15, cell, fill=colour, anchor="middle", bold=True)
        canvas.text(left + len(names) * width + 8, y + 15, matrix.about(paths, row), size=10, fill=FAINT, room=700)
        y += CELL
    left_out = len(paths.groups) - len(groups)
    more = [("", f"{left_out} more rows and columns are left out")] if left_out else []
    for letter, meaning in [*matrix.legend(paths), *more]:
        y += 16
        canvas.text(MARGIN + 36, y, letter, bold=True, fill=PATHS.get(letter[:1], (INK, ""))[0])
        canvas.text(MARGIN + 72, y, meaning, fill=FAINT)
