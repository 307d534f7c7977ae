"""Prints, as JSON, what the compiled modules of AMD's bindings hold: enum values, and sizes and offsets of structs.

They were compiled by AMD against ROCm's own headers. Run with the bindings' folder on PYTHONPATH; no library of ROCm's
is loaded for it.
"""

import ctypes
import enum
import json

from rocm.bindings import hip, rccl

# Structs, and the fields whose places hetccl relies on.
STRUCTS = {
    "hipPointerAttribute_t": (hip, ("type", "device", "devicePointer", "hostPointer", "isManaged", "allocationFlags")),
    "hipIpcMemHandle_t": (hip, ()),
    "hipDeviceProp_t": (hip, ("gcnArchName",)),
    "ncclUniqueId": (rccl, ()),
    "ncclConfig_v22800": (
        rccl,
        ("size", "magic", "version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "splitShare"),
    ),
}
WORD = 4


def values(module):
    found = {name: value for name, value in vars(module).items() if type(value) is int}
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, enum.IntEnum)]
    return found | {name: int(value) for kind in kinds for name, value in kind.__members__.items()}


def layout(name, module, fields):
    """Each field's offset, as AMD's module reads it from memory whose every word says where it lies."""
    struct = getattr(module, name).allocate()
    size = struct.c_sizeof()
    numbers = b"".join(at.to_bytes(WORD, "little") for at in range(0, size, WORD))
    digits = b"".join(f"{at:04d}".encode() for at in range(0, size, WORD))
    offsets = {}
    for field in fields:
        text = isinstance(getattr(struct, field), str)
        ctypes.memmove(int(struct), digits if text else numbers, size)
        offsets[field] = int(getattr(struct, field)[:WORD]) if text else int(getattr(struct, field)) & 0xFFFFFFFF
        ctypes.memset(int(struct), 0, size)
    return {"size": size, "offsets": offsets}


def main():
    structs = {name: layout(name, *entry) for name, entry in STRUCTS.items()}
    print(json.dumps({"values": values(hip) | values(rccl), "structs": structs}))


if __name__ == "__main__":
    main()
