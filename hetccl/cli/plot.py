"""Pictures of bench's results: time and bus bandwidth over size, a line for each library, limits dashed.

matplotlib is an optional dependency (`pip install hetccl[bench]`), imported when a picture is drawn.
"""

import importlib.util

from hetccl.cli.points import POINTS

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which colour-blind people tell apart; hetccl's own is the strongest.
COLOURS = {
    "hetccl": "#D55E00",
    "mpi4py": "#0072B2",
    "mpi4py-staged": "#56B4E9",
    "oneccl": "#CC79A7",
    "torch-gloo": "#009E73",
    "torch-nccl": "#F0E442",
    "cupy": "#000000",
    "nccl4py": "#7F7F7F",
    "copy": "#999999",
}
SIZE_INCHES = (10, 4.2)
TICKS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"), (1, ""))


def missing():
    """ "" or why no picture can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return 'matplotlib is not installed: pip install "hetccl[bench]"'
    return ""


def draw(page, path, title=None):
    """Draw the results of one run.

    page  : what --json writes     path : pathlib.Path, its suffix is one of SUFFIXES     title : str
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Words as words: a picture that can be searched, and is small.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hetccl", "font.size": 9}):
        figure, (times, rates) = pyplot.subplots(1, 2, figsize=SIZE_INCHES, layout="constrained")
        mode = mode_of(page)
        for name in names(page, mode):
            _line(times, rates, page, mode, name)
        for name, speed in page["header"]["limits"].items():
            rates.axhline(speed, color="#444444", linestyle=":", linewidth=1)
            rates.annotate(f"{name}: {speed:g} GB/s", (0.02, speed), xycoords=("axes fraction", "data"), va="bottom")
        _finish(times, rates, page)
        figure.suptitle(title or default_title(page, mode), fontsize=10)
        # Without the date: the same results make the same file.
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        figure.savefig(path, metadata=metadata, dpi=120)
        pyplot.close(figure)


def mode_of(page):
    """The mode that is drawn: out of place where there is one."""
    return "out_place" if page["rows"][0]["out_place"] else "in_place"


def names(page, mode):
    """The libraries of a run, hetccl first: list of str."""
    return list(page["rows"][0][mode])


def default_title(page, mode):
    """What was run, in a line."""
    header = page["header"]
    place = {"out_place": "out of place", "in_place": "in place"}[mode]
    parts = [header["collective"], *([] if header["collective"] in POINTS else [place]), header["datatype"]]
    islands = " and ".join(str(len(ranks)) for ranks in header["islands"])
    several = f" in islands of {islands}" if len(header["islands"]) > 1 else ""
    return f"{', '.join(parts)}; {header['ranks']} ranks{several}"


def size_text(nbytes):
    """65536 -> "64K"."""
    return next(f"{nbytes // unit}{letter}" for unit, letter in TICKS if nbytes >= unit and nbytes % unit == 0)


def _line(times, rates, page, mode, name):
    rows = [row for row in page["rows"] if name in row[mode]]
    sizes = [row["nbytes"] for row in rows]
    found = [row[mode][name] for row in rows]
    limit = name == "copy"
    style = {"color": COLOURS.get(name), "linestyle": "--" if limit else "-", "linewidth": 1.6 if not limit else 1.2}
    marker = "" if limit else "o"
    label = "limit: copies" if limit else name
    times.plot(sizes, [timing["us"] for timing in found], label=label, marker=marker, markersize=3, **style)
    times.fill_between(
        sizes,
        [timing["min_us"] for timing in found],
        [timing["p95_us"] for timing in found],
        color=style["color"],
        alpha=0.12,
        linewidth=0,
    )
    rates.plot(sizes, [timing["busbw"] for timing in found], label=label, marker=marker, markersize=3, **style)


def _finish(times, rates, page):
    sizes = [row["nbytes"] for row in page["rows"]]
    shown = sizes[:: max(1, len(sizes) // 8)]
    for axes in (times, rates):
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown, [size_text(nbytes) for nbytes in shown])
        axes.minorticks_off()
        axes.set_xlabel("size (bytes)")
        axes.grid(True, color="#DDDDDD", linewidth=0.6)
    times.set_yscale("log")
    times.set_ylabel("time (µs): median, least to 95th percentile shaded")
    rates.set_ylabel("bus bandwidth (GB/s)")
    # A copy out of the cache is far above all that travels: on a linear axis nothing else would show.
    if all(line.get_ydata().min() > 0 for line in rates.get_lines() if len(line.get_ydata()) == len(sizes)):
        rates.set_yscale("log")
    times.legend(frameon=False)
