"""Messages of a wire between GPUs' memory and the host's, on the fake libibverbs and the fakes of CUDA and HIP.

Arguments: softroce.alone.run_checks; the environment says which fakes.
"""

import ctypes
import faulthandler
import os
import sys
from types import SimpleNamespace

import numpy as np
from gpu_wires import (
    AGAIN,
    CHUNK,
    COLLECTIVE,
    DONE,
    EDIRECT,
    ENETWORK,
    EPEER,
    FETCH,
    FLUSH,
    GUARD,
    LOOP,
    MANAGED,
    PAYLOAD,
    POINT_TO_POINT,
    REFUSED,
    RUNTIMES,
    SHM,
    SHORT,
    SIZES,
    TCP,
    Gpu,
    Host,
    Tracked,
    body,
    flushes,
    live,
    mend,
    net,
    places,
    registered,
    variables,
    verbs,
    windows,
)
from mailboxes import Group
from wires_over_tcp import nets

from hetccl._board import Board
from hetccl._engine import Engine
from hetccl._wire_device_trial import poll, quiet, shm_answers
from softroce import alone


def carry_all_sizes(kinds, nrails):
    with net(nrails=nrails) as it:
        for cls in (COLLECTIVE, POINT_TO_POINT):
            for seed, nbytes in enumerate(SIZES):
                it.carry(*places(kinds, nbytes), seed=seed, cls=cls)
        sender, receiver = it.counters(0), it.counters(1)
        small, large = (2 * sum(n for n in SIZES if (n <= PAYLOAD) == eager) for eager in (True, False))
        if kinds[0] != "host":
            assert (sender["gathered_out"], sender["direct_out"], sender["staged_out"]) == (small, large, 0)
        if kinds[1] != "host":
            assert (receiver["carried_in"], receiver["direct_in"], receiver["landed_in"]) == (small, large, 0)
        if nrails == 2:
            assert all(writes > 0 and nbytes > CHUNK for writes, nbytes in sender["rails"])


def check_gpu_to_gpu():
    carry_all_sizes(("cuda", "cuda"), 2)


def check_gpu_to_host():
    carry_all_sizes(("cuda", "host"), 2)


def check_host_to_gpu():
    carry_all_sizes(("host", "cuda"), 1)


def check_gpus_of_two_vendors():
    carry_all_sizes(("cuda", "hip"), 2)
    carry_all_sizes(("hip", "cuda"), 1)


def check_synchronous_and_empty():
    with net() as it:
        for nbytes in (1, PAYLOAD, CHUNK):
            it.carry(*places(("cuda", "cuda"), nbytes), sync=True)
        source, target = places(("cuda", "cuda"), 8)
        source.nbytes = target.nbytes = 0
        sent, got = it.message(0, False, source), it.message(1, True, target)
        it.settle()
        assert (sent.result, got.result) == (DONE, DONE)
        assert it.counters(0)["rts"] == 3


def check_many_at_once():
    """More messages than cells and places, of all sizes, both ways; and host messages between them."""
    with net() as it:
        made = []
        for seed in range(60):
            kinds = [("cuda", "cuda"), ("host", "cuda"), ("cuda", "host"), ("host", "host")][seed % 4]
            source, target = places(kinds, SIZES[seed * 5 % 7])
            source.put(body(seed, source.nbytes))
            rank = seed // 4 % 2
            made.append((rank, source, target, seed))
        rows = {}
        for rank, source, target, _ in made:
            rows.setdefault((rank, False), []).append(it.message(rank, False, source))
            rows.setdefault((1 - rank, True), []).append(it.message(1 - rank, True, target))
        it.messages = []
        for _ in range(20000):
            for wire in it.wires:
                poll(wire)
            for row in rows.values():
                for message in list(row):
                    status = message.advance()
                    assert status >= 0, (status, message.why)
                    if status == DONE:
                        row.remove(message)
                    elif not message.posted:
                        break
            if not any(rows.values()):
                break
        assert not any(rows.values())
        for _, source, target, seed in made:
            assert target.got() == bytes(body(seed, source.nbytes))


def check_set_aside():
    """Eager and announced messages that were taken out of the link before a receive was posted."""
    with net() as it:
        for seed, nbytes in enumerate(SIZES):
            for kinds in (("host", "cuda"), ("cuda", "cuda")):
                source, target = places(kinds, nbytes)
                source.put(body(seed, nbytes))
                sent = it.message(0, False, source)
                it.settle()
                got = it.message(1, True, target)
                assert got.set_aside()
                it.settle()
                assert (sent.result, got.result) == (DONE, DONE), (got.result, got.why)
                assert target.got() == bytes(body(seed, nbytes))


def check_freed_and_allocated_again():
    """At the same address, another allocation: new data, by a new registration."""
    with net() as it:
        for seed, nbytes in enumerate((100, 3000)):
            source, target = places(("cuda", "cuda"), nbytes)
            it.carry(source, target, seed=seed)
            before = [place.base for place in (source, target)]
            # Mapped where the first ones were, since nothing else is mapped between.
            for _ in range(2):
                source.free()
                source = Gpu(nbytes)
                target.free()
                target = Gpu(nbytes)
                it.carry(source, target, seed=seed + 10)
            assert {source.base, target.base} & set(before), "the addresses are not used again"


def check_ladder():
    for way in ("peermem", "none"):
        with registered(way), net(ask=False) as it:
            for nbytes in (5, 3000):
                source, target = places(("cuda", "cuda"), nbytes)
                windows(source, target)
                can, why = it.wires[1].direct(0, target.runtime, target.address, nbytes)
                if way == "peermem":
                    assert (can, why) == (True, "") and it.wires[0].direct(1, source.runtime, source.address, 1)[0]
                    it.carry(source, target)
                    continue
                assert not can and "gdr2" in why and "dma-buf" in why, why
                # Not sent, and not copied: nothing has moved, and a staged message goes on.
                sent = it.message(0, False, source)
                it.settle()
                assert (sent.result, sent.why) == (EDIRECT, REFUSED)
                assert it.counters(0)["rails"] == it.counters(1)["rails"] or nbytes != 5
                host = it.message(0, False, Host(nbytes))
                it.settle()
                got = it.message(1, True, target)
                it.settle()
                assert (got.result, got.why) == (EDIRECT, REFUSED)
                # The message is still there, for a receive that the host can take.
                staged = it.message(1, True, Host(nbytes))
                it.settle()
                assert (host.result, staged.result) == (DONE, DONE)
        verbs.fakeverbs_fail(None)
        verbs.fakeverbs_no_gpu()


def check_shortage_of_one_device():
    """One rail's device has no room: the answer names it, nothing moves; later it does."""
    with net() as it:
        source, target = places(("cuda", "cuda"), 5000)
        with registered("dmabuf"):
            short = b"reg_dmabuf_mr=12@2,reg_dmabuf_mr=12@3"  # again, once all that can go has gone
            verbs.fakeverbs_fail(short)
            can, why = it.wires[1].direct(0, target.runtime, target.address, 5000)
            assert not can and "gdr3" in why and "no more memory" in why, why
            verbs.fakeverbs_fail(short)
            source.put(body(1, 5000))
            sent = it.message(0, False, source)
            it.settle()
            assert (sent.result, sent.why) == (EDIRECT, SHORT)
            verbs.fakeverbs_fail(None)
        it.carry(source, target)


def check_the_question():
    with net(ask=False) as it:
        gpu, managed, hip = Gpu(5000), Gpu(100, managed=True), Gpu(100, kind="hip")
        host = np.zeros(100, "u1")
        wire = it.wires[0]
        cases = [
            (gpu.runtime, gpu.address, 5000, ""),
            (gpu.runtime, gpu.base, 5000 + 2 * GUARD, ""),
            (gpu.runtime, gpu.address, 5000 + GUARD + 1, "mapped in pieces"),
            (managed.runtime, managed.address, 100, "managed"),
            (gpu.runtime, host.ctypes.data, 100, "not know it"),
            (gpu.runtime, hip.address, 100, "not know it"),
            (hip.runtime, hip.address, 100, ""),
        ]
        for runtime, address, nbytes, words in cases:
            can, why = wire.direct(1, runtime, address, nbytes)
            assert can == (words == "") and words in why, (words, why)
        for place, why in ((managed, MANAGED),):
            sent = it.message(0, False, place)
            it.settle()
            assert (sent.result, sent.why) == (EDIRECT, why)
        fetched = it.message(1, True, gpu)
        assert fetched.available() == EDIRECT and fetched.why == FETCH
        it.messages = []
        verbs.fakeverbs_fail(None)
        it.wires[0].lost(1, "gone")
        assert wire.direct(1, gpu.runtime, gpu.address, 10) == (False, "the peer is not connected")


def check_tcp():
    gpu = Gpu(5000)
    with nets() as make:
        it = make()
        it.connect()
        for wire, peer in zip(it.wires, (1, 0), strict=True):
            can, why = wire.direct(peer, gpu.runtime, gpu.address, 5000)
            assert not can and "not one of RDMA" in why, why
            for nbytes in (8, 5000):
                sent = Tracked(
                    wire, peer, False, POINT_TO_POINT, 7, None, runtime=gpu.runtime, address=gpu.address, nbytes=nbytes
                )
                assert (sent.advance(), sent.why) == (EDIRECT, TCP)


def check_shared_memory():
    """All that a link of one host can be asked."""
    gpu = Gpu(100)
    group = Group(2)
    assert shm_answers(group.segments[0], 1, gpu.runtime, gpu.address, 100) == [(EDIRECT, SHM)] * 4
    engine = Engine(Board(group.segments[0], 0, 2, (0, 1)), None)
    can, why = engine.direct(1, gpu.runtime, gpu.address, 100)
    assert not can and "shared memory" in why
    del engine
    group.close()


def check_the_engine_is_asked():
    gpu, group = Gpu(100), Group(1)
    with net() as it:
        network = SimpleNamespace(wire=it.wires[0], drop=lambda engine: None)
        engine = Engine(Board(group.segments[0], 0, 2, (0,)), network)
        assert engine.direct(1, gpu.runtime, gpu.address, 100) == (True, "")
        assert not engine.direct(1, gpu.runtime, gpu.address, 100 + GUARD + 1)[0]
        del engine
    group.close()


def check_without_a_loop():
    """Who has not asked before, or whose device gives no more queue pairs, is refused what needs one, and no more."""
    with net(ask=False) as it:
        source, target = places(("cuda", "cuda"), 50)
        source.put(body(1, 50))
        sent, got = it.message(0, False, source), it.message(1, True, target)
        it.settle()
        assert (sent.result, got.result, got.why) == (DONE, EDIRECT, LOOP)
        verbs.fakeverbs_fail(b"create_qp=12")
        can, why = it.wires[1].direct(0, target.runtime, target.address, 50)
        assert not can and "queue pair to itself" in why and "ENOMEM" in why, why
        verbs.fakeverbs_fail(None)
        assert it.wires[1].direct(0, target.runtime, target.address, 50) == (True, "")
        again = it.message(1, True, target)
        it.settle()
        assert again.result == DONE and target.got() == bytes(body(1, 50))


FLUSHED = {
    # (ordering, options, all_devices): what is done
    (100, 1, False): "nothing",
    (200, 1, True): "nothing",
    (200, 0, False): "nothing",
    (100, 1, True): "runtime",
    (0, 1, False): "runtime",
    (0, 3, True): "runtime",
    (0, 0, False): "read",
    (100, 2, True): "read",
    (0, -1, False): "read",
}


def check_flush():
    """By what the runtime says of the order; and what is received is seen when the receive is done, not before."""
    for (ordering, options, all_devices), way in FLUSHED.items():
        unseen = {} if way == "nothing" else {"FAKEVERBS_UNSEEN": 1}
        with variables(FAKE_CUDA_ORDERING=ordering, FAKE_CUDA_FLUSH=options, **unseen), net() as it:
            for seed, nbytes in enumerate((7, 20_001)):
                before, reads = flushes()[0], it.counters(1)["read_backs"]
                source, target = places(("host", "cuda"), nbytes)
                it.carry(source, target, seed=seed, all_devices=all_devices)
                count, device, scope = flushes()
                assert count - before == (way == "runtime"), (way, count - before)
                if way == "runtime":
                    assert (device, scope) == (1, 200 if all_devices else 100)
                    assert RUNTIMES["cuda"].device_current() == -1
                used = 1 if nbytes == 7 else 2
                assert it.counters(1)["read_backs"] - reads == (used if way == "read" else 0)


def check_done_only_after_the_read_back():
    """All bytes are here, and the read is under way: the receive is not done until it is complete."""
    with variables(FAKE_CUDA_ORDERING=0, FAKE_CUDA_FLUSH=0, FAKEVERBS_UNSEEN=1), net() as it:
        source, target = places(("host", "cuda"), 3000)
        source.put(body(3, 3000))
        sent, got = it.message(0, False, source), it.message(1, True, target)
        while it.counters(1)["read_backs"] == 0:
            assert target.got() != bytes(body(3, 3000))
            for message, rank in ((sent, 0), (got, 1)):
                poll(it.wires[rank])
                status = message.advance()
                assert message is sent or status != DONE
        while it.counters(1)["read_backs"] < 2:
            got.advance()
        for _ in range(5):
            assert got.advance() == AGAIN
        poll(it.wires[1])
        assert got.advance() == DONE
        assert target.got() == bytes(body(3, 3000))
        it.messages = [sent]
        it.settle()


def check_hip_is_read_back():
    with variables(FAKEVERBS_UNSEEN=1), net() as it:
        for nbytes in (9, 5001):
            it.carry(*places(("hip", "hip"), nbytes))
        assert it.counters(1)["read_backs"] == 3 and it.counters(1)["flushes"] == 0


def check_flush_that_fails():
    with variables(FAKE_CUDA_ORDERING=0), net() as it, variables(FAKE_CUDA_FAIL="cuFlushGPUDirectRDMAWrites=700"):
        for nbytes in (9, 5001):
            source, target = places(("host", "cuda"), nbytes)
            sent, got = it.message(0, False, source), it.message(1, True, target)
            it.settle()
            assert (sent.result, got.result, got.why) == (DONE, EDIRECT, FLUSH)
    with variables(FAKE_CUDA_ORDERING=0, FAKE_CUDA_FLUSH=0), net() as it:
        for nbytes in (9, 5001):
            source, target = places(("host", "cuda"), nbytes)
            sent, got = it.message(0, False, source), it.message(1, True, target)
            verbs.fakeverbs_fail(b"")
            if nbytes == 9:
                it.settle()
                assert got.result == DONE
                loops = [rail.loop() for rail in it.rails[1]]
                for loop in loops:
                    assert verbs.fakeverbs_break(loop.local()["qpn"]) == 0
                continue
            it.settle()
            assert (got.result, got.why) in ((EDIRECT, FLUSH), (EDIRECT, LOOP)), (got.result, got.why)
        verbs.fakeverbs_fail(None)


def check_rail_that_fails():
    """At each step of a message, each rail: resumed over the other; what was written through the one that failed is
    flushed through it all the same."""
    for index in (0, 1):
        for nbytes in (100, 20_001):
            for steps in range(0, 12, 1 if nbytes > 100 else 2):
                unseen = {"FAKE_CUDA_ORDERING": 0, "FAKE_CUDA_FLUSH": 0, "FAKEVERBS_UNSEEN": 1}
                with variables(**unseen), net() as it:
                    it.carry(*places(("cuda", "cuda"), 3000))
                    source, target = places(("cuda", "cuda"), nbytes)
                    source.put(body(5, nbytes))
                    sent, got = it.message(0, False, source), it.message(1, True, target)
                    for _ in range(steps):
                        if it.messages:
                            it.step()
                    rail = it.rails[steps % 2][index]
                    assert verbs.fakeverbs_break(rail.local()["qpn"]) == 0
                    for wire in it.wires:
                        poll(wire)
                    mend(it, index)
                    it.settle()
                    assert (sent.result, got.result) == (DONE, DONE), (index, nbytes, steps, got.result, got.why)
                    assert target.got() == bytes(body(5, nbytes))
                    it.carry(*places(("cuda", "cuda"), nbytes), seed=6)


def check_last_rail_that_fails():
    for steps in range(4):
        with net(nrails=1) as it:
            source, target = places(("cuda", "cuda"), 50_001)
            sent, got = it.message(0, False, source), it.message(1, True, target)
            for _ in range(steps):
                it.step()
            assert verbs.fakeverbs_break(it.rails[steps % 2][0].local()["qpn"]) == 0
            for wire in it.wires:
                poll(wire)
            mend(it, 0)
            it.settle()
            assert {sent.result, got.result} <= {DONE, ENETWORK}, (sent.result, got.result)
            assert steps > 1 or ENETWORK in (sent.result, got.result)
            assert it.wires[0].direct(1, source.runtime, source.address, 10) == (False, "the peer is not connected")


def check_peer_that_has_left():
    """What has come is delivered, into a GPU's memory too; then the peer is gone."""
    unseen = {"FAKE_CUDA_ORDERING": 0, "FAKE_CUDA_FLUSH": 0, "FAKEVERBS_UNSEEN": 1}
    with variables(**unseen), net() as it:
        for nbytes in (200, 3000):
            source, target = places(("host", "cuda"), nbytes)
            source.put(body(8, nbytes))
            if nbytes == 200:
                sent = it.message(0, False, source)
                it.settle()
                assert sent.result == DONE
                it.wires[1].lost(0, "it left")
            got = it.message(1, True, target)
            it.settle()
            assert got.result == (DONE if nbytes == 200 else EPEER)
            if nbytes == 200:
                assert target.got() == bytes(body(8, nbytes))


def check_quiet_and_nothing_left():
    before = live()
    with net() as it:
        for nbytes in (100, 5000):
            source, target = places(("cuda", "cuda"), nbytes)
            it.message(0, False, source), it.message(1, True, target)
            it.step()
        for wire in it.wires:
            quiet(wire)
        it.messages = []
    del it
    assert live() == before, (live(), before)


def check_the_guard():
    """The CPU really cannot touch it: a child that does dies of it."""
    gpu = Gpu(100)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.memmove(ctypes.create_string_buffer(10), gpu.address, 10)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11


if __name__ == "__main__":
    alone.run_checks(vars(sys.modules[__name__]))
