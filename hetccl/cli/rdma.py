"""What info and doctor say of libibverbs and the RDMA devices themselves; which of them are used, network.py says."""

from pathlib import Path

from hetccl import _rdma, _verbs, topology
from hetccl._verbs_errors import may_lock_all, memlock_advice, memlock_text
from hetccl.cli.host import Check
from hetccl.errors import LibraryNotFound, VerbsError

# Immediate values that the other end may have on their way: it is the same queue pair, and sends none.
TRIAL_RECEIVES = 1


def collect(settings):
    """What there is, for info: dict of plain values.

    ports    : list of dict, of _verbs.devices(); where libibverbs has none, what the kernel shows of each
    problems : list of str, devices that cannot be used and why; that there is no library
    fork_safe, fork, missing : of _verbs.Verbs; None, "" and () without it
    memlock  : str, RLIMIT_MEMLOCK in words
    """
    problems = []
    try:
        ports = _verbs.devices(settings.verbs_lib, problems)
        verbs = _verbs.open()
    except (LibraryNotFound, VerbsError) as error:
        ports, verbs = [], None
        problems.append(str(error).partition("; tried:")[0])
    return {
        "ports": ports or [nic.as_port() for nic in topology.nics()],
        "problems": problems,
        "fork_safe": verbs and verbs.fork_safe,
        "fork": verbs.fork if verbs else "",
        "missing": [f"{name}@{version}" for name, version in (verbs.missing() if verbs else ())],
        "memlock": memlock_text(),
    }


def lines(found):
    """info's lines. found : of collect()"""
    for port in found["ports"]:
        yield f"{port['device']} port {port['port']}: {', '.join(_facts(port))}"
    if not found["ports"]:
        yield "no RDMA device"
        return
    yield from found["problems"]
    yield f"memory that may be locked: {found['memlock']}"
    if found["fork"]:
        yield f"fork: {found['fork']}"
    if found["missing"]:
        yield f"libibverbs lacks {', '.join(found['missing'])}"


def checks(settings, cards):
    """doctor's lines about using the devices.

    cards : this rank's rail cards; or str, why there are none: then there is nothing to say
    """
    if isinstance(cards, str):
        return
    yield memlock()
    verbs = _verbs.open(settings.verbs_lib)
    advice = "" if verbs.fork_safe else "start processes with multiprocessing's spawn, or make hetccl.Comm earlier"
    yield Check("RDMA and fork", "ok" if verbs.fork_safe else "warn", verbs.fork, advice)
    given = {name: getattr(settings, f"ib_{name}") for name in _rdma.SETTINGS}
    for card in cards:
        yield connection(card, given)


def memlock():
    """Whether memory can be registered without a limit."""
    limit = memlock_text()
    if limit == "unlimited":
        return Check("locked memory", "ok", "unlimited")
    if may_lock_all():
        return Check("locked memory", "ok", f"RLIMIT_MEMLOCK is {limit}, and this process has CAP_IPC_LOCK")
    text = f"RLIMIT_MEMLOCK is {limit}: large buffers go through memory that is registered once, with one copy more"
    return Check("locked memory", "warn", text, memlock_advice())


def connection(card, given):
    """Whether a queue pair of a rail can be made and connected, with itself.

    card : of hetccl.net.nics     given : {name: int}, of _rdma.SETTINGS
    """
    name = f"{card['device']}:{card['port']} GID {card['gid_index']}"
    try:
        port = _rdma.RdmaPort(card, receives=TRIAL_RECEIVES, settings=given)
        rail = port.rail(0, 0)
        rail.connect(rail.local())
        rail.close()
        port.close()
    except (VerbsError, OSError, ValueError) as error:
        return Check("queue pair", "warn", f"{name}: {error}", "leave the port out by HETCCL_IB_HCA, or mend it")
    return Check("queue pair", "ok", f"{name}: made, connected with itself, and closed")


def _facts(port):
    yield from (port["state"], port["link_layer"], str(port["rate"]))
    if "gids" not in port:
        return
    yield f"MTU {port['active_mtu']}"
    kinds = [gid["type"] for gid in port["gids"]]
    yield "; ".join(f"{kinds.count(kind)} GIDs {kind}" for kind in dict.fromkeys(kinds)) or "no GID"
    if port["lid"]:
        yield f"LID {port['lid']}"
    if port["sys"]:
        yield Path(port["sys"]).name
    if port["numa"] >= 0:
        yield f"NUMA node {port['numa']}"
