"""Run one command in a small virtual machine whose kernel has Soft-RoCE (rdma_rxe) devices.

    python tests/softroce/vm.py --nics 2 -- ibv_devinfo
    python tests/softroce/vm.py --nodes 2 --nics 1 --rw build/out -- mpirun --host node0:2,node1:2 -n 4 python prog.py

The guest sees this machine's root file system; what it writes is thrown away, except in the folders of --rw. Exit
status: the command's (128+N if signal N ended it), 124 after its time, 125 when the guest failed, 130 interrupted.
"""

import argparse
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from softroce import image

HERE = Path(__file__).resolve().parent
# What the command has of this process's environment.
PASSED_ON = (
    *("PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH"),
    *("LANG", "LC_ALL", "TERM"),
)
BOOT_S = 300
TIMED_OUT, FAILED, INTERRUPTED = 124, 125, 130
# How much of each stream a Result keeps.
KEEP_BYTES = 1 << 20


class Options(NamedTuple):
    """nics: devices of each node · nodes: more than 1: hosts node0, node1 ...
    · mtu: of the links (9000: RDMA MTU 4096) · timeout: seconds for the command · rw: host folders that the guest may
    write · env: variables of the command · live: pass its output on to this process's own."""

    nics: int = 2
    nodes: int = 1
    mtu: int = 9000
    memory: str = "6G"
    cpus: int = 2
    timeout: float = 600
    rw: tuple = ()
    env: dict = {}
    live: bool = True


class Result(NamedTuple):
    """status: see above · text: the ends of what the command wrote to stdout and stderr, and why the guest failed."""

    status: int
    text: str


class GuestFailed(Exception):
    def __init__(self, message, status=FAILED):
        super().__init__(message)
        self.status = status


class Relay:
    """Passes on what the guest writes until the command has ended."""

    def __init__(self, qemu, ports, token, options):
        self.qemu, self.token, self.options = qemu, token, options
        self.events = selectors.DefaultSelector()
        for name in ("ctl", "out", "err"):
            self.events.register(ports[name], selectors.EVENT_READ, name)
        self.pending = dict.fromkeys(ports, b"")
        self.kept = {"out": bytearray(), "err": bytearray()}
        self.open = {"out": 1, "err": 2}
        self.status = None
        self.phase, self.limit_s = "boot", BOOT_S
        self.deadline = time.monotonic() + BOOT_S

    def run(self):
        """Return the command's exit status. Raises GuestFailed."""
        # Both streams end with the token, after all that the command wrote.
        while self.status is None or self.open:
            left = self.deadline - time.monotonic()
            if left <= 0 and self.status is not None:
                break
            if left <= 0:
                status = FAILED if self.phase == "boot" else TIMED_OUT
                raise GuestFailed(f"{self.phase} took more than {self.limit_s:.0f} s", status)
            ready = self.events.select(min(left, 1))
            if not ready and self.qemu.poll() is not None:
                raise GuestFailed(f"the VM ended during {self.phase} (QEMU's exit status {self.qemu.returncode})")
            for key, _ in ready:
                data = key.fileobj.recv(65536)
                if not data:
                    self.events.unregister(key.fileobj)
                elif key.data == "ctl":
                    self.control(data)
                elif self.output(key.data, data):
                    self.events.unregister(key.fileobj)
        return self.status

    def control(self, data):
        *lines, self.pending["ctl"] = (self.pending["ctl"] + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "ready":
                self.phase, self.limit_s = "the command", self.options.timeout
                self.deadline = time.monotonic() + self.limit_s
            elif word == "exit":
                self.status = int(rest)
                self.deadline = time.monotonic() + 10
            else:
                raise GuestFailed(line.decode())

    def output(self, name, data):
        """Pass data on; True at the stream's end."""
        text, end, _ = (self.pending[name] + data).partition(self.token)
        held = b""
        if not end:
            # What may be the token's beginning waits for the rest of it.
            at = text.rfind(self.token[:1])
            if at >= 0 and self.token.startswith(text[at:]):
                text, held = text[:at], text[at:]
        self.pending[name] = held
        self.kept[name] += text
        del self.kept[name][:-KEEP_BYTES]
        while text and self.options.live:
            text = text[os.write(self.open[name], text) :]
        if end:
            del self.open[name]
        return bool(end)

    def text(self):
        return "\n".join(bytes(self.kept[name]).decode(errors="replace") for name in ("out", "err")).strip()


def run(command, options=None):
    """Boot a guest, run a command in it (list of str), end the guest; the current folder is the command's.

    Returns: Result
    Raises : image.CannotPrepare
    """
    options = options or Options()
    ready = image.prepare()
    token = f"\0end-{secrets.token_hex(8)}\n"
    with tempfile.TemporaryDirectory(prefix="softroce-") as name:
        folder = Path(name)
        write_job(folder, ready, command, options, token.strip("\0\n"))
        pairs = {port: socket.socketpair() for port in ("ctl", "out", "err")}
        theirs = {port: pair[1] for port, pair in pairs.items()}
        with open(folder / "console", "a") as console:
            qemu = subprocess.Popen(
                qemu_command(folder, ready, options, theirs),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=[sock.fileno() for sock in theirs.values()],
                start_new_session=True,
            )
        for sock in theirs.values():
            sock.close()
        relay = Relay(qemu, {port: pair[0] for port, pair in pairs.items()}, token.encode(), options)
        try:
            return Result(relay.run(), relay.text())
        except GuestFailed as failure:
            words = f"softroce: {failure}\n{console_end(folder)}".rstrip()
            if options.live:
                print(words, file=sys.stderr, flush=True)
            return Result(failure.status, f"{relay.text()}\n{words}")
        finally:
            qemu.kill()
            qemu.wait()
            for pair in pairs.values():
                pair[0].close()


def write_job(folder, ready, command, options, token):
    """What the guest reads: guest.sh, its settings, and the command as a script."""
    (folder / "guest.sh").symlink_to(HERE / "guest.sh")
    rw = [Path(path).resolve() for path in options.rw]
    for path in rw:
        path.mkdir(parents=True, exist_ok=True)
    settings = {
        "HERE": HERE,
        "NODES": options.nodes,
        "NICS": options.nics,
        "MTU": options.mtu,
        "TOKEN": token,
        "MODULES": ready.folder / "lib/modules" / ready.version,
    }
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
    lines.append(f"RW=({' '.join(shlex.quote(str(path)) for path in rw)})")
    (folder / "settings").write_text("\n".join(lines) + "\n")
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in {**environ, **options.env}.items()]
    lines += [f"cd {shlex.quote(os.getcwd())} || exit {FAILED}", "exec " + shlex.join(map(str, command))]
    (folder / "command").write_text("\n".join(lines) + "\n")


def qemu_command(folder, ready, options, ports):
    # setpriv: a guest must not outlive whoever started it, however that one ends.
    command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    command += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(options.cpus)]
    command += ["-m", options.memory, "-no-user-config", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", f"file:{folder}/console", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
    command += ["-kernel", str(ready.folder / "kernel"), "-initrd", str(ready.folder / "initrd")]
    command += ["-append", f"console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable job={folder}"]
    share = "local,security_model=none,multidevs=remap"
    command += ["-virtfs", f"{share},path=/,mount_tag=root,readonly=on"]
    for i, path in enumerate(options.rw):
        escaped = str(Path(path).resolve()).replace(",", ",,")
        command += ["-virtfs", f"{share},path={escaped},mount_tag=rw{i}"]
    for name, sock in ports.items():
        command += ["-chardev", f"socket,id={name},fd={sock.fileno()}"]
        command += ["-device", f"virtserialport,chardev={name},name={name}"]
    return command


def console_end(folder, lines=25):
    """The last lines of the guest's console, without what only a terminal understands."""
    path = folder / "console"
    text = path.read_text(errors="replace") if path.exists() else ""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|\r", "", text).strip()
    return "the guest's console ends with:\n" + "\n".join(text.splitlines()[-lines:]) if text else ""


def parse(arguments):
    """(Options, command)"""
    defaults = Options()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nics", type=int, default=defaults.nics, help="RDMA devices of each node")
    parser.add_argument("--nodes", type=int, default=defaults.nodes, help="more than 1: hosts node0, node1 ...")
    parser.add_argument("--mtu", type=int, default=defaults.mtu, help="of the links; 9000: RDMA MTU 4096, 1500: 1024")
    parser.add_argument("--memory", default=defaults.memory, help="of the guest, such as 6G")
    parser.add_argument("--cpus", type=int, default=defaults.cpus)
    parser.add_argument("--timeout", type=float, default=defaults.timeout, help="seconds for the command")
    parser.add_argument("--rw", action="append", default=[], metavar="DIR", help="a folder that the guest may write")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the command")
    parser.add_argument("--setup", action="store_true", help="only fetch what is missing")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command and not given.setup:
        parser.error("no command")
    if not all("=" in item for item in given.env):
        parser.error("--env: NAME=VALUE")
    env = dict(item.split("=", 1) for item in given.env)
    values = {name: getattr(given, name) for name in ("nics", "nodes", "mtu", "memory", "cpus", "timeout")}
    return Options(**values, rw=tuple(given.rw), env=env), command


def main():
    options, command = parse(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        if not command:
            image.prepare()
            return 0
        return run(command, options).status
    except image.CannotPrepare as error:
        image.say(error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
