"""The page that doctor prints: for a person, of any job at most a page or two, and as plain values."""

import statistics
from collections import Counter
from typing import NamedTuple

from hetccl import topology
from hetccl._version import VERSION
from hetccl.cli import job, matrix

# Larger jobs get so many lines for each check and status; --json has them all.
MOST_LINES = 4
MOST_LINES_OF = {"rails": 8}  # one for each GPU of a host
MOST_LINKS = 12
MOST_HOST_LINES = 12


class Links(NamedTuple):
    """Pairs of one kind with one expectation, or GPUs on one kind of bus.

    kind  : of paths.Path, or "gpu"     gb_s, why : of links.Limit
    pairs : how many; of "gpu" ranks    measured  : list of pairs.Measured
    """

    kind: str
    gb_s: float | None
    why: str
    pairs: int
    measured: list


def text(findings, members, paths, links, table):
    """The page for a person.

    findings : tuple of Finding     members : topology.Member of every rank     paths : matrix.Matrix or None
    links    : list of Links        table   : list of str, the pairs that were measured
    """
    lines = [f"{job.versions()}: {job.plural(len(members), 'rank')}", *folded_members(members)]
    if paths is not None and len(members) > 1:
        lines += ["", "Path of each pair of ranks", *(f"  {line}" for line in matrix.lines(paths))]
    if links:
        lines += ["", "Links, GB/s one way", *(f"  {line}" for line in link_lines(links))]
    lines += [f"  {line}" for line in table]
    lines.append("")
    shown, left = {}, {}
    big = len(members) > matrix.FULL_RANKS
    for check, ranks in findings:
        key = check.name, check.status
        shown[key] = shown.get(key, 0) + 1
        if big and shown[key] > MOST_LINES_OF.get(check.name, MOST_LINES):
            left[key] = left.get(key, 0) + 1
            continue
        whose = f" ({matrix.cut(job.ranks_text(ranks))})" if len(ranks) < len(members) else ""
        lines.append(f"{check.status:<5} {check.name:<14} {check.text}{whose}")
        if check.advice:
            lines.append(f"{'':<20} -> {check.advice}")
    lines += [f"{status:<5} {name:<14} {count} more lines; --json has them" for (name, status), count in left.items()]
    failed = sum(finding.check.status == "fail" for finding in findings)
    warned = sum(finding.check.status == "warn" for finding in findings)
    lines += ["", f"{job.plural(failed, 'problem')} to solve first" if failed else "hetccl can run here"]
    if warned:
        lines[-1] += f"; {job.plural(warned, 'warning')}"
    return "\n".join(lines)


def as_json(findings, jobmap, everyone, links, measured):
    """The page as plain values; docs/cli.md has the schema.

    everyone : of each rank {"versions", "ways"}     measured : list of pairs.Measured, or None
    """
    members = jobmap.members
    return {
        "version": VERSION,
        "status": status_of(findings),
        "checks": [{**finding.check._asdict(), "ranks": finding.ranks} for finding in findings],
        "members": [member.as_dict() for member in members],
        "islands": [island._asdict() for island in topology.islands(members)],
        "networks": [seen._asdict() | {"ways": told["ways"]} for seen, told in zip(jobmap.nets, everyone)],
        "versions": [told["versions"] for told in everyone],
        "matrix": jobmap.matrix.as_dict(),
        "links": [link._asdict() | {"measured": len(link.measured)} for link in links],
        "measured": None if measured is None else [pair._asdict() for pair in measured],
    }


def status_of(findings):
    """Exit status: 1 if any check failed."""
    return int(any(finding.check.status == "fail" for finding in findings))


def folded_members(members):
    """The job's islands and hosts: a line for each, like hosts of a big job in one."""
    hosts = job.by_host(members)
    lines = [
        f"island {island.label} ({island.vendor}): {matrix.cut(job.ranks_text(island.ranks))}"
        for island in topology.islands(members)
    ]
    kinds = {}
    for name, ranks in hosts.items():
        cores = frozenset().union(*(members[rank].cores for rank in ranks))
        kind = (len(ranks), len(cores), tuple(members[rank].label for rank in ranks))
        kinds.setdefault(kind if len(hosts) > MOST_LINES else name, []).append((name, ranks, len(cores)))
    for alike in kinds.values():
        names = matrix.hosts_text([name for name, _, _ in alike])
        ranks = matrix.cut(job.ranks_text(sorted(rank for _, ranks, _ in alike for rank in ranks)))
        what = f"host {names}" if len(alike) == 1 else f"{len(alike)} hosts {names}"
        cores = job.plural(alike[0][2], "core") + (" each" if len(alike) > 1 else "")
        lines.append(f"{what}: {ranks} on {cores}")
    left = len(lines) - MOST_HOST_LINES
    more = [f"{left} more lines of islands and hosts; --json has them"] if left > 0 else []
    return lines[:MOST_HOST_LINES] + more


def links_of(everyone, nets, measured):
    """The job's links, like ones together: list of Links.

    everyone, nets : of each rank {"ways"}, and network.Sight     measured : list of pairs.Measured, or None
    """
    counts = {}
    for rank, told in enumerate(everyone):
        for way in told["ways"]:
            if way["kind"]:
                key = way["kind"], way["expected"]["gb_s"], way["expected"]["why"]
                counts[key] = counts.get(key, 0) + sum(peer > rank for peer in way["ranks"])
    found = []
    for (kind, gb_s, why), count in counts.items():
        alike = [pair for pair in measured or () if (pair.kind, pair.expected["why"]) == (kind, why)]
        if count:
            found.append(Links(kind, gb_s, why, count, alike))
    buses = Counter(tuple(net.gpu) for net in nets if net.gpu[1])
    found.sort(key=lambda link: -link.pairs)
    return found + [Links("gpu", gb_s, why, count, []) for (gb_s, why), count in buses.most_common()]


def link_lines(links):
    """A line for each kind of link, what was measured beside what is expected."""
    measured = any(link.measured for link in links)
    lines = []
    for link in links[:MOST_LINKS]:
        expected = f"expected {link.gb_s:.3g}" if link.gb_s else "expected unknown"
        seen = f"measured {_measured(link.measured)}" if link.measured else ""
        letter, noun = ("p", "GPU") if link.kind == "gpu" else (matrix.LETTERS[link.kind], "pair")
        said = [letter, job.plural(link.pairs, noun).ljust(10), expected.ljust(16)]
        lines.append("  ".join([*said, *([seen.ljust(44)] if measured else []), link.why.removeprefix("unknown: ")]))
    left = len(links) - len(lines)
    return lines + [f"{left} more kinds of links; --json has them"] * bool(left)


def _measured(alike):
    rates, times = [pair.gb_s for pair in alike], [pair.latency_us for pair in alike]
    middle = f"{statistics.median(rates):.2f}, {statistics.median(times):.1f} us"
    return f"{middle} (worst {min(rates):.2f}, {max(times):.1f} us)" if len(alike) > 1 else middle
