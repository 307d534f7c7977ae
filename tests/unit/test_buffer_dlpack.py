"""The buffer parser on DLPack, the exchange table and __cuda_array_interface__: versions, flags, streams, deleters."""

import numpy as np
import pytest

import buffers
from buffers import (
    DELETED,
    DEVICES,
    IS_COPIED,
    LIVE,
    READ_ONLY,
    Cai,
    Dlpack0,
    Dlpack1,
    DlpackC,
    exchange_class,
    exchange_table,
    jax,
    params,
    torch,
)
from hetccl._buffer import check_overlap, describe

NO_SYNC = -1


@pytest.fixture(autouse=True)
def every_export_is_deleted_once():
    LIVE.clear()
    DELETED.clear()
    yield
    assert not LIVE


def exporter(cls, *args, **fields):
    """An object of a class of its own: what the parser remembers of a class must not leak from test to test."""
    return type(cls.__name__, (cls,), {})(np.arange(6, dtype="f4"), *args, **fields)


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1])
def test_one_export_one_deletion(cls):
    obj = exporter(cls)
    for _ in range(3):
        assert describe(obj)["ptr"] == obj.values.ctypes.data
    assert len(DELETED) == 3


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1])
@pytest.mark.parametrize(
    "extra, blocks", [((), 4), ((7,), 1), ((5,), 2), (("g",), 1)], ids=["blocks", "count", "both", "bytes"]
)
def test_one_deletion_after_an_error_too(cls, extra, blocks):
    obj = exporter(cls)
    with pytest.raises(ValueError):
        describe([obj, *extra] if extra else obj, False, blocks)
    assert len(DELETED) == 1


def test_both_buffers_are_released_when_the_second_fails():
    with pytest.raises(BufferError):
        check_overlap(exporter(Dlpack1), exporter(Dlpack1, flags=READ_ONLY))
    assert len(DELETED) == 2


def test_old_exporters_are_asked_without_new_keywords_and_remembered():
    obj = exporter(Dlpack0)
    describe(obj)
    describe(obj)
    assert obj.calls == [{"stream": None}] * 2


def test_new_exporters_are_asked_for_version_1_without_copy():
    obj = exporter(Dlpack1)
    describe(obj)
    (call,) = obj.calls
    assert call["max_version"][0] == 1 and call["copy"] is False and call["stream"] is None


@pytest.mark.parametrize("cls", [Dlpack0, Dlpack1])
@pytest.mark.parametrize("device", [(2, 0), (10, 3), (13, 1)])
def test_device_exporters_are_told_not_to_synchronise(cls, device):
    obj = exporter(cls, device)
    describe(obj)
    assert [call["stream"] for call in obj.calls] == [NO_SYNC]


@pytest.mark.parametrize(
    "device, kind, index",
    [
        ((1, 0), "host", 0),
        ((3, 0), "host", 0),
        ((11, 0), "host", 0),
        ((2, 3), "cuda", 3),
        ((13, 0), "cuda", 0),
        ((10, 2), "hip", 2),
        ((14, 1), "oneapi", 1),
    ],
)
def test_devices(device, kind, index):
    understood = describe(exporter(Dlpack1, device))
    assert (understood["kind"], understood["device"]) == (kind, index)


def test_other_devices_are_refused():
    with pytest.raises(BufferError, match="device type 8"):
        describe(exporter(Dlpack1, (8, 0)))
    assert len(DELETED) == 1


def test_flags():
    assert describe(exporter(Dlpack1, flags=READ_ONLY))["readonly"]
    assert describe(exporter(Dlpack1, flags=IS_COPIED))["count"] == 6
    with pytest.raises(BufferError, match="read-only"):
        describe(exporter(Dlpack1, flags=READ_ONLY), writable=True)
    with pytest.raises(BufferError, match="copy"):
        describe(exporter(Dlpack1, flags=IS_COPIED), writable=True)
    assert len(DELETED) == 4


def test_unknown_major_version_is_deleted_unread():
    with pytest.raises(BufferError, match=r"DLPack 2.x"):
        describe(exporter(Dlpack1, major=2))
    assert len(DELETED) == 1


def test_missing_strides_mean_c_order():
    obj = Dlpack0(np.zeros((2, 3), "f4"), strides=False)
    assert describe(obj)["count"] == 6 and not describe(obj)["fortran"]


@pytest.mark.parametrize("result", ["no capsule", None])
def test_a_wrong_answer_is_an_error(result):
    cls = type("Wrong", (Dlpack0,), {"__dlpack__": lambda self, **_: result})
    with pytest.raises(TypeError, match="no fresh DLPack capsule"):
        describe(cls(np.zeros(2)))


def test_a_used_capsule_is_refused():
    obj = exporter(Dlpack1)
    capsule = obj.__dlpack__()
    cls = type("Used", (Dlpack0,), {"__dlpack__": lambda self, **_: capsule})
    describe(cls(obj.values))
    with pytest.raises(TypeError, match="used_dltensor_versioned"):
        describe(cls(obj.values))
    assert len(DELETED) == 1


@pytest.mark.parametrize("error", [BufferError, RuntimeError, ValueError, TypeError])
def test_an_exporters_refusal_names_the_argument(error):
    def refuse(self, **_):
        raise error("on strike")

    with pytest.raises(BufferError, match=r"obj: .*on strike") as raised:
        describe(type("Refuses", (Dlpack0,), {"__dlpack__": refuse})(np.zeros(2)))
    assert isinstance(raised.value.__cause__, error)


def test_memory_that_is_not_there():
    class Null(Dlpack0):
        def __dlpack__(self):
            capsule = Dlpack0.__dlpack__(self)
            ((managed, *_),) = LIVE.values()
            managed.tensor.data, managed.tensor.byte_offset = None, 0
            return capsule

    with pytest.raises(BufferError, match=r"6 elements has no memory"):
        describe(Null(np.arange(6)))


def test_exchange_table_borrows_to_send_and_owns_to_receive():
    obj = DlpackC(np.arange(6, dtype="f4"))
    assert describe(obj)["ptr"] == obj.values.ctypes.data
    assert describe(obj, writable=True)["ptr"] == obj.values.ctypes.data
    assert obj.calls == ["borrowed", "managed"]
    assert len(DELETED) == 1


def test_exchange_table_flags_are_honoured():
    with pytest.raises(BufferError, match="read-only"):
        describe(DlpackC(np.zeros(2), flags=READ_ONLY), writable=True)
    assert len(DELETED) == 1


def test_exchange_table_without_borrowing():
    cls = exchange_class(exchange_table(1, borrowed=False))
    obj = cls(np.zeros(2))
    describe(obj)
    assert obj.calls == ["managed"]


def test_exchange_table_of_a_newer_major_is_searched_for_ours():
    obj = exchange_class(exchange_table(2, previous=buffers.C.addressof(buffers.EXCHANGE)))(np.zeros(2))
    assert describe(obj)["count"] == 2
    obj = exchange_class(exchange_table(2))(np.zeros(2))
    obj.__class__.__dlpack__ = Dlpack0.__dlpack__
    assert describe(obj)["count"] == 2 and obj.calls == [{"stream": None}]


@pytest.mark.parametrize("kind", params(DEVICES))
def test_pretended_devices(kind):
    values = np.arange(6, dtype="f4")
    obj = kind.make(values)
    understood = describe(obj, writable=True)
    assert understood["kind"] == ("hip" if "rocm" in kind.id else "cuda")
    assert (understood["ptr"], understood["count"], understood["dtype"]) == (obj.values.ctypes.data, 6, "float32")


def test_cai_device_index_is_left_to_the_runtime():
    assert describe(Cai(np.zeros(2)))["device"] == -1


def test_cai_layouts():
    assert describe(Cai(np.zeros((3, 4)).T))["fortran"]
    assert describe(Cai(np.zeros(0), data=(None, False)))["count"] == 0
    with pytest.raises(BufferError, match=r"strides \(16,\)"):
        describe(Cai(np.zeros(6)[::2]))
    with pytest.raises(BufferError, match="read-only"):
        describe(Cai(np.zeros(2), readonly=True), writable=True)
    with pytest.raises(BufferError, match="65 dimensions"):
        describe(Cai(np.zeros(1), shape=(1,) * 65))


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"mask": 1}, TypeError),
        ({"typestr": "|O8"}, TypeError),
    ],
)
def test_cai_refused(fields, error):
    with pytest.raises(error, match="obj: "):
        describe(Cai(np.zeros(2, "f4"), **fields))


def test_cai_lacking_a_key():
    cls = type("Lacks", (), {"__cuda_array_interface__": {"shape": (2,)}})
    with pytest.raises(TypeError, match="lacks 'typestr'"):
        describe(cls())


@pytest.mark.parametrize("shape", [(-5,), (3, -1), (2**33, 2**31), (2**62,), (2**32, 2**32), (2**60, 8)])
def test_shape_of_no_memory(shape):
    with pytest.raises(BufferError, match="^obj: .*shape"):
        describe(Cai(np.zeros(6), shape=shape))


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (2**33, 0, 2**33)])
def test_large_shape_without_elements(shape):
    assert describe(Cai(np.zeros(6), shape=shape))["count"] == 0


@pytest.mark.parametrize(
    "error, fields",
    [
        (TypeError, {"data": None}),
        (TypeError, {"data": ("x", False)}),
        (ValueError, {"data": (-1, False)}),
        (TypeError, {"shape": 6}),
        (TypeError, {"shape": ("a",)}),
        (ValueError, {"shape": (2**70,)}),
        (ValueError, {"typestr": ""}),
        (ValueError, {"typestr": "bad"}),
        (ValueError, {"strides": (8, 8)}),
        (TypeError, {"strides": "x"}),
    ],
    ids=str,
)
def test_malformed_cuda_array_interface(error, fields):
    with pytest.raises(error, match="^obj: __cuda_array_interface__"):
        describe(Cai(np.zeros(6), **fields))


def test_cai_bfloat16_by_its_dtype():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.zeros(3, ml_dtypes.bfloat16)
    obj = Cai(values)
    obj.dtype = values.dtype
    assert describe(obj)["dtype"] == "bfloat16"


needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


@needs_torch
@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: torch.ones(3, requires_grad=True), "detach"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), "resolve_conj"),
        (lambda: torch.ones(1, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (lambda: torch.ones(3, 3).to_sparse(), "does not give out"),
        (lambda: torch.ones(3, device="meta"), "does not give out"),
        (lambda: torch.ones(1).expand(4), "strides"),
        (lambda: torch.ones(3, 4)[:, 1], "strides"),
    ],
    ids=["grad", "conj", "neg", "sparse", "meta", "expanded", "column"],
)
@pytest.mark.parametrize("writable", [False, True])
def test_torch_refused(make, match, writable):
    with pytest.raises(BufferError, match=f"obj: .*{match}"):
        describe(make(), writable)


@needs_torch
def test_torch_views_begin_where_they_should():
    tensor = torch.arange(10.0)
    assert describe(tensor[4:])["ptr"] == tensor.data_ptr() + 16
    assert describe(torch.ones(3, 4).T)["fortran"]
    assert describe(torch.ones(0))["count"] == 0
    assert describe(torch.tensor(3.0))["count"] == 1


@pytest.mark.skipif(jax is None, reason="jax is not installed")
def test_jax_tracer_is_refused_inside_jit():
    def inside(x):
        with pytest.raises((TypeError, BufferError), match="obj: "):
            describe(x)
        return x

    jax.jit(inside)(jax.numpy.ones(3))
