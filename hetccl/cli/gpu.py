"""What doctor and info say about GPU buffers: the libraries that serve them, what these lack, and who shares a GPU.

Libraries are opened, which touches no GPU: a context comes into being with the first call on a device buffer.
"""

from typing import NamedTuple

from hetccl import kernels, topology, vendors
from hetccl.cli import job
from hetccl.cli.host import Check
from hetccl.errors import HetcclError
from hetccl.libraries import LIBRARIES

# By the names of libraries.LIBRARIES: the runtime and the CCL of a vendor.
RUNTIMES = {"nvidia": "CUDA driver", "amd": "HIP"}
KERNELS = {"nvidia": "cuda", "amd": "hip"}
CCLS = {"nvidia": "NCCL", "amd": "RCCL"}
MEND_LIBRARY = "see the lines of these ranks about the GPU's libraries"
KNOWN = {known.name: known for known in LIBRARIES}
# Functions of the two tables without which some call raises. What else may be missing has a substitute (all_to_all is
# then a group of sends and receives), or is not called by this version.
NEEDED = {
    *("enter", "leave", "device_count", "device_pci", "pointer", "copy_async", "fill_async"),
    *("alloc_async", "dealloc_async", "event_create", "event_record", "event_query", "stream_wait_event"),
    *("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "send", "recv", "group_start", "group_end"),
    *("unique_id", "init", "async_error", "destroy", "abort", "op_create", "op_destroy"),
}


class Opened(NamedTuple):
    """A library of a vendor and its table, as plain values.

    name    : "CUDA driver", "NCCL", ...
    version : as text, "" if it does not tell
    missing : the table's functions that it lacks
    problem : "" or why it cannot be used; what is known besides is then the name
    """

    name: str
    version: str = ""
    path: str = ""
    origin: str = ""
    missing: tuple = ()
    problem: str = ""


class Sight(NamedTuple):
    """What one rank sees: its GPUs, and the runtime and the CCL of their vendor, None without a GPU.

    kernels : for each architecture of the GPUs, which code of the reduction kernels serves it, in words
    """

    devices: tuple
    runtime: Opened | None
    ccl: Opened | None
    kernels: tuple = ()


def sight(settings):
    """What this rank sees. settings : config.Config."""
    devices = topology.devices(settings)
    if not devices:
        return Sight((), None, None)
    vendor = devices[0].vendor
    runtime = _open(RUNTIMES[vendor], vendors.open_runtime, vendor, settings)
    return Sight(devices, runtime, _open_ccl(vendor, settings), () if runtime.problem else _kernels(vendor, settings))


def open_found(names, settings):
    """The runtimes and CCLs among `names`, of libraries.LIBRARIES, as tables: list of Opened. No driver is started."""
    runtimes = [
        _open(name, vendors.load_runtime, vendor, settings) for vendor, name in RUNTIMES.items() if name in names
    ]
    return runtimes + [_open_ccl(vendor, settings) for vendor, name in CCLS.items() if name in names]


def rank_checks(sight, needed):
    """What may differ from rank to rank.

    needed : GPU buffers are to work: what stands in their way is a fault
    """
    bad = "fail" if needed else "warn"
    if not sight.devices:
        yield Check("devices", bad if needed else "ok", "no GPU visible: host buffers only")
        return
    yield Check("devices", "ok", ", ".join(f"{gpu.name} {gpu.pci}".strip() for gpu in sight.devices))
    for opened in (sight.runtime, sight.ccl):
        yield _library_check(opened, bad)
    for text in sight.kernels:
        # No collective uses them yet, so that their absence is no fault.
        yield Check("kernels", "ok", f"reductions on the device: {text}")


def job_checks(members, sights, needed):
    """What the ranks' GPUs are to each other.

    members : list of topology.Member; sights : list of Sight, one per rank
    """
    bad = "fail" if needed else "warn"
    if any(sight.devices for sight in sights):
        shared = tuple(_shared(members, sights, bad))
        yield from shared
        yield _path(members, sights, bad, bool(shared))


def device_of(members, sights, rank):
    """Index of the GPU that doctor tries on a rank, None without one.

    It is the first that no lower rank of the host takes; ranks may see the same GPUs in different orders.
    """
    taken = set()
    chosen = None
    for peer in range(rank + 1):
        devices = sights[peer].devices
        if members[peer].machine == members[rank].machine and devices:
            free = [index for index, device in enumerate(devices) if device not in taken]
            chosen = free[0] if free else 0
            taken.add(devices[chosen])
    return chosen if sights[rank].devices else None


def path_letters(members, sights, rank):
    """Of each peer what takes buffers in GPU memory to it: "c" the vendor's CCL, "p" pinned memory, "" nothing."""
    mine = sights[rank]
    usable = [not (seen.devices and seen.runtime.problem) for seen in sights]
    one_island = len(topology.islands(members)) == 1 and all(seen.devices and not seen.ccl.problem for seen in sights)
    letters = []
    for peer, seen in enumerate(sights):
        none = not (usable[rank] and usable[peer] and (mine.devices or seen.devices))
        letters.append("" if none else "c" if one_island else "p")
    return letters


def _open_ccl(vendor, settings):
    return _open(CCLS[vendor], vendors.open_ccl, vendor, settings)


def _open(name, opener, vendor, settings):
    try:
        table = opener(vendor, settings)
    except HetcclError as error:
        override = KNOWN[name].override(settings)
        told = job.first_line(error)
        return Opened(name, problem=f"{told} as {override}" if override and override not in told else told)
    library = table.library
    return Opened(name, table.version, library.path, library.origin, tuple(table.missing()))


def _kernels(vendor, settings):
    """Sight.kernels of a vendor whose runtime opens."""
    described = kernels.describe(KERNELS[vendor])
    try:
        runtime = vendors.open_runtime(vendor, settings)
        archs = sorted({runtime.device_arch(device) for device in range(runtime.device_count())})
    except HetcclError as error:
        return (job.first_line(error),)
    return tuple(kernels.serving(described, arch) for arch in archs)


def _library_check(opened, bad):
    if opened.problem:
        advice = f"install it, or name its file by HETCCL_{KNOWN[opened.name].setting.upper()}"
        return Check(opened.name, bad, opened.problem, advice)
    found = f"{opened.version} {opened.path} ({opened.origin})".strip()
    if opened.missing:
        found += f"; lacks {', '.join(opened.missing)}"
    needed = [name for name in opened.missing if name in NEEDED]
    if needed:
        return Check(opened.name, bad, found, f"update it: calls that need {' or '.join(needed)} raise")
    return Check(opened.name, "ok", found)


def _shared(members, sights, bad):
    """Ranks of one host that cannot but use one GPU together."""
    drivers = {}
    for rank, (member, sight) in enumerate(zip(members, sights, strict=True)):
        if sight.devices:
            drivers.setdefault(member.machine, []).append((rank, sight.devices))
    for seen in drivers.values():
        for ranks, gpus in _crowded(seen):
            where = ", ".join(gpu.pci or gpu.uuid for gpu in gpus)
            yield Check(
                "GPU per rank",
                bad,
                f"{job.ranks_text(ranks)} have {job.plural(len(gpus), 'GPU')} between them ({where}), and the vendor's "
                "CCL needs one for each",
                "start fewer ranks on this host, or let each see another GPU",
            )


def _crowded(seen):
    """(ranks, GPUs) of each group of ranks that see the same GPUs and are more than these.

    seen : list of (rank, its devices)
    """
    groups = {}
    for rank, devices in seen:
        groups.setdefault(frozenset(devices), []).append(rank)
    for devices, ranks in groups.items():
        if len(ranks) > len(devices):
            yield tuple(ranks), sorted(devices, key=lambda gpu: (gpu.pci, gpu.uuid))


def _path(members, sights, bad, shared):
    """Who runs a collective on GPU buffers. shared : whether some rank has no GPU to itself."""
    name = "GPU buffers"
    islands = topology.islands(members)
    if len(islands) > 1:
        what = "; ".join(f"{island.label} ({island.vendor}): {job.ranks_text(island.ranks)}" for island in islands)
        unable = tuple(rank for rank, sight in enumerate(sights) if sight.devices and sight.runtime.problem)
        if unable:
            text = f"refused by {job.ranks_text(unable)}, which cannot open a library that is needed"
            return Check(name, bad, text, MEND_LIBRARY)
        text = f"collectives run on hetccl's engine, through pinned memory, between {len(islands)} islands: {what}"
        return Check(name, "ok", text)
    unable = tuple(rank for rank, sight in enumerate(sights) if sight.runtime.problem or sight.ccl.problem)
    if unable:
        text = f"refused: {job.ranks_text(unable)} cannot open a library that is needed"
        return Check(name, bad, text, MEND_LIBRARY)
    if shared:
        return Check(name, bad, "refused until each rank has a GPU to itself", "see GPU per rank")
    versions = {}
    for rank, sight in enumerate(sights):
        versions.setdefault(sight.ccl.version, []).append(rank)
    ccl = sights[0].ccl.name
    if len({version.rpartition(".")[0] for version in versions}) > 1:
        each = "; ".join(f"{job.ranks_text(ranks)}: {ccl} {version}" for version, ranks in versions.items())
        return Check(name, bad, f"refused, for versions differ: {each}", "let all ranks load the same release")
    release = " and ".join(f"{ccl} {version}" for version in versions)
    return Check(name, "ok", f"Allreduce runs on {release}: {job.plural(len(members), 'rank')}, one island")
