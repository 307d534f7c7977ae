"""Prints, as JSON, what a libamdhip64 answers to the calls that every program begins with. usage: ... <library>"""

import ctypes
import json
import sys


def main(path):
    hip = ctypes.CDLL(path)
    number, text, place = ctypes.c_int(-1), ctypes.create_string_buffer(64), ctypes.c_void_p()
    calls = {
        "hipGetDeviceCount": lambda: hip.hipGetDeviceCount(ctypes.byref(number)),
        "hipInit": lambda: hip.hipInit(0),
        "hipSetDevice": lambda: hip.hipSetDevice(0),
        "hipMalloc": lambda: hip.hipMalloc(ctypes.byref(place), ctypes.c_size_t(64)),
        "hipHostMalloc": lambda: hip.hipHostMalloc(ctypes.byref(place), ctypes.c_size_t(64), 0),
        "hipDeviceGetPCIBusId": lambda: hip.hipDeviceGetPCIBusId(text, len(text), 0),
        "hipStreamCreateWithFlags": lambda: hip.hipStreamCreateWithFlags(ctypes.byref(place), 1),
    }
    answers = {name: call() for name, call in calls.items()}
    devices = number.value
    answers["hipRuntimeGetVersion"] = hip.hipRuntimeGetVersion(ctypes.byref(number))
    print(json.dumps({"answers": answers, "devices": devices, "version": number.value}))


if __name__ == "__main__":
    main(sys.argv[1])
