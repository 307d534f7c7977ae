"""The environment of hetccl: every variable it reads, checked, and its logging. Nothing else reads the environment.

The fields of Config are the table: name, type, default and meaning are written here alone, and the documentation is
tested against them. Read once per communicator, when it is built.
"""

import contextlib
import difflib
import logging
import math
import os
import re
from dataclasses import dataclass, field, fields

PREFIX = "HETCCL_"
LOGGER = logging.getLogger("hetccl")
# Silent unless the user asks: without a handler of its own, logging would print warnings to stderr.
LOGGER.addHandler(logging.NullHandler())

# Suffixes of sizes, in bytes.
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Type:
    """How a variable's text becomes a value: `words` for people; parse returns the value or raises ValueError."""

    def __init__(self, words, parse):
        self.words = words
        self.parse = parse


def _seconds(text):
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _size(text):
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)(i?B)?", text)
    if match is None:
        raise ValueError
    return int(match[1]) * UNITS[match[2]]


def _matching(pattern, convert):
    def parse(text):
        if re.fullmatch(pattern, text) is None:
            raise ValueError
        return convert(text)

    return parse


def _or_auto(kind):
    """The same type, or "auto": None, which leaves the choice to hetccl."""
    return Type(f"{kind.words}, or auto", lambda text: None if text == "auto" else kind.parse(text))


def _choice(*names):
    return Type(" or ".join(names), _matching("|".join(names), str))


def _between(least, most):
    def parse(text):
        value = int(text) if re.fullmatch("[0-9]{1,18}", text) else least - 1
        if not least <= value <= most:
            raise ValueError
        return value

    return Type(f"whole number from {least} to {most}", parse)


def _names(text):
    """(names, whether they are those to leave out)"""
    listed = text.removeprefix("^").split(",")
    if not all(re.fullmatch(r"[A-Za-z0-9_.@-]{1,64}(:[0-9]{1,3})?", name) for name in listed):
        raise ValueError
    return tuple(listed), text.startswith("^")


def names_text(value):
    """A value of DEVICES or INTERFACES as a user writes it, for messages."""
    names, excluded = value
    return "^" * excluded + ",".join(names)


def _transports(text):
    listed = text.split(",")
    if len(set(listed)) < len(listed) or not set(listed) <= {"shm", "verbs", "tcp"}:
        raise ValueError
    return tuple(listed)


SECONDS = Type("seconds above 0, such as 300 or 0.5", _seconds)
SIZE = Type("bytes above 0, such as 65536, 256K or 1M", _size)
COUNT = Type("whole number from 0", _matching("[0-9]{1,18}", int))
FLAG = Type("0 or 1", _matching("[01]", lambda text: text == "1"))
LABEL = Type("1 to 64 characters, none of them a space", _matching(r"[^\s\x00-\x1f\x7f]{1,64}", str))
NAME = Type("auto, or a name of lower-case letters, digits and _", _matching("[a-z][a-z0-9_]*", str))
TEXT = Type("text", str)
TRANSPORTS = _or_auto(Type("shm, verbs, tcp or several of them with commas", _transports))
DEVICES = Type("names of RDMA devices with commas, each perhaps with :port", _names)
INTERFACES = Type("names of network interfaces with commas", _names)
# An empty name would open the program itself.
FILE = Type("path or name of a file", _matching(r"[^\x00]+", str))


def _variable(kind, default, meaning, name=None):
    """A field of Config; default is text as a user would write it, None for a variable that is simply not set."""
    value = None if default is None else kind.parse(default)
    return field(default=value, metadata={"name": name, "type": kind, "default": default, "meaning": meaning})


@dataclass(frozen=True)
class Config:
    """What the environment asks for; `Config()` holds the defaults."""

    timeout: float = _variable(
        SECONDS, "300", "How long a wait for another rank may last before it raises `CommTimeout`."
    )
    log: str | None = _variable(_choice("info", "debug"), None, "Log to stderr at this level.")
    island: str | None = _variable(
        LABEL, None, "The rank's island: ranks of one vendor with different labels are kept apart."
    )
    check: bool = _variable(
        FLAG, "0", "Compare call, op, count, dtype and root across ranks at every call, and name the ranks that differ."
    )
    algorithm: str = _variable(NAME, "auto", "The plan's algorithm; `python -m hetccl plan` lists the names.")
    single_copy: str = _variable(
        _choice("auto", "off"), "auto", "Whether large host messages are read straight from the sender's memory."
    )
    spin_us: int | None = _variable(
        _or_auto(COUNT),
        "auto",
        "Microseconds a wait stays awake, at last yielding its core, before it sleeps; auto: 1000.",
    )
    ring_bytes: int | None = _variable(
        _or_auto(SIZE), "auto", "Size of the shared-memory ring of each ordered pair of ranks."
    )
    transport: tuple | None = _variable(
        TRANSPORTS,
        "auto",
        "How ranks may reach each other; auto: shm on one host, else verbs, else tcp.",
    )
    rails: int = _variable(_between(1, 4), "4", "Most NIC ports that one pair of ranks uses.")
    eager_bytes: int | None = _variable(
        _or_auto(SIZE),
        "auto",
        "Largest message that goes through the receiver's inbox, over verbs and tcp; auto: 32768.",
    )
    ib_hca: tuple | None = _variable(
        DEVICES, None, "The RDMA devices that may be used, such as mlx5_0,mlx5_1:1; ^ before the list: all but these."
    )
    ib_gid_index: int | None = _variable(
        _or_auto(_between(0, 1023)), "auto", "Index of the GID; auto: a routable RoCE v2 one, chosen for each port."
    )
    ib_tc: int = _variable(_between(0, 255), "0", "Traffic class of verbs packets.")
    ib_sl: int = _variable(_between(0, 15), "0", "Service level of verbs packets.")
    ib_pkey: int = _variable(_between(0, 65535), "0", "Index of the partition key.")
    ib_timeout: int = _variable(
        _between(1, 31), "18", "Local ACK time-out of a queue pair: 4.096 us x 2^value, before it sends again."
    )
    ib_retry_cnt: int = _variable(
        _between(0, 7), "6", "How often a queue pair sends again before the connection counts as lost."
    )
    ib_rnr_retry: int = _variable(
        _between(0, 7), "6", "How often a queue pair sends again to a receiver that was not ready; 7: without end."
    )
    ib_min_rnr_timer: int = _variable(
        _between(0, 31), "12", "What a receiver that is not ready asks the sender to wait, in the code of verbs."
    )
    ib_send_queue: int = _variable(_between(8, 16384), "256", "Depth of a queue pair's send queue.")
    socket_ifname: tuple | None = _variable(
        INTERFACES,
        None,
        "Network interfaces of TCP connections, such as eth0,ib0; ^ before the list: all but these.",
    )
    tcp_connections: int = _variable(
        _between(1, 16), "2", "TCP connections for the data of each pair of ranks that uses tcp."
    )
    verbs_lib: str | None = _variable(FILE, None, "libibverbs, instead of libibverbs.so.1.")
    host_ccl: str = _variable(
        _choice("own", "oneccl"), "own", "Who runs collectives of host buffers inside an island: hetccl, or oneCCL."
    )
    cuda_lib: str | None = _variable(FILE, None, "The CUDA driver library, instead of libcuda.so.1.")
    nccl_lib: str | None = _variable(FILE, None, "NCCL, instead of a wheel's or the system's.")
    hip_lib: str | None = _variable(FILE, None, "The HIP runtime, instead of a wheel's or the system's.")
    rccl_lib: str | None = _variable(FILE, None, "RCCL, instead of a wheel's or the system's.")
    oneccl_lib: str | None = _variable(FILE, None, "oneCCL, instead of a wheel's or the system's.")
    cuda_visible_devices: str | None = _variable(
        TEXT, None, "The NVIDIA devices of the process, as CUDA reads it; empty: none.", "CUDA_VISIBLE_DEVICES"
    )
    hip_visible_devices: str | None = _variable(
        TEXT, None, "The AMD devices of the process, as HIP reads it; empty: none.", "HIP_VISIBLE_DEVICES"
    )
    rocr_visible_devices: str | None = _variable(
        TEXT, None, "The AMD devices of the process, as ROCr reads it; empty: none.", "ROCR_VISIBLE_DEVICES"
    )


def variables():
    """Return {environment name: dataclass field}; a field's metadata holds "type", "default" and "meaning"."""
    return {f.metadata["name"] or PREFIX + f.name.upper(): f for f in fields(Config)}


def load(environ=os.environ):
    """Read and check all variables.

    environ : mapping of str to str
    Raises  : ValueError, one line for each HETCCL_* variable that is unknown (with the nearest name) or malformed
    """
    known = variables()
    problems = [_unknown(name, known) for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    values = {}
    for name, f in known.items():
        if name not in environ:
            continue
        kind = f.metadata["type"]
        try:
            values[f.name] = kind.parse(environ[name])
        except ValueError:
            problems.append(f"{name}={environ[name]!r} is not valid: give {kind.words}, or unset it")
    if problems:
        raise ValueError("\n".join(problems))
    return Config(**values)


def _unknown(name, known):
    ours = [k for k in known if k.startswith(PREFIX)]
    # Compared without the prefix: all names share it, so it would make everything look near.
    near = difflib.get_close_matches(name[len(PREFIX) :].upper(), [k[len(PREFIX) :] for k in ours], n=1, cutoff=0.5)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(ours)}"
    return f"{name} is not a variable of hetccl: {hint}"


def offer(values):
    """Set variables that another library reads, unless the user has set them. values : {name: str}."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def changed(name, value):
    """A block in which a variable has another value: communicators that it builds are built with that one."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Handler(logging.StreamHandler):
    """The handler of setup_logging, told from those that users attach."""


def setup_logging(level, rank):
    """Send what hetccl logs to stderr, each line with host and rank; a second call replaces the first.

    level : None (leave logging to the program) | "info" | "debug"
    rank  : int, the rank in the job
    """
    for handler in [h for h in LOGGER.handlers if isinstance(h, _Handler)]:
        LOGGER.removeHandler(handler)
    if level is None:
        return
    handler = _Handler()
    host = os.uname().nodename.replace("%", "%%")
    handler.setFormatter(logging.Formatter(f"%(asctime)s hetccl {host} rank {rank} %(levelname)s: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(level.upper())
