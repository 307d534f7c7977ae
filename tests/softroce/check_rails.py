"""Inside a guest: rails over verbs by themselves, between two devices of one process, and between two processes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hetccl._rdma import RdmaPort
from softroce.alone import (
    ENDLESS,
    FAST_FAILURE,
    WAIT_S,
    End,
    card,
    drive,
    loss,
    pair,
    post,
    resources,
    run_checks,
    shell,
)

HERE = Path(__file__).resolve().parent
# enum ibv_wc_status
RETRY_EXC, REM_ACCESS, FLUSH, RNR_RETRY_EXC = 12, 10, 5, 13
WC = 1
# HETCCL_ENETWORK of rail.h: what write() answers on a rail that has failed
LOST = -7
GUARD = 0xA5


def pattern(nbytes, seed):
    """Bytes that differ by place and seed."""
    return bytes((i * 7 + i // 251 + seed) % 256 for i in range(nbytes))


def check_immediate_values_in_order():
    with pair() as (a, b):
        values = [(i * 0x9E3779B1) % (1 << 32) for i in range(2000)]
        for value in values:
            post(a, b, imm=value)
        drive(a, b, until=lambda: b.trial.came == len(values))
        assert b.trial.take() == values
        drive(a, b, until=lambda: a.trial.counts[1] == len(values))


def check_ten_thousand_writes_over_a_short_queue():
    with pair(send_queue=16) as (a, b):
        a.memory[:64] = pattern(64, 3)
        refused = 0
        for i in range(10000):
            answer = a.write(b, 64 if i % 3 else 0, target=64 * (i % 64), imm=i if i % 5 == 0 else None)
            while answer == "again":
                refused += 1
                a.trial.poll()
                b.trial.poll()
                answer = a.write(b, 64 if i % 3 else 0, target=64 * (i % 64), imm=i if i % 5 == 0 else None)
            assert answer == "done", a.rail.fault()
            posted, completed = a.trial.counts
            assert posted - completed <= 16 and a.trial.room == 16 - (posted - completed)
        assert refused > 0
        drive(a, b, until=lambda: a.trial.counts[1] == 10000 and b.trial.came == 2000)
        assert b.trial.take() == list(range(0, 10000, 5))
        assert b.memory[: 64 * 64] == pattern(64, 3) * 64


def check_last_write_completes_without_others():
    with pair() as (a, b):
        for i in range(3):
            post(a, b, 100, imm=None)
            assert a.trial.wait(WAIT_S, completed=i + 1), a.rail.fault()


def check_sizes():
    with pair(nbytes=1 << 21) as (a, b):
        inline = a.rail.attributes()["max_inline"]
        for nbytes in (0, 1, 3, inline - 1, inline, inline + 1, 511, 512, 513, 4095, 4096, 4097, 1 << 20):
            a.memory[5 : 5 + nbytes] = pattern(nbytes, nbytes)
            b.memory[:] = bytes([GUARD]) * len(b.memory)
            post(a, b, nbytes, source=5, target=333, imm=nbytes)
            drive(a, b, until=lambda: b.trial.came > 0 and b.trial.take() == [nbytes])  # noqa: B023
            end = 333 + nbytes
            assert b.memory[333:end] == pattern(nbytes, nbytes), nbytes
            assert set(b.memory[:333]) == {GUARD} and set(b.memory[end : end + 4096]) == {GUARD}, nbytes


def check_two_pieces():
    with pair() as (a, b):
        a.memory[:20000] = pattern(20000, 1)
        for first, second in ((1, 1), (100, 156), (100, 157), (7, 9000)):
            pieces = [(a.mr.address + 11, first, a.mr.lkey), (a.mr.address + 10000, second, a.mr.lkey)]
            assert a.trial.write(pieces, b.mr.address + 99, b.mr.rkey, imm=second) == "done"
            drive(a, b, until=lambda: b.trial.take() == [second])  # noqa: B023
            assert (
                b.memory[99 : 99 + first + second]
                == pattern(20000, 1)[11 : 11 + first] + (pattern(20000, 1)[10000 : 10000 + second])
            )


def check_bytes_are_there_with_the_value():
    with pair(nbytes=1 << 20) as (a, b):
        for i in range(1, 40):
            a.memory[:] = bytes([i]) * len(a.memory)
            post(a, b, 1 << 19)
            post(a, b, 1 << 19, source=1 << 19, target=1 << 19, imm=i)
            drive(a, b, until=lambda: b.trial.take() == [i])  # noqa: B023
            assert b.memory[0] == b.memory[(1 << 19) - 1] == b.memory[1 << 19] == b.memory[-1] == i


def check_both_directions_at_once():
    with pair() as (a, b):
        for i in range(3000):
            post(a, b, 32, imm=i)
            post(b, a, 32, imm=i + 7)
        drive(a, b, until=lambda: a.trial.came == b.trial.came == 3000)
        assert b.trial.take() == list(range(3000)) and a.trial.take() == list(range(7, 3007))


def check_attributes():
    # rxe has no service levels, and gives 0 back.
    settings = dict(tc=104, sl=3, timeout=15, retry_cnt=5, rnr_retry=4, min_rnr_timer=9, send_queue=77)
    with pair(**settings) as (a, b):
        found, remote = a.rail.attributes(), b.rail.local()
        expected = dict(state=3, path_mtu=4096, timeout=15, retry_cnt=5, rnr_retry=4, min_rnr_timer=9, port=1)
        expected |= dict(traffic_class=104, sgid_index=1, dgid=remote["gid"], is_global=1, pkey_index=0, access=2)
        expected |= dict(dest_qp_num=remote["qpn"], rq_psn=remote["psn"], sq_psn=a.rail.local()["psn"], hop_limit=64)
        wrong = {name: (found[name], value) for name, value in expected.items() if found[name] != value}
        assert not wrong, wrong
        assert found["max_send_wr"] >= 77 and found["max_recv_wr"] >= 64
        assert found["max_inline"] == 256
        assert a.rail.describe() == "rxe0 port 1, GID ::ffff:10.99.0.1 (index 1)"


def check_wrong_key():
    with pair() as (a, b):
        assert a.write(b, 64, rkey=b.mr.rkey ^ 0x5500) == "done"
        assert a.trial.wait_failed(WAIT_S)
        assert a.trial.fault == (WC, REM_ACCESS), a.rail.fault()
        assert "REM_ACCESS_ERR" in a.rail.fault() and "rank 1" in a.rail.fault() and "rxe0" in a.rail.fault()
        assert a.write(b, 64) == LOST
        assert b.trial.wait_failed(WAIT_S), "the peer's queue pair is in the error state, too"
        assert b.memory[:64] == bytes(64)


def check_outside_of_the_memory():
    with pair() as (a, b):
        assert a.write(b, 64, target=len(b.memory) - 63) == "done"
        assert a.trial.wait_failed(WAIT_S)
        assert a.trial.fault == (WC, REM_ACCESS)
        assert b.memory[-64:] == bytes(64)


def check_wrong_local_key():
    with pair() as (a, b):
        a.trial.write([(a.mr.address, 4096, a.mr.lkey ^ 0x5500)], b.mr.address, b.mr.rkey, 1)
        assert a.trial.wait_failed(WAIT_S)
        assert a.trial.fault[0] == WC and a.rail.fault()


def check_forced_to_error():
    with pair() as (a, b):
        post(a, b, 64, imm=1)
        drive(a, b, until=lambda: b.trial.came == 1)
        a.rail.stop()
        assert a.trial.wait_failed(WAIT_S), "its receives are flushed"
        assert a.trial.fault == (WC, FLUSH)
        assert a.write(b, 64) == LOST


def check_forced_to_error_with_work():
    with pair(send_queue=64) as (a, b):
        for i in range(40):
            a.write(b, 1 << 16, imm=i)
        a.rail.stop()
        assert a.trial.wait_failed(WAIT_S)
        # What has arrived comes first, in order, and nothing twice.
        time.sleep(0.2)
        b.trial.poll()
        values = b.trial.take()
        assert values == list(range(len(values)))


def check_peer_closed():
    with pair(**FAST_FAILURE) as (a, b):
        address, rkey = b.mr.address, b.mr.rkey
        b.close()
        assert a.trial.write([(a.mr.address, 64, a.mr.lkey)], address, rkey, imm=1) == "done"
        assert a.trial.wait_failed(WAIT_S)
        assert a.trial.fault == (WC, RETRY_EXC)
        assert "RETRY_EXC_ERR" in a.rail.fault() and "does not answer" in a.rail.fault()


def check_arrived_before_the_close():
    """What the peer had in its queue when it closed is taken in by close()."""
    with pair() as (a, b):
        for i in range(50):
            post(a, b, 8, imm=i)
        assert a.trial.wait(WAIT_S, completed=50)
        b.close()
        assert b.trial.take() == list(range(50))


def check_slow_receiver():
    """More values than the peer has receives for: the sender waits, and goes on when the peer takes them."""
    with pair(receives=16, send_queue=256, rnr_retry=7) as (a, b):
        for i in range(200):
            assert a.write(b, imm=i) == "done"
        time.sleep(0.5)
        assert a.trial.state == "up"
        drive(a, b, until=lambda: b.trial.came == 200)
        assert b.trial.take() == list(range(200))


def check_receiver_that_never_takes():
    with pair(receives=16, rnr_retry=1, min_rnr_timer=1) as (a, b):
        for i in range(200):
            assert a.write(b, imm=i) == "done"
        assert a.trial.wait_failed(WAIT_S)
        assert a.trial.fault == (WC, RNR_RETRY_EXC)


def check_sleep_and_wake():
    with pair() as (a, b):
        for i in range(200):
            while not b.trial.arm():
                b.trial.poll()
            while b.trial.poll():
                pass
            if i % 20 == 0:
                assert not b.trial.sleep(0.02), "nothing has come"
            post(a, b, 8, imm=i)
            assert b.trial.sleep(WAIT_S), f"not woken by value {i}"
            drive(a, b, until=lambda: b.trial.came == i + 1)  # noqa: B023
        assert b.trial.take() == list(range(200))


def check_sleeper_is_woken_by_a_failure():
    with pair() as (_, b):
        while not b.trial.arm():
            b.trial.poll()
        b.rail.stop()
        assert b.trial.sleep(WAIT_S)
        assert b.trial.wait_failed(WAIT_S)


def check_many_rails_of_a_port():
    """The completion queue grows with the rails; where it cannot, another one is made."""
    with contextlib.ExitStack() as stack:
        before = resources()
        ports = [RdmaPort(card(f"rxe{i}"), receives=500, settings={"send_queue": 256}) for i in range(2)]
        rails = []
        for _ in range(50):
            a, b = (End(f"rxe{i}", nbytes=4096, port=ports[i]) for i in range(2))
            stack.callback(a.close)
            stack.callback(b.close)
            a.rail.connect(b.rail.local())
            b.rail.connect(a.rail.local())
            rails.append((a, b))
        assert resources()["rxe0"]["cq"] > before["rxe0"]["cq"] + 1, "one queue cannot be so long on rxe"
        assert ports[0].capacity >= 50 * (500 + 32 + 256)
        for i, (a, b) in enumerate(rails):
            post(a, b, 8, imm=1000 + i)
        for i, (a, b) in enumerate(rails):
            drive(a, b, until=lambda trial=b.trial: trial.came == 1)
            assert b.trial.take() == [1000 + i]
    for port in ports:
        port.close()
    del ports, port, rails, a, b, stack
    assert resources() == before


def check_slots_are_used_again():
    """A rail that takes the place of a closed one gets nothing of the old one's."""
    before = resources()
    ports = [RdmaPort(card(f"rxe{i}"), receives=64) for i in range(2)]
    for i in range(30):
        a, b = (End(f"rxe{j}", nbytes=4096, port=ports[j]) for j in range(2))
        a.rail.connect(b.rail.local())
        b.rail.connect(a.rail.local())
        post(a, b, 8, imm=i)
        post(a, b, 8, imm=i + 100)
        drive(a, b, until=lambda trial=b.trial: trial.came >= 1)
        # The second value may be left in the queue of the port.
        a.close()
        b.close()
        assert b.trial.take()[0] == i
    for port in ports:
        port.close()
    del ports, port, a, b
    assert resources() == before


def check_refused_settings():
    for settings, words in (
        ({"pkey": 9}, "HETCCL_IB_PKEY: 9; rxe0 port 1 allows 0 to"),
        ({"send_queue": 1 << 24}, "HETCCL_IB_SEND_QUEUE"),
        ({"colour": 1}, "colour"),
    ):
        try:
            RdmaPort(card("rxe0"), receives=64, settings=settings)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{settings} was taken")
    for changed, words in (({"port": 2}, "ports 1 to 1"), ({"gid_index": 4000}, "gid_index: 4000")):
        try:
            RdmaPort({**card("rxe0"), **changed}, receives=64)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{changed} was taken")


def check_port_down_for_a_moment():
    with pair(timeout=18, retry_cnt=ENDLESS) as (a, b):
        shell("ip link set port1 down")
        for i in range(20):
            assert a.write(b, 4096, imm=i) == "done"
        time.sleep(0.5)
        a.trial.poll()
        assert a.trial.state == "up" and a.trial.counts[1] < 20
        shell("ip link set port1 up")
        drive(a, b, until=lambda: b.trial.came == 20 and a.trial.counts[1] == 20)
        assert b.trial.take() == list(range(20))


def check_port_down_for_too_long():
    with pair(**FAST_FAILURE) as (a, b):
        shell("ip link set port1 down")
        assert a.write(b, 4096, imm=1) == "done"
        failed = a.trial.wait_failed(WAIT_S)
        shell("ip link set port1 up")
        assert failed and a.trial.fault == (WC, RETRY_EXC), a.trial.fault
    with pair() as (a, b):
        post(a, b, 8, imm=5)
        drive(a, b, until=lambda: b.trial.take() == [5])


def check_loss_of_one_percent():
    _lossy(1, 300)


def check_loss_of_ten_percent():
    _lossy(10, 60)


def _lossy(percent, count):
    nbytes = 1 << 16
    with pair(nbytes=1 << 22, timeout=14, retry_cnt=ENDLESS) as (a, b), loss(percent, "nic0", "nic1"):
        for i in range(count):
            a.memory[:nbytes] = bytes([i % 256]) * nbytes
            post(a, b, nbytes, target=(i % 64) << 16, imm=i)
            drive(a, b, until=lambda: a.trial.counts[1] == b.trial.came == i + 1)  # noqa: B023
        assert b.trial.take() == list(range(count))
        for i in range(count - min(count, 64), count):
            at = (i % 64) << 16
            assert b.memory[at] == b.memory[at + nbytes - 1] == i % 256


def check_a_child_process_takes_nothing_away():
    with pair() as (a, b):
        post(a, b, 8, imm=1)
        child = os.fork()
        if child == 0:
            # Neither closing nor forgetting may reach the parent's queue pair.
            a.rail.close()
            a.port.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a.memory[:8] = b"afterall"
        post(a, b, 8, imm=2)
        drive(a, b, until=lambda: b.trial.came == 2)
        assert b.trial.take() == [1, 2] and b.memory[:8] == b"afterall"


@contextlib.contextmanager
def peer_process(end, *arguments):
    """Another process with an end on rxe1, connected to `end`; gives (process, address, rkey) of its memory."""
    command = [sys.executable, str(HERE / "prog_rail_peer.py"), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        hello = json.loads(process.stdout.readline())
        end.rail.connect(hello["local"])
        record = {"local": end.rail.local(), "address": end.mr.address, "rkey": end.mr.rkey}
        print(json.dumps(record), file=process.stdin, flush=True)
        assert process.stdout.readline() == "connected\n"
        yield process, hello["address"], hello["rkey"]
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def one_end(**options):
    before = resources()
    end = End("rxe0", **options)
    try:
        yield end
    finally:
        end.close()
    deadline = time.monotonic() + 10
    while resources() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert resources() == before


def check_two_processes():
    with one_end() as end, peer_process(end) as (process, address, rkey):
        for i in range(500):
            piece = pattern(777, i)
            end.memory[:777] = piece
            assert end.trial.write([(end.mr.address, 777, end.mr.lkey)], address, rkey, imm=i) == "done"
            assert end.trial.wait(WAIT_S, came=i + 1), end.rail.fault()
            assert end.memory[4096 : 4096 + 777] == piece, i
        assert end.trial.take() == [i + 1 for i in range(500)]
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


def check_two_processes_that_sleep():
    with one_end() as end, peer_process(end, "--sleep") as (process, address, rkey):
        for i in range(200):
            while not end.trial.arm():
                end.trial.poll()
            assert end.trial.write([(end.mr.address, 64, end.mr.lkey)], address, rkey, imm=i) == "done"
            while end.trial.came <= i:
                if not end.trial.poll():
                    assert end.trial.sleep(WAIT_S), i
                    while not end.trial.arm():
                        end.trial.poll()
        assert process.poll() is None


def check_killed_peer():
    with one_end(**FAST_FAILURE) as end, peer_process(end) as (process, address, rkey):
        process.kill()
        process.wait()
        end.trial.write([(end.mr.address, 64, end.mr.lkey)], address, rkey, imm=1)
        assert end.trial.wait_failed(WAIT_S)
        assert end.trial.fault == (WC, RETRY_EXC)


def check_killed_peer_in_mid_transfer():
    with one_end(nbytes=1 << 22, **FAST_FAILURE) as end, peer_process(end) as (process, address, rkey):
        piece = [(end.mr.address, 1 << 20, end.mr.lkey)]
        # Written until it fails: whenever the peer's end comes, some writes are under way.
        deadline, done = time.monotonic() + 60, 0
        while end.trial.state == "up" and time.monotonic() < deadline:
            done += end.trial.write(piece, address, rkey) == "done"
            end.trial.poll()
            if done == 8:
                process.kill()
        posted, completed = end.trial.counts
        assert end.trial.state != "up" and posted > completed, (posted, completed)
        assert end.trial.fault[0] == WC and end.rail.fault()


if __name__ == "__main__":
    run_checks(globals())
