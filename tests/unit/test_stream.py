"""Which stream a call is queued on: the argument, the array library's current stream, and what must be waited for."""

import ctypes
import sys

import numpy as np
import pytest

from buffers import Cai, Dlpack0, Dlpack1, DlpackC, exchange_class, exchange_table, jax, torch
from fakes.arrays import Cuda
from fakes.build import build, compiler
from fakes.modules import Cupy, Stream, Torch
from hetccl import _cuda, _hip
from hetccl._stream import describe, dlpack_argument, follow
from hetccl.errors import GpuError

CUDA, HIP = 1, 2  # HETCCL_MEM_*

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler, which the fake driver needs")


@pytest.fixture(scope="module")
def runtime():
    return _cuda.open(build("fakecuda"))


@pytest.fixture
def hip():
    runtime = _hip.open(build("fakehip"))
    if "fakehip" not in runtime.library.path:
        pytest.skip(f"this process has a real library, {runtime.library.path}")
    return runtime


@pytest.fixture
def driver(runtime):
    """The fake driver with device 1 current."""
    driver = Cuda(runtime.library.path)
    if not hasattr(driver.library, "fakeCalls"):
        pytest.skip(f"{runtime.library.path} was loaded before: it is no fake")
    context = ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    driver.call("cuCtxSetCurrent", context)
    yield driver
    driver.call("cuCtxSetCurrent", None)


@pytest.fixture
def install(monkeypatch):
    def install(fake):
        for name, module in fake.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return fake

    return install


def fresh(cls, *args, **fields):
    """An object of a class of its own: what is remembered of a class must not leak from test to test."""
    return type(cls.__name__, (cls,), {})(np.arange(6, dtype="f4"), *args, **fields)


def handle(stream, runtime, obj=None, device=1):
    return describe(stream, fresh(Dlpack1, (2, 1)) if obj is None else obj, runtime, device)["handle"]


def protocol(answer):
    return type("S", (), {"__cuda_stream__": answer})()


HANDLES = [
    pytest.param(0, 0, id="default"),
    pytest.param(1, 0, id="legacy"),
    pytest.param(2, 2, id="per-thread"),
    pytest.param(0x7F0012345678, 0x7F0012345678, id="handle"),
    pytest.param(2**64 - 8, 2**64 - 8, id="high"),
    pytest.param(np.int64(24), 24, id="numpy"),
    pytest.param(Stream(ptr=32, device_id=1), 32, id="cupy"),
    pytest.param(Stream(ptr=1, device_id=-1), 0, id="cupy-default"),
    pytest.param(Stream(cuda_stream=40, device_index=1), 40, id="torch"),
    pytest.param(Stream(cuda_stream=48), 48, id="no-device"),
    pytest.param(protocol(lambda self: (0, 56)), 56, id="protocol"),
    pytest.param(protocol(property(lambda self: (0, 64))), 64, id="protocol-property"),
    pytest.param(protocol((0, 2)), 2, id="protocol-attribute"),
]


@pytest.mark.parametrize("stream, expected", HANDLES)
def test_the_argument(runtime, stream, expected):
    assert handle(stream, runtime) == expected


@pytest.mark.parametrize(
    "stream, error",
    [
        (-1, ValueError),
        (2**64, ValueError),
        (True, TypeError),
        ("0", TypeError),
        (1.0, TypeError),
        (object(), TypeError),
        (Stream(ptr=None), TypeError),
        (Stream(ptr=-8), ValueError),
        (Stream(cuda_stream="8"), TypeError),
        (protocol(lambda self: 8), TypeError),
        (protocol(lambda self: (1, 8)), TypeError),
        (protocol(lambda self: (0, None)), TypeError),
        (protocol(lambda self: (0, -1)), ValueError),
    ],
    ids=repr,
)
def test_what_is_no_stream_is_refused(runtime, stream, error):
    with pytest.raises(error, match="^stream: "):
        handle(stream, runtime)


@pytest.mark.parametrize("stream", [Stream(ptr=8, device_id=0), Stream(cuda_stream=8, device_index=3)])
def test_a_stream_of_another_device_is_refused(runtime, stream):
    with pytest.raises(ValueError, match="^stream: it is of device [03], the buffers are on device 1"):
        handle(stream, runtime)


def test_each_stream_is_asked(runtime):
    cls = type("S", (Stream,), {})
    assert [handle(cls(ptr=ptr), runtime) for ptr in (8, 16)] == [8, 16]


@pytest.mark.parametrize(
    "options, asked",
    [({"c": True}, 1), ({}, ("python", 1)), ({"c": True, "signature": b"intptr_t (void)"}, ("python", 1))],
    ids=["c", "python", "other-signature"],
)
@pytest.mark.parametrize("current, expected", [(0, 0), (1, 0), (2, 2), (88, 88)])
def test_cupys_current_stream(runtime, install, options, asked, current, expected):
    library = install(Cupy(**options))
    library.current = {0: current, 1: current}
    array = library.ndarray(np.zeros(3), device=1)
    assert handle(None, runtime, array) == expected
    assert set(library.asked) == {asked}


@pytest.mark.parametrize("c", [False, True])
def test_cupys_current_stream_is_the_arrays_devices(runtime, install, c):
    library = install(Cupy(c=c))
    library.current = {0: 8, 1: 16}
    array = library.ndarray(np.zeros(3))
    assert [handle(None, runtime, array, device) for device in (0, 1)] == [8, 16]


def test_torchs_current_stream_without_the_exchange_table(runtime, install):
    library = install(Torch(Dlpack1))
    library.current = {0: 8, 1: 16}
    tensor = library.Tensor(np.zeros(3), (2, 1))
    assert handle(None, runtime, tensor) == 16
    assert library.asked[0] == 1
    follow(None, tensor, runtime, 1)
    assert tensor.calls == []


CURRENT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


def exchange_with_stream(function):
    table = exchange_table(1)
    table.current_stream = ctypes.cast(function, ctypes.c_void_p).value
    cls = exchange_class(table)
    cls.keep = function, table
    return cls(np.zeros(3), (2, 1))


def test_the_exchange_tables_current_stream(runtime):
    asked = []

    @CURRENT
    def current(kind, device, out):
        asked.append((kind, device))
        out[0] = 96
        return 0

    tensor = exchange_with_stream(current)
    assert describe(None, tensor, runtime, 1) == {"handle": 96, "current": True}
    assert set(asked) == {(2, 1)}


def test_an_exchange_table_without_streams_has_the_default_one(runtime):
    assert describe(None, DlpackC(np.zeros(3), (2, 1)), runtime, 1) == {"handle": 0, "current": False}


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1, Cai])
def test_other_libraries_have_the_default_stream(runtime, cls):
    assert describe(None, fresh(cls), runtime, 1) == {"handle": 0, "current": False}


@pytest.mark.parametrize("stream, current", [(None, True), (88, True), (8, False), (0, False)])
def test_whether_a_stream_is_the_current_one(runtime, install, stream, current):
    library = install(Cupy(c=True))
    library.current[1] = 88
    assert describe(stream, library.ndarray(np.zeros(3)), runtime, 1)["current"] is current


@pytest.mark.parametrize(
    "stream, kind, number",
    [
        (0, CUDA, 1),
        (2, CUDA, 2),
        (0x7F00, CUDA, 0x7F00),
        (0, HIP, 0),
        (2, HIP, 0),  # the per-thread stream has no number there
        (0x7F00, HIP, 0x7F00),
    ],
)
def test_what_an_exporter_is_given(stream, kind, number):
    assert dlpack_argument(stream, kind) == number


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1])
@pytest.mark.parametrize("stream, number", [(None, 1), (0, 1), (1, 1), (2, 2), (0x7F00, 0x7F00)])
def test_exporters_order_the_calls_stream(runtime, cls, stream, number):
    obj = fresh(cls, (2, 1))
    follow(stream, obj, runtime, 1)
    assert [call["stream"] for call in obj.calls] == [number]


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1])
def test_exporters_of_host_memory_are_told_of_no_stream(runtime, cls):
    obj = fresh(cls, (3, 0))
    follow(None, obj, runtime, 1)
    assert [call["stream"] for call in obj.calls] == [None]


@pytest.mark.parametrize("error", [BufferError, RuntimeError, ValueError])
def test_an_exporters_refusal(runtime, error):
    def refuse(self, **_):
        raise error("on strike")

    obj = type("Refuses", (Dlpack1,), {"__dlpack__": refuse})(np.zeros(2), (2, 1))
    with pytest.raises(BufferError, match="on strike"):
        follow(None, obj, runtime, 1)


def test_a_library_with_a_current_stream_is_not_waited_for(runtime, install):
    library = install(Cupy(c=True))
    assert follow(88, library.ndarray(np.zeros(3)), runtime, 1) == {"handle": 88, "holds": False}


@pytest.mark.parametrize("stream, number", [(None, 0), (0, 0), (1, 0), (2, 0), (0x7F00, 0x7F00)])
def test_exporters_order_the_calls_stream_on_rocm(hip, stream, number):
    obj = fresh(Dlpack1, (10, 0))
    follow(stream, obj, hip, 0)
    assert [call["stream"] for call in obj.calls] == [number]


def test_rocms_per_thread_stream_follows_the_default_one(hip, monkeypatch):
    monkeypatch.setenv("FAKE_HIP_FAIL", "hipStreamWaitEvent=700")
    with pytest.raises(GpuError) as raised:
        follow(2, fresh(Dlpack1, (10, 0)), hip, 0)
    assert (raised.value.call, raised.value.code) == ("stream_wait_event", 700)
    follow(0, fresh(Dlpack1, (10, 0)), hip, 0)  # nothing to wait for


def test_the_exchange_table_is_asked_for_rocms_stream(hip):
    asked = []

    @CURRENT
    def current(kind, device, out):
        asked.append((kind, device))
        out[0] = 96
        return 0

    assert describe(None, exchange_with_stream(current), hip, 0)["handle"] == 96
    assert set(asked) == {(10, 0)}


def counts(driver):
    return [driver.library.fakeCalls(name) for name in (b"cuEventCreate", b"cuEventRecord", b"cuStreamWaitEvent")]


def test_cai_streams_are_followed_by_one_event(runtime, driver):
    ours, theirs = driver.stream(1), driver.stream(1)
    obj = fresh(Cai, stream=theirs)
    follow(ours, obj, runtime, 1)
    before = counts(driver)
    assert follow(ours, obj, runtime, 1) == {"handle": ours, "holds": False}
    created, recorded, waited = counts(driver)
    assert (created, recorded, waited) == (before[0], before[1] + 1, before[2] + 1)


@pytest.mark.parametrize("stream, theirs", [(None, None), (None, 1), (1, 1), (2, 2), (0, "absent")])
def test_nothing_is_waited_for_on_the_same_stream(runtime, driver, stream, theirs):
    before = counts(driver)
    follow(stream, fresh(Cai) if theirs == "absent" else fresh(Cai, stream=theirs), runtime, 1)
    assert counts(driver) == before


@pytest.mark.parametrize("stream, theirs", [(None, 2), (2, 1)])
def test_the_default_streams_follow_each_other(runtime, driver, stream, theirs):
    before = counts(driver)
    follow(stream, fresh(Cai, stream=theirs), runtime, 1)
    assert counts(driver)[1:] == [before[1] + 1, before[2] + 1]


def test_events_are_recorded_on_theirs_and_awaited_on_ours(runtime, driver):
    ours, theirs = driver.stream(1), driver.stream(1)
    driver.call("cuStreamDestroy_v2", ctypes.c_void_p(theirs))
    with pytest.raises(GpuError) as raised:
        follow(ours, fresh(Cai, stream=theirs), runtime, 1)
    assert raised.value.call == "event_record"
    theirs = driver.stream(1)
    driver.call("cuStreamDestroy_v2", ctypes.c_void_p(ours))
    with pytest.raises(GpuError) as raised:
        follow(ours, fresh(Cai, stream=theirs), runtime, 1)
    assert raised.value.call == "stream_wait_event"


def test_the_device_is_entered_and_left(runtime, driver):
    driver.call("cuCtxSetCurrent", None)
    before = counts(driver)
    follow(driver.stream(1), fresh(Cai, stream=driver.stream(1)), runtime, 1)
    assert counts(driver)[2] == before[2] + 1
    assert runtime.device_current() == -1


def test_the_device_is_left_after_an_error_too(runtime, driver):
    driver.call("cuCtxSetCurrent", None)
    with pytest.raises(GpuError):
        follow(8, fresh(Cai, stream=driver.stream(1)), runtime, 1)
    assert runtime.device_current() == -1


def test_two_buffers_of_one_library_are_asked_for_their_stream_once(runtime, install):
    library = install(Cupy(c=True))
    library.current[1] = 88
    arrays = [library.ndarray(np.zeros(3)) for _ in range(2)]
    assert follow(None, arrays[0], runtime, 1, arrays[1]) == {"handle": 88, "holds": True}
    assert library.asked == [1]


@pytest.mark.parametrize("stream, holds", [(88, True), (8, False)])
def test_a_given_stream_is_compared_with_both_libraries(runtime, install, stream, holds):
    library = install(Cupy(c=True))
    library.current[1] = 88
    arrays = [library.ndarray(np.zeros(3)) for _ in range(2)]
    assert follow(stream, arrays[0], runtime, 1, arrays[1]) == {"handle": stream, "holds": holds}


@pytest.mark.parametrize("theirs, holds", [(88, True), (0, False)])
def test_two_libraries(runtime, install, theirs, holds):
    cupy, torch_ = install(Cupy(c=True)), install(Torch(Dlpack1))
    cupy.current[1], torch_.current[1] = 88, theirs
    recv, send = cupy.ndarray(np.zeros(3)), torch_.Tensor(np.zeros(3), (2, 1))
    assert follow(None, recv, runtime, 1, send) == {"handle": 88, "holds": holds}
    assert follow(None, send, runtime, 1, recv) == {"handle": theirs, "holds": holds}


def test_the_others_producer_is_waited_for_by_the_first_ones_stream(runtime, install):
    library = install(Cupy(c=True))
    library.current[1] = 88
    other = fresh(Dlpack1, (2, 1))
    assert follow(None, library.ndarray(np.zeros(3)), runtime, 1, other) == {"handle": 88, "holds": False}
    assert [call["stream"] for call in other.calls] == [88]


def test_both_producers_are_waited_for(runtime):
    recv = fresh(Dlpack1, (2, 1))
    send = type(recv)(np.zeros(3), (2, 1))
    assert follow(None, recv, runtime, 1, send) == {"handle": 0, "holds": False}
    assert [call["stream"] for call in recv.calls + send.calls] == [1, 1]


def test_one_buffer_twice_is_waited_for_once(runtime):
    obj = fresh(Dlpack1, (2, 1))
    follow(2, obj, runtime, 1, obj)
    assert [call["stream"] for call in obj.calls] == [2]


@pytest.mark.parametrize("stream", [0, -1, "1", 1.5])
def test_cai_streams_that_the_protocol_forbids(runtime, stream):
    with pytest.raises(ValueError, match="stream of its __cuda_array_interface__"):
        follow(2, fresh(Cai, stream=stream), runtime, 1)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_the_real_torch_answers_by_its_table(runtime):
    assert describe(None, torch.zeros(3), runtime, 0) == {"handle": 0, "current": True}


@pytest.mark.skipif(jax is None, reason="jax is not installed")
def test_the_real_jax_takes_our_call(runtime):
    assert follow(None, jax.numpy.zeros(3), runtime, 0) == {"handle": 0, "holds": False}
