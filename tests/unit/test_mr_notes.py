"""Which memory of Python objects is noted as one that may be registered, and that the notes die with their owners."""

import array
import ctypes
import gc
import logging
import mmap
import os
import resource
import subprocess
import sys
import threading
import weakref

import mr_fake as fake
import numpy as np
import pytest

from hetccl import _mr_trial

try:
    import torch
except ImportError:
    torch = None

PAGE = mmap.PAGESIZE
LARGE = 1 << 20


@pytest.fixture
def cache():
    """A cache over the fake's functions; at the end nothing is registered."""
    gc.collect()
    library = fake.load()
    library.fake_reset()
    made = _mr_trial.Cache(library.fake_table(), 0, "fake0")
    made.limit(1000, 1 << 40)
    yield made
    made.close()
    assert library.fake_live() == 0


def address(x):
    return x.__array_interface__["data"][0]


def note(x):
    _mr_trial.note(x, address(x), x.nbytes)


def key(cache, ptr, nbytes):
    """The lkey that a rail would get for this memory, or None: it is staged."""
    keys = cache.get(ptr, nbytes)
    if keys is None:
        return None
    keys.put()
    return keys.lkey


def key_of(cache, x):
    return key(cache, address(x), x.nbytes)


def read_only(a):
    x = a[:]
    x.flags.writeable = False
    return x


VIEWS = {
    "itself": lambda a: a,
    "slice": lambda a: a[100:-7],
    "reshaped": lambda a: a.reshape(64, -1),
    "view of a view": lambda a: a.reshape(64, -1)[3:9].ravel(),
    "other dtype": lambda a: a.view("u1"),
    "read-only": read_only,
    "matrix": lambda a: a.reshape(64, -1).view(np.matrix),
    "fortran": lambda a: a.reshape(64, -1).T,
    "transposed twice": lambda a: a.reshape(64, -1).T.T,
}


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_and_their_views_are_one_stretch(cache, view):
    a = np.zeros(LARGE // 8)
    x = VIEWS[view](a)
    assert key_of(cache, a) is None
    note(x)
    assert cache.counts == (0, 0, 0)
    whole = key_of(cache, a)
    assert whole is not None
    assert key(cache, address(x), 8) == whole
    assert cache.counts == (1, a.nbytes, 0)
    note(a)
    assert key_of(cache, a) == whole
    del a, x
    gc.collect()
    assert cache.counts == (0, 0, 0)


def test_a_view_keeps_the_registration(cache):
    a = np.zeros(LARGE)
    part = a[5:10]
    note(a)
    before = key_of(cache, part)
    del a
    gc.collect()
    assert key_of(cache, part) == before
    del part
    assert fake.load().fake_live() == 0


def owned_by_others():
    """name -> (object, address, nbytes, what must be kept)"""
    data = bytearray(LARGE)
    inner = (ctypes.c_char * LARGE)()
    mapped = mmap.mmap(-1, LARGE)
    numbers = array.array("d", bytes(LARGE))
    place = ctypes.addressof(inner)
    return {
        "bytearray": (data, ctypes.addressof(ctypes.c_char.from_buffer(data)), LARGE, None),
        "array.array": (numbers, numbers.buffer_info()[0], LARGE, None),
        "mmap": (mapped, ctypes.addressof(ctypes.c_char.from_buffer(mapped)), LARGE, None),
        "memoryview": (memoryview(inner), place, LARGE, inner),
        "ctypes": (inner, place, LARGE, None),
        "from_address": ((ctypes.c_char * LARGE).from_address(place), place, LARGE, inner),
        "array of a bytearray": (np.frombuffer(bytearray(LARGE), "u1"), None, LARGE, None),
        "array of a mapping": (np.ndarray(LARGE, "u1", buffer=mmap.mmap(-1, LARGE)), None, LARGE, None),
        "array of an address": (np.ctypeslib.as_array(inner), None, LARGE, None),
    }


@pytest.mark.parametrize("name", owned_by_others())
def test_memory_of_unknown_life_is_staged_unless_registered(cache, name):
    x, ptr, nbytes, _kept = owned_by_others()[name]
    ptr = address(x) if ptr is None else ptr
    noted = _mr_trial.nnoted()
    _mr_trial.note(x, ptr, nbytes)
    assert key(cache, ptr, nbytes) is None
    registered = _mr_trial.Registered(x, ptr, nbytes)
    assert registered.ndevices == 1
    first = key(cache, ptr, nbytes)
    assert first is not None
    assert key(cache, ptr + 100, 1) == first
    assert key(cache, ptr, nbytes + 1) is None
    registered.end()
    assert key(cache, ptr, nbytes) is None
    assert (fake.load().fake_live(), _mr_trial.nnoted()) == (0, noted)


def test_a_noted_array_cannot_be_resized(cache):
    """It would lose its memory and live on. Even without the check of references NumPy refuses."""
    a = np.zeros(LARGE, "u1")
    note(a)
    with pytest.raises(ValueError, match="resize"):
        a.resize(2 * LARGE, refcheck=False)


def test_arrays_at_a_used_address_again(cache):
    """The allocator gives a large array that goes to the next one: the same address, other pages."""
    seen, keys = set(), []
    reused = 0
    for _ in range(20):
        a = np.zeros(8 * LARGE, "u1")
        note(a)
        reused += address(a) in seen
        seen.add(address(a))
        keys.append(key_of(cache, a))
        assert cache.counts[0] == 1
    assert reused > 10
    assert len(set(keys)) == 20
    assert None not in keys


def test_the_same_object_id_and_address_again(cache):
    """What is remembered of an object may not serve the next one that has its id."""
    keys, places = [], set()
    for _ in range(50):
        a = np.zeros(8 * LARGE, "u1")
        places.add((id(a), address(a)))
        note(a)
        note(a)
        keys.append(key_of(cache, a))
        del a
    assert len(places) < 50
    assert None not in keys
    assert len(set(keys)) == 50


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
MAP_FIXED, ANONYMOUS = 0x10, 0x22


def test_memory_mapped_again_behind_our_back_is_staged(cache):
    """munmap and mmap at the same address: nobody tells us, so such memory is not noted."""
    place = libc.mmap(None, LARGE, 3, ANONYMOUS, -1, 0)
    for _ in range(3):
        x = np.ctypeslib.as_array((ctypes.c_char * LARGE).from_address(place)).view("u1")
        note(x)
        assert key_of(cache, x) is None
        del x
        libc.munmap(place, LARGE)
        assert libc.mmap(place, LARGE, 3, ANONYMOUS | MAP_FIXED, -1, 0) == place
    libc.munmap(place, LARGE)


def test_an_array_that_owns_its_memory_no_more(cache):
    a = np.zeros(LARGE, "u1")
    note(a)
    assert key_of(cache, a) is not None
    a.__setstate__((1, (4 * LARGE,), a.dtype, False, bytes(4 * LARGE)))
    note(a)
    assert key_of(cache, a) is None
    assert fake.load().fake_live() == 0


def test_of_two_owners_of_a_byte_the_later_one_is_right(cache):
    a = np.zeros(LARGE, "u1")
    note(a)
    place, first = address(a), key_of(cache, a)
    a.__setstate__((1, (4 * LARGE,), a.dtype, False, bytes(4 * LARGE)))
    # a has not been passed since; its old memory is now somebody's who can tell no life: what a had there is untrue.
    window = (ctypes.c_char * 100).from_address(place)
    _mr_trial.note(window, place, 100)
    assert first is not None
    assert key(cache, place, 100) is None
    assert fake.load().fake_live() == 0


def test_a_window_of_an_array_does_not_disturb_its_note(cache):
    a = np.zeros(LARGE, "u1")
    note(a)
    first = key_of(cache, a)
    window = (ctypes.c_char * 100).from_address(address(a))
    _mr_trial.note(window, address(a), 100)
    assert key_of(cache, a) == first


def test_registering_keeps_an_array_from_being_evicted(cache):
    cache.limit(1, 1 << 40)
    a, b = np.zeros(LARGE, "u1"), np.zeros(LARGE, "u1")
    registered = _mr_trial.Registered(a, address(a), a.nbytes)
    note(b)
    assert key_of(cache, b) is None
    first = key_of(cache, a)
    registered.end()
    assert key_of(cache, b) is not None
    assert key_of(cache, a) not in (None, first)


def test_registered_twice_ends_with_the_second(cache):
    data = bytearray(LARGE)
    place = ctypes.addressof(ctypes.c_char.from_buffer(data))
    first, second = (_mr_trial.Registered(data, place, LARGE) for _ in range(2))
    first.end()
    assert key(cache, place, LARGE) is not None
    second.end()
    assert key(cache, place, LARGE) is None


def test_owners_in_a_cycle_are_forgotten_by_the_collector(cache):
    class Array(np.ndarray):
        pass

    a = np.zeros(LARGE, "u1").copy().view(Array).copy()
    a.itself = a
    note(a)
    assert key_of(cache, a) is not None
    del a
    assert fake.load().fake_live() == 1
    gc.collect()
    assert fake.load().fake_live() == 0


def test_many_arrays_and_no_note_left(cache):
    before = _mr_trial.nnoted()
    held = [np.zeros(1000 + i, "u1") for i in range(2000)]
    for x in held:
        note(x)
    assert _mr_trial.nnoted() == before + 2000
    keys = {key_of(cache, x) for x in held[:500]}
    assert len(keys) == 500
    del held[::2], x
    assert _mr_trial.nnoted() == before + 1000
    del held[:]
    assert _mr_trial.nnoted() == before


@pytest.mark.parametrize(
    "shape, dtype, registered",
    [(0, "d", False), ((3, 0), "d", False), ((), "d", True), (7, "S3", True), (1, "u1", True)],
)
def test_empty_and_odd_arrays(cache, shape, dtype, registered):
    x = np.zeros(shape, dtype)
    note(x)
    assert (key_of(cache, x) is not None) == registered


def test_masked_arrays_own_their_data(cache):
    m = np.ma.masked_array(np.zeros(LARGE, "u1"), mask=False)
    note(m.data)
    assert key_of(cache, m.data) is not None


def test_threads_that_note_and_drop(cache):
    faults = []

    def work(seed):
        try:
            for i in range(300):
                a = np.full(LARGE // 4 + 4096 * (seed + i % 3), seed, "u1")
                note(a)
                if key_of(cache, a) is None:
                    faults.append("staged")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert faults == []
    assert fake.load().fake_live() == 0


def test_a_child_of_fork_leaves_the_parent_its_registrations(cache):
    a = np.zeros(LARGE, "u1")
    note(a)
    first = key_of(cache, a)
    pid = os.fork()
    if pid == 0:
        del a
        gc.collect()
        os._exit(0 if fake.load().fake_live() == 1 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert key_of(cache, a) == first


@pytest.mark.parametrize("how", ["pass", "sys.exit(0)", "del a"])
def test_a_program_that_ends_with_notes(how):
    program = (
        "import sys, numpy, mr_fake as fake\n"
        "from hetccl import _mr_trial\n"
        "cache = _mr_trial.Cache(fake.load().fake_table(), 0, 'fake0')\n"
        "a = numpy.zeros(1 << 20, 'u1')\n"
        "_mr_trial.note(a, a.ctypes.data, a.nbytes)\n"
        "assert cache.get(a.ctypes.data, 10) is not None\n" + how
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shortage_is_explained_once(cache, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    arrays = [np.zeros(LARGE, "u1") for _ in range(3)]
    fake.load().fake_fail(fake.REG, 0, 1000, 12)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, hard))
        with caplog.at_level(logging.INFO, "hetccl"):
            for a in arrays:
                note(a)
                assert key_of(cache, a) is None
            _mr_trial.report()
            _mr_trial.report()
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("fake0", "ENOMEM", "64 KiB", "ulimit -l", str(LARGE)):
        assert part in record.message


@pytest.mark.parametrize("event", range(7))
def test_each_event_has_a_text(cache, caplog, event):
    """EVENTS is complete: what a device may tell is logged without a fault."""
    _mr_trial.tell(cache, event, 22, 12345)
    with caplog.at_level(logging.INFO, "hetccl"):
        _mr_trial.report()
    (record,) = caplog.records
    assert record.message.startswith("fake0: ")
    assert "{" not in record.message


needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


def tensor_note(t):
    _mr_trial.note(t, t.data_ptr(), t.numel() * t.element_size())


def tensor_key(cache, t):
    return key(cache, t.data_ptr(), t.numel() * t.element_size())


@needs_torch
def test_tensors_that_can_be_resized_are_staged(cache):
    t = torch.zeros(LARGE)
    tensor_note(t)
    assert tensor_key(cache, t) is None


@needs_torch
@pytest.mark.parametrize("make", ["from_numpy", "numpy taken"])
def test_tensors_that_cannot_be_resized_are_noted(cache, make):
    t = torch.from_numpy(np.zeros(LARGE)) if make == "from_numpy" else torch.zeros(LARGE)
    t.numpy()
    part = t[10:20]
    tensor_note(part)
    first = tensor_key(cache, t)
    assert first is not None
    assert tensor_key(cache, part) == first
    with pytest.raises(RuntimeError, match="not resizable"):
        t.resize_(2 * LARGE)
    del t
    gc.collect()
    assert tensor_key(cache, part) == first
    del part
    gc.collect()
    assert fake.load().fake_live() == 0


@needs_torch
def test_a_storage_that_moves_to_shared_memory(cache):
    t = torch.zeros(LARGE)
    t.numpy()
    tensor_note(t)
    first = tensor_key(cache, t)
    t.share_memory_()
    tensor_note(t)
    assert tensor_key(cache, t) not in (None, first)
    assert cache.counts[0] == 1


def test_weak_references_of_the_user_are_not_disturbed(cache):
    a = np.zeros(LARGE, "u1")
    died = []
    mine = weakref.ref(a, died.append)
    note(a)
    key_of(cache, a)
    del a
    assert (mine(), died) == (None, [mine])
