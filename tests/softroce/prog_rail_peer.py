"""Inside a guest: the other process of a rail. It answers each write with one to place 4096 of the peer's memory.

usage: prog_rail_peer.py [--sleep]      --sleep: wait on the completion channel instead of polling
"""

import json
import select
import sys

from softroce.alone import End


def main():
    end = End("rxe1", nbytes=1 << 21)
    print(json.dumps({"local": end.rail.local(), "address": end.mr.address, "rkey": end.mr.rkey}), flush=True)
    peer = json.loads(sys.stdin.readline())
    end.rail.connect(peer["local"])
    print("connected", flush=True)
    while True:
        if not end.trial.poll() and "--sleep" in sys.argv and end.trial.arm() and not end.trial.poll():
            end.trial.sleep(0.1)
        for value in end.trial.take():
            piece = [(end.mr.address, 777, end.mr.lkey)]
            answer = end.trial.write(piece, peer["address"] + 4096, peer["rkey"], imm=value + 1)
            assert answer == "done", (answer, end.rail.fault())
        # The end of the input ends the process; nothing else is sent.
        if select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.readline():
            break
    end.close()


if __name__ == "__main__":
    main()
