"""Make the generated part of docs/performance.md, and its pictures, from bench/results/*.json.

    python bench/report.py [--results bench/results] [--page docs/performance.md] [--check]

Each file of results becomes a section: on what it was measured, what the figures rest on, the command, a picture and a
table. The page holds them between two comments; what is written by hand around them stays as it is. --check changes
nothing and ends with 1 if the page is not what the results give.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hetccl.cli import plot  # noqa: E402 - found by the line above
from hetccl.cli.report import machine_text  # noqa: E402

BEGIN = "<!-- made by `make report` from bench/results: do not edit up to the next comment -->"
END = "<!-- end of what `make report` makes -->"


def main():
    """Returns the exit status: 1 with --check if the page is not what the results give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md", metavar="FILE")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if something would change")
    args = parser.parse_args()
    pages = load(args.results)
    text = args.page.read_text()
    if BEGIN not in text or END not in text:
        parser.error(f"argument --page: {args.page} lacks the comments between which the sections go")
    made = with_sections(text, pages)
    if args.check:
        return int(made != text)
    if why := plot.missing():
        parser.error(why)
    for name, page in pages.items():
        plot.draw(page, args.page.with_name(picture_of(name)))
    args.page.write_text(made)
    print(f"hetccl: {args.page}: {len(pages)} sections")
    return 0


def load(folder):
    """{name: page} of a folder of results, by the folder's order of cases."""
    pages = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(pages.items(), key=lambda item: (item[1]["order"], item[0])))


def with_sections(text, pages):
    """The text of the page with the sections in their place."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    sections = "".join(f"{section(name, page)}\n\n" for name, page in pages.items())
    return f"{before}{BEGIN}\n\n{sections}{END}{after}"


def picture_of(name):
    """The file of a section's picture, beside the page."""
    return f"performance_{name}.svg"


def section(name, page):
    """One section, as Markdown."""
    header, mode = page["header"], plot.mode_of(page)
    absent = [f"{peer} did not take part: {why}." for peer, why in header["absent"].items()]
    lines = [
        f"## {page['title']} ({page['evidence']})",
        "",
        f"{header['date']}: {header['versions']}, {header['mpi']}; {machine_text(header)}. "
        f"{'; '.join([*header['members'], *header['paths']])}. Buffers: {', '.join(header['memory'])}. "
        f"{' '.join([*absent, ''])}Medians of {header['iters']} in µs, the least and the 95th percentile in brackets; "
        "ratio: hetccl's time by that one's. Made by",
        "",
        f"    {page['launch']}",
        "",
        *busy_lines(header),
        f"![{plot.default_title(page, mode)}]({picture_of(name)})",
        "",
        *table(page, mode),
        "",
        wrong_text(page),
    ]
    return "\n".join(lines)


def table(page, mode):
    """The lines of the table of one mode."""
    names = plot.names(page, mode)
    peers = [name for name in names if name != "hetccl"]
    titles = ["size", "hetccl", "busbw, GB/s"]
    for name in peers:
        titles += ["copy in memory"] if name == "copy" else [name, "ratio"]
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---:|" * len(titles)
    for row in page["rows"]:
        timings = row[mode]
        ours = timings["hetccl"]
        cells = [plot.size_text(row["nbytes"]), time_text(ours), f"{ours['busbw']:.3f}"]
        for name in peers:
            timing = timings.get(name)
            cells.append(time_text(timing) if timing else "")
            if name != "copy":
                cells.append(f"{timing['ratio']:.2f}" if timing else "")
        yield f"| {' | '.join(cells)} |"


def time_text(timing):
    """ "12.3 (10.0-45.6)": the median, the least and the 95th percentile in microseconds."""
    return f"{timing['us']:.1f} ({timing['min_us']:.1f}-{timing['p95_us']:.1f})"


def busy_lines(header):
    """Where the figures are not the libraries' alone, a paragraph that says so."""
    load, cores = header["load"], header["cores"]
    if load > cores:
        yield (
            f"**The machine had other work (a load of {load} on {cores} cores): these are times of its scheduler as "
            "much as of the libraries; of each of them the least time says most.**"
        )
        yield ""


def wrong_text(page):
    """What the checks found, of all libraries in all modes."""
    found = [
        timing["wrong"]
        for row in page["rows"]
        for mode in ("out_place", "in_place")
        for timing in (row[mode] or {}).values()
        if timing["wrong"] is not None
    ]
    return f"Wrong elements: {sum(found)}." if found else "Results were not looked at."


if __name__ == "__main__":
    sys.exit(main())
