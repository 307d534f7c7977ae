"""The checks of tests/softroce/check_rails.py on the fake libibverbs: what the kernel's tools tell and do there, the
fake's functions tell and do here. Arguments: softroce.alone.run_checks."""

import ctypes
import re

from fake_verbs import KINDS

from softroce import alone

fake = ctypes.CDLL("libibverbs.so.1")


def resources():
    """As softroce.alone's, without contexts: devices stay open."""
    return {
        device: {kind: fake.fakeverbs_live(kind.encode(), device.encode()) for kind in KINDS[1:]}
        for device in ("rxe0", "rxe1")
    }


def shell(command):
    """A cable is pulled or plugged in; nothing else can be done to the fake."""
    port, state = re.fullmatch(r"ip link set port(\d) (up|down)", command).groups()
    assert fake.fakeverbs_cut(f"rxe{port}".encode(), state == "down") == 0


if __name__ == "__main__":
    alone.resources, alone.shell = resources, shell
    from softroce import check_rails

    alone.run_checks(vars(check_rails))
