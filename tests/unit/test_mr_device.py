"""Registered memory of GPUs, over a runtime and verbs functions that fail when told to: the ladder, and identity."""

import ctypes
import errno

import mr_fake as fake
import pytest

BASE = 0x7F00_0000_0000
NBYTES = 1 << 20
NEVER = 10**6


class Device:
    """Cache 0 of the fake, asked for memory of its one allocation."""

    def __init__(self, library):
        self.library = library
        library.cache_open(0, 4, 8 * NBYTES)

    def allocate(self, base=BASE, nbytes=NBYTES, buffer_id=7, kind=fake.CUDA, managed=0):
        self.library.fake_allocate(base, nbytes, buffer_id, kind, managed)

    def get(self, address=BASE + 100, nbytes=1000):
        mem = fake.Mem()
        status = self.library.cache_get_device(0, address, nbytes, ctypes.addressof(mem))
        return mem if status == fake.DONE else None

    def put(self, mem):
        self.library.cache_put(0, ctypes.addressof(mem))

    def use(self, *args):
        mem = self.get(*args)
        if mem is None:
            return None
        self.put(mem)
        return mem.lkey

    def told(self):
        bits = self.library.cache_told(0)
        return {event for event in range(32) if bits >> event & 1}

    def calls(self):
        return [self.library.fake_calls(call) for call in (fake.EXPORT_FD, fake.DMABUF, fake.REG)]


@pytest.fixture
def device():
    library = fake.load()
    library.fake_reset()
    made = Device(library)
    made.allocate()
    yield made
    library.cache_close(0)
    assert library.fake_live() == 0


EXPORT_FAILS, IMPORT_FAILS, LACKING, WORKS = "export", "import", "lacking", "works"


@pytest.mark.parametrize("peermem", [True, False])
@pytest.mark.parametrize("dmabuf", [WORKS, EXPORT_FAILS, IMPORT_FAILS, LACKING])
def test_the_ladder(device, dmabuf, peermem):
    library = device.library
    if dmabuf == LACKING:
        library.fake_lacks_dmabuf()
    elif dmabuf != WORKS:
        library.fake_fail(fake.EXPORT_FD if dmabuf == EXPORT_FAILS else fake.DMABUF, 0, NEVER, errno.EINVAL)
    if not peermem:
        library.fake_fail(fake.REG, 0, NEVER, errno.EFAULT)
    first = device.use()
    assert (first is not None) == (dmabuf == WORKS or peermem)
    events = (
        set() if dmabuf == WORKS else {fake.DMABUF_FAILED} if peermem else {fake.DMABUF_FAILED, fake.PEERMEM_FAILED}
    )
    assert device.told() == events
    if dmabuf != WORKS:
        reason = errno.EINVAL if dmabuf == IMPORT_FAILS else errno.EOPNOTSUPP
        assert library.cache_error(0, fake.DMABUF_FAILED) == reason
    if fake.PEERMEM_FAILED in events:
        assert library.cache_error(0, fake.PEERMEM_FAILED) == errno.EFAULT
    # What does not work is not tried with the next allocation either.
    asked = device.calls()
    device.allocate(base=BASE + 2 * NBYTES, buffer_id=8)
    second = device.use(BASE + 2 * NBYTES, 10)
    assert (second is not None) == (first is not None)
    again = device.calls()
    expected = [1, 1, 0] if dmabuf == WORKS else [0, 0, 1] if peermem else [0, 0, 0]
    assert [after - before for before, after in zip(asked, again, strict=True)] == expected


def test_one_registration_for_an_allocation(device):
    first, second = device.get(), device.get(BASE, NBYTES)
    assert (first.lkey, first.rkey) == (second.lkey, second.rkey)
    assert (device.library.fake_live(), device.library.fake_live_nbytes()) == (1, NBYTES)
    device.put(first)
    device.put(second)
    assert device.library.fake_live() == 1


def test_another_allocation_at_the_same_address_is_registered_anew(device):
    before = device.use()
    device.allocate(buffer_id=8)
    after = device.use()
    assert None not in (before, after)
    assert after != before
    assert device.library.fake_live() == 1


def test_an_allocation_freed_in_use_is_revoked(device):
    mem = device.get()
    device.allocate(buffer_id=8)
    assert device.use() not in (None, mem.lkey)
    assert device.library.fake_live() == 1
    device.put(mem)
    assert device.library.fake_live() == 1


def test_without_buffer_ids_nothing_is_kept(device):
    device.allocate(buffer_id=0)
    first, second = device.get(), device.get()
    assert first.lkey != second.lkey
    device.put(first)
    assert device.library.fake_live() == 1
    device.put(second)
    assert device.library.fake_live() == 0


def test_a_way_that_has_worked_is_refused_to_one_allocation_alone(device):
    assert device.use() is not None
    device.library.fake_fail(fake.DMABUF, 0, 1, errno.EINVAL)
    device.library.fake_fail(fake.REG, 0, 1, errno.EFAULT)
    device.allocate(base=BASE + 2 * NBYTES, buffer_id=8)
    assert device.use(BASE + 2 * NBYTES, 10) is None
    asked = device.calls()
    assert device.use(BASE + 2 * NBYTES, 10) is None
    assert device.calls() == asked
    device.allocate(base=BASE + 4 * NBYTES, buffer_id=9)
    assert device.use(BASE + 4 * NBYTES, 10) is not None
    assert device.calls() == [asked[0] + 1, asked[1] + 1, asked[2]]


@pytest.mark.parametrize("error", fake.SHORTAGES)
def test_a_shortage_evicts_and_is_not_for_good(device, error):
    assert device.use() is not None
    device.allocate(base=BASE + 2 * NBYTES, buffer_id=8)
    device.library.fake_fail(fake.DMABUF, 0, 1, error)
    assert device.use(BASE + 2 * NBYTES, 10) is not None
    assert device.library.fake_live() == 1
    device.allocate(base=BASE + 4 * NBYTES, buffer_id=9)
    device.library.fake_fail(fake.DMABUF, 0, NEVER, error)
    assert device.use(BASE + 4 * NBYTES, 10) is None
    assert device.library.fake_live() == 0
    device.library.fake_fail(fake.DMABUF, 0, 0, 0)
    assert device.use(BASE + 4 * NBYTES, 10) is not None
    assert device.library.fake_calls(fake.REG) == 0


@pytest.mark.parametrize("kind", [fake.CUDA, fake.HIP])
def test_kinds_of_memory_are_apart(device, kind):
    device.allocate(kind=kind)
    device.library.fake_fail(fake.EXPORT_FD, 0, 1, 1)
    assert device.use() is not None
    device.allocate(base=BASE + 2 * NBYTES, buffer_id=8, kind=fake.CUDA + fake.HIP - kind)
    exports = device.calls()[0]
    assert device.use(BASE + 2 * NBYTES, 10) is not None
    assert device.calls()[0] == exports + 1


@pytest.mark.parametrize(
    "address, nbytes", [(BASE - 10, 5), (BASE, 0), (BASE + NBYTES - 10, 11), (BASE + 2 * NBYTES, 10)]
)
def test_memory_that_is_not_of_the_allocation_is_staged(device, address, nbytes):
    assert device.use(address, nbytes) is None
    assert device.calls() == [0, 0, 0]


def test_managed_memory_is_staged(device):
    device.allocate(managed=1)
    assert device.use() is None
    assert device.calls() == [0, 0, 0]
    assert device.library.cache_why() == fake.MANAGED


def test_why_not(device):
    library = device.library
    reasons = {(BASE - 10, 5): fake.NOT_DEVICE, (BASE + NBYTES - 10, 11): fake.PIECES, (BASE, NBYTES): fake.DIRECT}
    for (address, nbytes), why in reasons.items():
        device.use(address, nbytes)
        assert library.cache_why() == why
    device.allocate(base=BASE + 2 * NBYTES, nbytes=9 * NBYTES, buffer_id=8)
    assert device.use(BASE + 2 * NBYTES, 10) is None and library.cache_why() == fake.TOO_LARGE
    device.allocate(base=BASE + 16 * NBYTES, buffer_id=9)
    library.fake_fail(fake.DMABUF, 0, NEVER, errno.ENOMEM)
    assert device.use(BASE + 16 * NBYTES, 10) is None and library.cache_why() == fake.SHORT
    library.fake_fail(fake.DMABUF, 0, NEVER, errno.EINVAL)
    library.fake_fail(fake.REG, 0, NEVER, errno.EFAULT)
    for _ in range(2):
        assert device.use(BASE + 16 * NBYTES, 10) is None and library.cache_why() == fake.REFUSED_DEVICE


def test_evicts_what_was_used_longest_ago(device):
    keys = []
    for i in range(5):
        device.allocate(base=BASE + i * NBYTES, buffer_id=10 + i)
        keys.append(device.use(BASE + i * NBYTES, 10))
    assert device.library.fake_live() == 4
    device.allocate(base=BASE + 4 * NBYTES, buffer_id=14)
    assert device.use(BASE + 4 * NBYTES, 10) == keys[4]
    device.allocate(base=BASE, buffer_id=10)
    assert device.use(BASE, 10) not in (None, keys[0])
