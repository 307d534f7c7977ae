"""Rails over verbs on the fake libibverbs: calls that fail, asynchronous events, and devices that Soft-RoCE has not."""

import errno
import json

import pytest
from fake_verbs import needs_compiler, run

pytestmark = needs_compiler

HEAD = """
import mmap
from hetccl._rdma import RdmaPort
from hetccl._rail_trial import Trial

def card(device, gid_index=1):
    port = next(port for port in _verbs.devices() if port["device"] == device)
    gid = next(gid["gid"] for gid in port["gids"] if gid["index"] == gid_index)
    return {"device": device, "port": 1, "gid": gid, "gid_index": gid_index}

class End:
    def __init__(self, device="fake0", port=None, gid_index=1, **settings):
        self.port = port or RdmaPort(card(device, gid_index), receives=64, settings=settings)
        self.rail = self.port.rail(1, 0)
        self.trial = Trial(self.port, self.rail)
        self.memory = mmap.mmap(-1, 4096)

def connected(**options):
    a, b = End("fake0", **options), End("fake1", **options)
    a.rail.connect(b.rail.local())
    b.rail.connect(a.rail.local())
    a.mr, b.mr = a.trial.reg(a.memory), b.trial.reg(b.memory)
    return a, b

def write(a, b, nbytes=8, imm=1):
    return a.trial.write([(a.mr.address, nbytes, a.mr.lkey)] if nbytes else [], b.mr.address, b.mr.rkey, imm)
"""


def answer(body, **variables):
    """What a program that ends by printing JSON printed."""
    return json.loads(run(HEAD + "\n" + body, **variables))


@pytest.mark.parametrize(
    "call",
    ["query_device", "alloc_pd", "query_port", "create_comp_channel", "create_cq", "create_qp", "modify_qp"],
)
def test_a_call_that_fails_is_named_and_leaves_nothing(call):
    body = f"""
before = live()
cards = card("fake0")
fake.fakeverbs_fail(b"{call}=12")
error = raised(End)
fake.fakeverbs_fail(None)
import gc; gc.collect()
print(json.dumps([error, before, live()]))
"""
    if call in ("query_device", "query_port"):
        body = body.replace("raised(End)", "raised(RdmaPort, cards, receives=64)")
    else:
        body = body.replace("raised(End)", "raised(lambda: RdmaPort(cards, receives=64).rail(1, 0))")
    error, before, after = answer(body)
    assert error[0] == "VerbsError" and error[2] == f"ibv_{call}" and error[3] == errno.ENOMEM, error
    assert "fake0" in error[1] and "ENOMEM" in error[1]
    assert after == before


@pytest.mark.parametrize("nth, state", [(1, "RTR"), (2, "RTS")])
def test_a_connection_that_is_refused(nth, state):
    body = f"""
a, b = End("fake0"), End("fake1")
fake.fakeverbs_fail(b"modify_qp=22@{nth}")
error = raised(a.rail.connect, b.rail.local())
state = a.trial.state
fake.fakeverbs_fail(None)
for end in (a, b):
    end.rail.close()
    end.port.close()
print(json.dumps([error, state, live()["qp"]]))
"""
    error, before, nlive = answer(body)
    assert error[0] == "VerbsError" and error[2] == "ibv_modify_qp" and "rank 1" in error[1]
    assert before == "new" and nlive == 0


def test_a_rail_that_was_never_connected_is_closed_without_the_mutex():
    """The port is another thread's to poll meanwhile: what has come for other rails is left for that."""
    before, after = answer("""
a, b = End("fake0"), End(port=RdmaPort(card("fake1"), receives=50))
a.rail.connect(b.rail.local())
b.rail.connect(a.rail.local())
a.mr, b.mr = a.trial.reg(a.memory), b.trial.reg(b.memory)
other = b.port.rail(1, 1)
assert write(a, b, imm=7) == "done"
other.close()
before = b.trial.came
b.trial.poll()
print(json.dumps([before, b.trial.take()]))
""")
    assert (before, after) == (0, [7])


def test_memory_that_cannot_be_registered_is_staged():
    assert answer("""
a, b = connected()
fake.fakeverbs_fail(b"reg_mr=12")
print(json.dumps([a.trial.reg(mmap.mmap(-1, 4096)), a.trial.reg(mmap.mmap(-1, 4096), users=True)]))
""") == [None, None]


def test_inline_data_is_asked_for_in_steps():
    assert (
        answer("""
fake.fakeverbs_fail(b"create_qp=22@1")
end = End()
print(json.dumps(end.rail.attributes()["max_inline"]))
""")
        == 128
    )


def test_another_queue_where_one_cannot_grow():
    capacity, queues, first = answer("""
fake.fakeverbs_fail(b"resize_cq=38")
port = RdmaPort(card("fake0"), receives=64)
rails = [port.rail(1, 0)]
first = port.capacity
rails += [port.rail(1, i) for i in range(1, 4)]
print(json.dumps([port.capacity, live()["cq"], first]))
""")
    assert queues == 4 and capacity >= 4 * (64 + 32 + 256) > first


@pytest.mark.parametrize("minus_one", ["0", "1"])
def test_a_post_that_fails_ends_the_rail(minus_one):
    variables = {"FAKEVERBS_MINUS_ONE": "1"} if minus_one == "1" else {}
    first, second, fault, text = answer(
        """
a, b = connected()
fake.fakeverbs_fail(b"post_send=5")
print(json.dumps([write(a, b), write(a, b), a.trial.fault, a.rail.fault()]))
""",
        **variables,
    )
    assert (first, second) == (-7, -7) and fault == [2, errno.EIO] and "EIO" in text and "fake0 port 1" in text


@pytest.mark.parametrize("minus_one", ["0", "1"])
def test_a_queue_that_the_driver_calls_full_is_tried_again(minus_one):
    variables = {"FAKEVERBS_MINUS_ONE": "1"} if minus_one == "1" else {}
    assert answer(
        """
a, b = connected()
answers = [write(a, b)]
fake.fakeverbs_fail(b"post_send=12@1")
answers.append(write(a, b, imm=2))
a.trial.wait(10, completed=1)
answers += [a.trial.state, write(a, b, imm=2)]
b.trial.wait(10, came=2)
print(json.dumps([*answers, b.trial.take()]))
""",
        **variables,
    ) == ["done", "again", "up", "done", [1, 2]]


EVENTS = """
a, b = connected()
c = End("fake0", port=a.port)
other = End("fake0")
peers = [End("fake1", port=b.port), End("fake1", port=b.port)]
for end, peer in zip((c, other), peers):
    end.rail.connect(peer.rail.local())
    peer.rail.connect(end.rail.local())
ends = {"a": a, "c": c, "other": other, "b": b}
for end in ends.values():
    while not end.trial.arm(): end.trial.poll()
def told():
    for end in (a, other, b):
        end.trial.arm()
        end.trial.poll()
    return {name: end.trial.fault for name, end in ends.items() if end.trial.fault}
"""


def test_a_device_that_fails_ends_its_rails_of_all_ports():
    faults, text, states = answer(
        EVENTS
        + """
fake.fakeverbs_event(b"fake0", 8, 0, 0)
woken = a.trial.sleep(10)
print(json.dumps([told(), a.rail.fault(), [woken, b.trial.state, write(a, b)]]))
"""
    )
    assert faults == {name: [3, 8] for name in ("a", "c", "other")}
    assert "DEVICE_FATAL" in text and "fake0" in text
    assert states == [True, "up", -7]


def test_an_event_of_a_queue_pair_ends_its_rail_alone():
    faults, text = answer(
        EVENTS
        + """
fake.fakeverbs_event(b"fake0", 3, 0, c.rail.local()["qpn"])
print(json.dumps([told(), c.rail.fault()]))
"""
    )
    assert faults == {"c": [3, 3]} and "QP_ACCESS_ERR" in text


def test_another_ports_event_wakes_its_sleeper():
    """The thread of one port reads the events of all."""
    assert answer(
        EVENTS
        + """
fake.fakeverbs_event(b"fake0", 1, 0, other.rail.local()["qpn"])
a.trial.arm()
print(json.dumps([other.trial.sleep(10), told()]))
"""
    ) == [True, {"other": [3, 1]}]


@pytest.mark.parametrize("event", [10, 9, 4, 16, 18], ids=["PORT_ERR", "PORT_ACTIVE", "COMM_EST", "LAST_WQE", "GID"])
def test_events_that_end_nothing(event):
    assert answer(
        EVENTS
        + f"""
fake.fakeverbs_event(b"fake0", {event}, 1, a.rail.local()["qpn"] if {event} in (4, 16) else 0)
print(json.dumps([told(), write(a, b)]))
"""
    ) == [{}, "done"]


INFINIBAND = "device=fake{0} link=1 lid={1} sm_lid=1 gid=0/{2}/0/0"


@pytest.mark.parametrize(
    "second, is_global", [("fe80000000000000", 0), ("fe80000000000001", 1)], ids=["one subnet", "two subnets"]
)
def test_infiniband(second, is_global):
    gids = ("fe80000000000000" + "0" * 15 + "1", second + "0" * 15 + "2")
    devices = " ".join(INFINIBAND.format(i, 5 + i, gid) for i, gid in enumerate(gids))
    attributes, text, answered = answer(
        """
a, b = connected(gid_index=0, sl=3)
print(json.dumps([a.rail.attributes(), a.rail.describe(), write(a, b)]))
""",
        FAKEVERBS_DEVICES=devices,
    )
    assert (attributes["is_global"], attributes["dlid"], attributes["sl"]) == (is_global, 6, 3)
    assert text == "fake0 port 1, LID 5" and answered == "done"


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"qpn": -1}, "qpn"),
        ({"qpn": 1 << 24}, "qpn"),
        ({"psn": "7"}, "psn"),
        ({"psn": True}, "psn"),
        ({"lid": 70000}, "lid"),
        ({"mtu": 100}, "mtu"),
        ({"mtu": 1000}, "mtu"),
        ({"gid": "zz" * 16}, "gid"),
        ({"gid": "00" * 15}, "gid"),
        ({"more": 1}, "remote"),
        (None, "remote"),
        ([], "remote"),
    ],
)
def test_a_record_that_is_none_of_a_peers(changed, words):
    error, state = answer(f"""
a, b = End("fake0"), End("fake1")
changed = {changed!r}
remote = {{**b.rail.local(), **changed}} if isinstance(changed, dict) else changed
print(json.dumps([raised(a.rail.connect, remote), a.trial.state]))
""")
    assert error[0] == "ValueError" and words in error[1] and state == "new"


def test_twice():
    errors, states = answer("""
a, b = connected()
errors = [raised(a.rail.connect, b.rail.local()), raised(a.port.close)]
a.mr.dereg()
a.rail.close()
a.rail.close()
a.port.close()
a.port.close()
errors += [raised(a.rail.local), raised(a.port.rail, 1, 0)]
print(json.dumps([errors, a.trial.state]))
""")
    assert [error[0] for error in errors] == ["ValueError"] * 4
    assert states == "closed"
