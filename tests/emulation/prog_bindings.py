"""AMD's own Python bindings on the emulated libraries. Prints JSON: what each call answered.

Run with the bindings' folder on PYTHONPATH and ROCM_PATH at a folder whose lib/ holds the libraries.
"""

import json

from rocm.bindings import hip, rccl


def main():
    version, id_code = rccl.ncclGetVersion(), rccl.ncclGetUniqueId()[0]
    answers = {
        "hipGetDeviceCount": [int(value) for value in hip.hipGetDeviceCount()],
        "hipRuntimeGetVersion": [int(value) for value in hip.hipRuntimeGetVersion()],
        "ncclGetVersion": [int(value) for value in version],
        "ncclGetUniqueId": int(id_code),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
