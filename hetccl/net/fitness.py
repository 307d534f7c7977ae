"""Whether an RDMA port can serve: by its name, its state, its GIDs, and by what the settings ask of it.

A setting that a port cannot meet takes that port out; one that leaves no port at all is an error, before anything else
happens. Ports are dicts as _verbs.devices() gives them.
"""

from hetccl import config, topology
from hetccl._rdma import gid_text
from hetccl.net import gids

# GIDs of one kind for which a port has a card: interfaces of several VLANs and containers fill a table.
GIDS_OF_A_KIND = 4
# (type, IP version) in order of preference. NICs and switches treat IPv4 best.
_KINDS = ((gids.ROCE_V2, 4), (gids.ROCE_V2, 6), (gids.ROCE_V1, 4), (gids.ROCE_V1, 6))
# GIDs that a message lists of a table that may have 1024.
_LISTED = 8


def name_of(port):
    """ "mlx5_0:1", as HETCCL_IB_HCA takes it. port : dict with device and port"""
    return f"{port['device']}:{port['port']}"


def entries(port, index):
    """The GIDs of a port that can serve: [(entry of its table, why it)], the best first.

    index : HETCCL_IB_GID_INDEX, or None
    """
    table = sorted(port["gids"], key=lambda entry: entry["index"])
    if index is not None:
        return [(entry, "named by HETCCL_IB_GID_INDEX") for entry in table if entry["index"] == index]
    if port["link_layer"] == gids.INFINIBAND:
        return [(entry, "the port's first") for entry in table[:1]]
    chosen = []
    for kind, version in _KINDS:
        # A table may hold an address twice: for an interface, and for another one that stands on it.
        fitting = {}
        for entry in table:
            if entry["type"] == kind and _routable(entry["gid"], version):
                fitting.setdefault(entry["gid"], (entry, f"routable IPv{version}, {kind}"))
        chosen += list(fitting.values())[:GIDS_OF_A_KIND]
    return chosen


def _routable(gid, version):
    address = gids.parse(gid)
    return (address.scope, address.version) == ("routable", version)


def refusals(ports, settings, roots, missing):
    """Why ports are not used: {name: reason, "" if it is used}.

    missing : why there are no ports at all, ""
    Raises  : ValueError, HETCCL_IB_HCA names what is not there, or a setting leaves no port
    """
    if settings.ib_hca:
        _check_names(*settings.ib_hca, ports, missing)
    whys = dict.fromkeys(map(name_of, ports), "")
    for setting, reason in (
        ("ib_hca", _why_not_named),
        (None, _why_not_ready),
        ("ib_gid_index", _why_no_gid),
        ("ib_pkey", _why_no_pkey),
        ("ib_send_queue", _why_no_queue),
    ):
        value = setting and getattr(settings, setting)
        found = {name_of(port): reason(port, value, roots) for port in ports if not whys[name_of(port)]}
        whys.update(found)
        # Where nobody has asked for it, a host without a port that can serve goes on without verbs.
        if found and all(found.values()) and setting and value != getattr(config.Config(), setting):
            said = "; ".join(f"{name}: {why}" for name, why in found.items())
            written = config.names_text(value) if setting == "ib_hca" else value
            raise ValueError(f"HETCCL_{setting.upper()}={written} leaves no RDMA port: {said}")
    return whys


def _check_names(names, excluded, ports, missing):
    """Each name of HETCCL_IB_HCA is a device of this host, and its port one of the device's. Raises ValueError."""
    asked = f"HETCCL_IB_HCA={config.names_text((names, excluded))}"
    numbers = {}
    for port in ports:
        numbers.setdefault(port["device"], []).append(port["port"])
    if not numbers and not excluded:
        raise ValueError(f"{asked}: this host has no RDMA device{f' ({missing})' if missing else ''}")
    for name in names if numbers else ():
        device, _, number = name.partition(":")
        if device not in numbers:
            raise ValueError(f"{asked}: {device} is no RDMA device of this host; there are {', '.join(numbers)}")
        if number and int(number) not in numbers[device]:
            has = topology.format_cpulist(numbers[device])
            raise ValueError(f"{asked}: {device} has no port {number}; it has {has}")


def _why_not_named(port, choice, roots):
    if choice is None:
        return ""
    names, excluded = choice
    named = bool({port["device"], name_of(port)} & set(names))
    return "left out by HETCCL_IB_HCA" if named == excluded else ""


def _why_not_ready(port, value, roots):
    if port["state"] != "ACTIVE":
        return f"the port is {port['state'] or 'in an unknown state'}"
    if port["link_layer"] not in (gids.INFINIBAND, gids.ETHERNET):
        return f"its link layer is {port['link_layer'] or 'unknown'}, neither InfiniBand nor Ethernet"
    if port["link_layer"] == gids.INFINIBAND and not port["lid"]:
        return "it has no LID: no subnet manager has set it up"
    return ""


def _why_no_gid(port, index, roots):
    if entries(port, index):
        return ""
    has = [f"{entry['index']} {gid_text(entry['gid'])} ({entry['type']})" for entry in port["gids"][:_LISTED]]
    more = f" and {len(port['gids']) - _LISTED} more" if len(port["gids"]) > _LISTED else ""
    listed = f"{', '.join(has)}{more}" if has else "none"
    if index is None:
        return f"none of its GIDs is routable ({listed}); HETCCL_IB_GID_INDEX can name one all the same"
    if index >= port["ngids"]:
        return f"its GIDs have {_indices(port['ngids'])}; in use: {listed}"
    return f"its GID {index} is empty; in use: {listed}"


def _indices(length):
    return f"the indices 0 to {length - 1}" if length > 1 else "index 0 only"


def _why_no_pkey(port, index, roots):
    if index >= port["npkeys"]:
        return f"its partition keys have {_indices(port['npkeys'])}"
    table = roots.sys / "class/infiniband" / port["device"] / "ports" / str(port["port"]) / "pkeys"
    try:
        key = int((table / str(index)).read_text(), 16)
    except (OSError, ValueError):
        return ""  # not shown here: the device itself will say
    return "" if key else f"its partition key {index} is empty"


def _why_no_queue(port, depth, roots):
    most = port["max_qp_wr"]
    return f"its send queues hold {most} work requests at most" if depth > most else ""
