"""The other process of runtime_checks.between_processes: python runtime_peer.py runtime library device handle bytes."""

import ctypes
import importlib
import sys

from runtime_table import Table


def main(name, library, device, handle, expected):
    runtime = importlib.import_module(f"hetccl._{name}").open(library)
    with Table(runtime, int(device)) as table:
        stream = table.made("stream_create")
        pointer = ctypes.c_void_p()
        table("ipc_open", bytes.fromhex(handle), ctypes.byref(pointer))
        got = table.get(pointer.value, len(expected) // 2, stream)
        assert got.tobytes() == bytes.fromhex(expected)
        table("fill_async", pointer.value, 0x77, 1, got.nbytes, stream)
        table("stream_synchronize", stream)
        table("ipc_close", pointer.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
