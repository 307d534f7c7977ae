"""Run a command on hosts that are namespaces of this machine: names, network, /dev/shm and semaphores of their own.

    python tests/hosts.py node0 node1 -- mpirun --host node0:2,node1:2 -n 4 python prog.py

The command runs on the first host; `on NAME COMMAND` runs one on another, and mpirun starts its ranks so. All hosts are
in one network of their own, without a way out. When the command ends, or this process is killed, every process on the
hosts ends. HOSTS in the command's environment names them. Where namespaces cannot be made (that takes root) the
command runs all the same, with the reason in NO_HOSTS, for its tests to be skipped with.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".sh")
PROGRAMS = ("unshare", "nsenter", "ip")
NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def reason_against():
    """Why there can be no hosts here; None where there can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: util-linux, iproute2)"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    trial = "mount -t tmpfs tmpfs /run && ip link add lan type bridge && ip link add end0 type veth peer name end1"
    done = subprocess.run([*NAMESPACES, "sh", "-c", trial], capture_output=True, text=True)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


def main():
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    names, command = arguments[:at], arguments[at + 1 :]
    if not names or not command:
        sys.exit(f"usage: {sys.argv[0]} NAME... -- COMMAND...")
    if reason := reason_against():
        os.environ["NO_HOSTS"] = reason
        os.execvp(command[0], command)
    os.environ["HOSTS"] = " ".join(names)
    os.execvp(NAMESPACES[0], [*NAMESPACES, "bash", str(SCRIPT), "all", " ".join(names), *command])


if __name__ == "__main__":
    main()
