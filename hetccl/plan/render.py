"""Shows a plan as text, one line per step, and as an SVG, ranks as lanes and steps as bars. Returns strings; no I/O."""

from xml.sax.saxutils import escape

from .steps import REDUCTIONS, ROOTED, SCANS, Buf, Copy, Peer, Recv, Reduce, Send, Vendor, describe
from .strict import MESSAGE_ROUNDS, Run, rounds, units_sent

STAGES = ("in the island", "across islands", "in the island again")


def island_name(i):
    """Return the letter of an island: A, B, ..., Z, then I26, I27, ..."""
    return chr(ord("A") + i) if i < 26 else f"I{i}"


def heading(plan):
    """Return (title, one line of facts)."""
    islands = " | ".join(f"{island_name(i)} = {' '.join(map(str, island))}" for i, island in enumerate(plan.islands))
    title = f"{plan.collective}, {plan.algorithm}: {islands}"
    title += f", root {plan.root}" if plan.collective in ROOTED else ""
    title += ", vendor CCL inside islands" if plan.inner == "vendor" else ""
    title += ", in place" if plan.in_place else ""
    programs = [plan.program(rank) for rank in range(plan.size)]
    across = max(units_sent(plan, rank, across=True) for rank in range(plan.size))
    most = max(units_sent(plan, rank) for rank in range(plan.size))
    facts = [
        f"{plan.size} ranks",
        f"{sum(len(program.steps) for program in programs)} steps",
        f"{rounds(plan)} rounds",
        f"a rank sends at most {most} units ({across} to other islands)",
        f"scratch at most {max(program.scratch for program in programs)} units",
    ]
    return title, ", ".join(facts)


def text(plan, ranks=None):
    """Return the plan as text: a section per rank (all, or those given), a line per step.

    The clock is that of the strict run: a message takes one round, a step inside a rank half of one.
    """
    run = Run([plan.program(rank) for rank in range(plan.size)])
    home = {rank: island_name(i) for i, island in enumerate(plan.islands) for rank in island}
    lines = list(heading(plan))
    for rank in range(plan.size) if ranks is None else ranks:
        lines += ["", f"rank {rank}, island {home[rank]}", "  step  stage  rounds     what"]
        for i, step in enumerate(plan.program(rank).steps):
            when = f"{run.start[rank, i]:g}-{run.end[rank, i]:g}"
            after = f"  [after {', '.join(map(str, step.after))}]" if step.after else ""
            lines.append(f"  {i:4}  {step.stage:5}  {when:9}  {describe(step)}{after}")
    return "\n".join(lines) + "\n"


# The drawing. Lengths in pixels.
WIDTH = 900  # at least; short plans are stretched to it
ROUND = 190  # at least
TRACK = 24
BAR = 19
LANE_GAP = 12
ISLAND_GAP = 14
LEFT = 96
TOP = 86
CHARACTER = 6.1  # mean width of a character of the bars' labels

# kind -> fill by stage: lighter inside the island, full across, darker inside again.
FILLS = {
    Send: ("#a9cdf0", "#4f93d6", "#2b65a3"),
    Recv: ("#a8ddd0", "#3fae92", "#237a64"),
    Reduce: ("#f9cfa0", "#ee9a3a", "#bb6a12"),
    Copy: ("#d9d9dd", "#a9a9b2", "#787882"),
    Vendor: ("#d8c3ee", "#a57fd4", "#714aa3"),
}
BANDS = ("#eef4fb", "#fdf4e7", "#eef8f1", "#f8eef6", "#f4f4ea", "#eef0f8")
INK, FAINT, ACROSS = "#22262b", "#8a939d", "#c2364b"


class _Bar:
    """Steps of one rank of the same kind, stage and time."""

    def __init__(self, kind, stage, start, end):
        self.kind, self.stage, self.start, self.end = kind, stage, start, end
        self.steps = []
        self.track = 0


def svg(plan):
    """Return the plan as an SVG document."""
    return _Drawing(plan).document()


class _Drawing:
    def __init__(self, plan):
        self.plan = plan
        self.run = Run([plan.program(rank) for rank in range(plan.size)])
        self.bars = [self._bars(rank) for rank in range(plan.size)]
        self.bar_of = {(rank, i): bar for rank, bars in enumerate(self.bars) for bar in bars for i in bar.steps}
        self.home = {rank: k for k, island in enumerate(plan.islands) for rank in island}
        last = max(self.run.end.values(), default=1)
        self.round = max(ROUND, (WIDTH - LEFT - 40) / last / MESSAGE_ROUNDS)
        self.width = int(LEFT + self.round * last + 40)
        self._place()

    def _bars(self, rank):
        """Group the steps that run alike; give those that overlap in time tracks of their own."""
        bars = {}
        for i, step in enumerate(self.plan.program(rank).steps):
            key = type(step), step.stage, self.run.start[rank, i], self.run.end[rank, i]
            bars.setdefault(key, _Bar(*key)).steps.append(i)
        busy = []  # end of the last bar of each track
        for bar in sorted(bars.values(), key=lambda bar: (bar.start, bar.kind is not Send, bar.end)):
            free = [track for track, end in enumerate(busy) if end <= bar.start]
            bar.track = free[0] if free else len(busy)
            busy[bar.track : bar.track + 1] = [bar.end]
        return list(bars.values())

    def _place(self):
        """Give each rank its lane: islands together, ranks in order."""
        self.lane, self.bands, y = {}, [], TOP
        for island in self.plan.islands:
            top = y
            for rank in island:
                self.lane[rank] = y + LANE_GAP / 2
                y += TRACK * max((bar.track + 1 for bar in self.bars[rank]), default=1) + LANE_GAP
            self.bands.append((top, y))
            y += ISLAND_GAP
        self.bottom = y

    def document(self):
        """Return the whole drawing."""
        height = int(self.bottom + 96)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
            f'<rect width="{self.width}" height="{height}" fill="#ffffff"/>',
            *self._title(),
            *self._islands(),
            *self._clock(),
            *self._arrows(),
            *(self._bar(rank, bar) for rank, bars in enumerate(self.bars) for bar in bars),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _title(self):
        title, facts = heading(self.plan)
        yield _text(16, 28, title, size=17, weight="bold")
        yield _text(16, 48, facts, fill=FAINT, size=12)

    def _islands(self):
        for k, (island, (top, bottom)) in enumerate(zip(self.plan.islands, self.bands)):
            fill = BANDS[k % len(BANDS)]
            yield f'<rect x="8" y="{top}" width="{self.width - 16}" height="{bottom - top}" rx="6" fill="{fill}"/>'
            yield _text(20, (top + bottom) / 2 + 6, island_name(k), size=17, weight="bold", fill=FAINT)
            for rank in island:
                yield _text(LEFT - 10, self.lane[rank] + BAR - 5, f"rank {rank}", anchor="end", size=12)

    def _clock(self):
        last = int(max(self.run.end.values(), default=1) + 0.5)
        for k in range(last + 1):
            x = self._x(k)
            yield (
                f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{self.bottom - ISLAND_GAP}" '
                f'stroke="{FAINT}" stroke-width="0.6" stroke-dasharray="2 4"/>'
            )
            yield _text(x, TOP - 13, f"{k}" if k else "0 rounds", fill=FAINT, anchor="middle")

    def _x(self, when):
        return LEFT + self.round * when / MESSAGE_ROUNDS

    def _box(self, rank, bar):
        """Return (x, y, width) of a bar."""
        x = self._x(bar.start) + 2
        return x, self.lane[rank] + bar.track * TRACK, self._x(bar.end) - x - 2

    def _bar(self, rank, bar):
        x, y, width = self._box(rank, bar)
        steps = [self.plan.program(rank).steps[i] for i in bar.steps]
        fill = FILLS[bar.kind][min(bar.stage, 2)]
        ink = "#ffffff" if bar.stage > 1 else INK
        tips = [f"rank {rank}, step {i}, stage {bar.stage}: {describe(step)}" for i, step in zip(bar.steps, steps)]
        outline = f' stroke="{INK}" stroke-width="1.3"' if any(getattr(step, "final", False) for step in steps) else ""
        room = int((width - 8) / CHARACTER)
        label = next((label for label in _labels(bar.kind, steps) if len(label) <= room), "")
        return (
            f"<g><title>{escape(chr(10).join(tips))}</title>"
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{BAR}" rx="3" '
            f'fill="{fill}" fill-opacity="0.9"{outline}/>'
            f"{_text(x + 5, y + BAR - 6, label, fill=ink)}</g>"
        )

    def _arrows(self):
        """A curve per message, from the start of the send to the end of the step that takes it."""
        drawn = set()
        for (rank, i), senders in self.run.senders.items():
            target = self.bar_of[rank, i]
            for sender, k in senders:
                source = self.bar_of[sender, k]
                if (sender, id(source), rank, id(target)) in drawn:
                    continue
                drawn.add((sender, id(source), rank, id(target)))
                yield self._arrow(sender, source, rank, target)

    def _arrow(self, sender, source, rank, target):
        x1, y1, _ = self._box(sender, source)
        x2, y2, width = self._box(rank, target)
        down = y2 > y1
        y1, y2 = (y1 + BAR, y2 - 1) if down else (y1, y2 + BAR + 1)
        x2 += width - 7
        # Starts and ends are spread a little, so that the arrows of one bar can be told apart.
        order = sorted(range(self.plan.size), key=lambda peer: self.lane[peer])
        spread = 0.4 * self.round / max(4, self.plan.size)
        x1 += 8 + spread * order.index(rank)
        x2 -= spread * order.index(sender)
        across = self.home[sender] != self.home[rank]
        colour, stroke, opacity = (ACROSS, 1.4, 0.75) if across else ("#54606c", 1.0, 0.55)
        bend = max(14, min(40, abs(y2 - y1) * 0.3)) * (1 if down else -1)
        return (
            f'<path d="M{x1:.1f} {y1:.1f} C{x1 + 18:.1f} {y1 + bend:.1f} {x2 - 12:.1f} {y2 - bend:.1f} '
            f'{x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" stroke-width="{stroke}" opacity="{opacity}"/>'
            f'<path d="M{x2:.1f} {y2:.1f} l-3.5 {-6 if down else 6} h7 z" fill="{colour}" opacity="{opacity}"/>'
        )

    def _legend(self):
        y, x = self.bottom + 12, 16
        kinds = [kind for kind in FILLS if any(bar.kind is kind for bars in self.bars for bar in bars)]
        for kind in kinds:
            for fill in FILLS[kind]:
                yield f'<rect x="{x}" y="{y}" width="16" height="12" rx="2" fill="{fill}"/>'
                x += 18
            yield _text(x + 4, y + 10, kind.__name__)
            x += 22 + 6 * len(kind.__name__)
        if self.plan.collective in REDUCTIONS - SCANS:
            frame = f'fill="none" stroke="{INK}" stroke-width="1.3"'
            yield f'<rect x="{x + 1}" y="{y}" width="16" height="12" rx="2" {frame}/>'
            yield _text(x + 24, y + 10, "final: completes an output")
        shades = "; ".join(
            f"{shade}: stage {k}, {name}" for k, (shade, name) in enumerate(zip(("light", "full", "dark"), STAGES))
        )
        yield _text(16, y + 32, f"Shades: {shades}.", fill=FAINT)
        note = "Time in rounds of the strict model (a message takes one, a step inside a rank half), not seconds."
        yield _text(16, y + 50, f"{note} Red: messages across islands.", fill=FAINT)


def _text(x, y, content, size=11, fill=INK, weight="normal", anchor="start"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )


def _labels(kind, steps):
    """Return labels for a bar, the longest first."""
    if kind in (Send, Recv):
        arrow = "→" if kind is Send else "←"
        peers = f"{arrow} {', '.join(str(peer) for peer in dict.fromkeys(step.peer for step in steps))}"
        where = _place(steps)
        return [f"{where} {peers}", peers, f"{arrow} {len(steps)} ranks", arrow]
    if kind is Reduce:
        sources = steps[0].sources
        count = len(sources)
        if len(steps) > 1:
            return [f"{_place(steps)}, {len(steps)} × Σ {count}", f"{len(steps)} × Σ {count}", "Σ"]
        operands = " + ".join(str(s.rank) if isinstance(s, Peer) else _buffer(s) for s in sources)
        return [f"{_place(steps)} = {operands}", f"{_place(steps)}, Σ {count}", f"Σ {count}", "Σ"]
    if kind is Vendor:
        op = steps[0].op + (f" × {len(steps)}" if len(steps) > 1 else "")
        return [f"{op} {_place(steps)}", op, op[:6]]
    return [f"copy to {_place(steps)}", "copy", "="]


def _buffer(block):
    return f"{Buf(block.buf).name}[{block.unit}]"


def _place(steps):
    """Return where the steps of a bar work: one block, or how many."""
    blocks = list(dict.fromkeys(step.block or step.source for step in steps))
    if len(blocks) == 1:
        return describe(blocks[0])
    return " ".join(Buf(buf).name for buf in sorted({block.buf for block in blocks}))
