"""The cache of registrations, over functions that fail when told to: what is registered, kept, evicted, given back."""

import ctypes
import errno
import random

import mr_fake as fake
import pytest

BASE = 0x7000_0000_0000
KIB = 1024
NEVER = 10**6


class Cache:
    """Cache 0 (and 1) of the fake; addresses are made up."""

    def __init__(self, library):
        self.library = library
        self.ranges = {}

    def note(self, address, nbytes, promised=0):
        self.ranges[address] = self.library.range_note(BASE + address, nbytes, promised)
        return self.ranges[address]

    def forget(self, address):
        self.library.range_forget(self.ranges.pop(address))

    def keep(self, address):
        return self.library.range_keep(self.ranges[address])

    def release(self, address):
        self.library.range_release(self.ranges[address])

    def get(self, address, nbytes, whose=fake.OF_USER, which=0):
        """Keys in use, or None: to be staged."""
        mem = fake.Mem()
        status = self.library.cache_get(which, BASE + address, nbytes, whose, ctypes.addressof(mem))
        assert (status == fake.DONE) == (mem.handle is not None)
        return mem if status == fake.DONE else None

    def put(self, mem, which=0):
        self.library.cache_put(which, ctypes.addressof(mem))

    def use(self, address, nbytes, which=0):
        """Get and put: the lkey, or None."""
        mem = self.get(address, nbytes, which=which)
        if mem is None:
            return None
        self.put(mem, which)
        return mem.lkey

    def told(self, which=0):
        bits = self.library.cache_told(which)
        return {event for event in range(32) if bits >> event & 1}


@pytest.fixture
def cache():
    """Function: limits -> Cache, two of them open. At the end nothing may be registered any more."""
    library = fake.load()
    library.fake_reset()
    made = Cache(library)

    def opened(max_count=100, max_nbytes=1 << 40):
        for which in range(2):
            library.cache_open(which, max_count, max_nbytes)
        return made

    yield opened
    for address in list(made.ranges):
        made.forget(address)
    for which in range(2):
        library.cache_close(which)
    assert library.range_count() == 0
    assert library.fake_live() == 0


def test_registered_whole_on_first_use_and_once(cache):
    c = cache()
    c.note(0, 64 * KIB)
    assert c.library.fake_live() == 0
    first = c.get(100, 50)
    second = c.get(64 * KIB - 1, 1)
    assert (first.lkey, first.rkey) == (second.lkey, second.rkey)
    assert (c.library.fake_live(), c.library.fake_live_nbytes()) == (1, 64 * KIB)
    c.put(first)
    c.put(second)
    assert c.library.fake_live() == 1


@pytest.mark.parametrize("address, nbytes", [(-1, 10), (4090, 10), (5000, 1), (0, 4097), (0, 0)])
def test_only_noted_memory_is_registered(cache, address, nbytes):
    c = cache()
    c.note(0, 4096)
    assert c.get(address, nbytes) is None
    assert c.library.fake_calls(fake.REG) == 0


def test_each_device_has_its_registration_and_all_go_with_the_owner(cache):
    c = cache()
    c.note(0, 4096)
    assert c.use(0, 10, which=0) != c.use(0, 10, which=1)
    assert c.library.fake_live() == 2
    c.forget(0)
    assert c.library.fake_live() == 0
    assert c.use(0, 10) is None


def test_the_same_address_again_is_another_registration(cache):
    c = cache()
    c.note(0, 4096)
    before = c.use(0, 4096)
    c.forget(0)
    c.note(0, 4096)
    after = c.use(0, 4096)
    assert None not in (before, after)
    assert after != before


def test_what_is_in_use_when_its_owner_dies_is_revoked(cache):
    c = cache()
    c.note(0, 4096)
    mem = c.get(0, 10)
    c.forget(0)
    assert c.library.fake_live() == 0
    c.note(0, 4096)
    assert c.use(0, 10) != mem.lkey
    c.put(mem)
    assert c.library.fake_live() == 1


def test_evicts_what_was_used_longest_ago(cache):
    c = cache(max_count=3)
    for i in range(4):
        c.note(i * 4096, 4096)
    keys = [c.use(i * 4096, 1) for i in range(3)]
    assert c.use(0, 1) == keys[0]
    c.use(3 * 4096, 1)
    assert c.library.cache_count(0) == 3
    assert c.use(0, 1) == keys[0]
    assert c.use(2 * 4096, 1) == keys[2]
    assert c.use(1 * 4096, 1) not in (None, keys[1])


def test_evicts_until_the_bytes_fit(cache):
    c = cache(max_nbytes=100 * KIB)
    for i, nbytes in enumerate((40, 30, 20, 60)):
        c.note(i << 20, nbytes * KIB)
    keys = [c.use(i << 20, 1) for i in range(3)]
    c.use(3 << 20, 1)
    assert c.library.cache_nbytes(0) == 80 * KIB
    assert c.use(2 << 20, 1) == keys[2]
    assert c.told() == set()


def test_what_is_in_use_is_not_evicted(cache):
    c = cache(max_count=2)
    for i in range(3):
        c.note(i * 4096, 4096)
    held = [c.get(0, 1), c.get(4096, 1)]
    assert c.use(2 * 4096, 1) is None
    assert c.library.fake_calls(fake.DEREG) == 0
    c.put(held[0])
    assert c.use(2 * 4096, 1) is not None
    assert c.get(4096, 1).lkey == held[1].lkey


def test_what_a_user_registered_is_not_evicted(cache):
    c = cache(max_count=1)
    c.note(0, 4096)
    c.note(4096, 4096)
    assert c.keep(0) == 2
    key = c.use(0, 1)
    assert c.use(4096, 1) is None
    assert c.use(0, 1) == key
    c.release(0)
    assert c.use(4096, 1) is not None
    assert c.use(0, 1) not in (None, key)


def test_a_promise_ends_with_its_last_registration(cache):
    c = cache()
    c.note(0, 4096, promised=1)
    c.keep(0)
    c.keep(0)
    key = c.use(0, 1)
    c.release(0)
    assert c.use(0, 1) == key
    c.release(0)
    del c.ranges[0]
    assert c.use(0, 1) is None
    assert (c.library.fake_live(), c.library.range_count()) == (0, 0)


def test_a_registration_outlives_the_note_but_not_its_memory(cache):
    c = cache()
    handle = c.note(0, 4096)
    c.keep(0)
    c.forget(0)
    assert c.library.fake_live() == 0
    assert c.use(0, 1) is None
    c.library.range_release(handle)
    assert c.library.range_count() == 0


def test_larger_than_the_limit_is_told_once(cache):
    c = cache(max_nbytes=4096)
    c.note(0, 4097)
    c.note(1 << 20, 4096)
    assert c.use(0, 10) is None
    assert c.use(0, 10) is None
    assert c.use(1 << 20, 10) is not None
    assert c.told() == {fake.LIMIT}
    assert c.library.fake_calls(fake.REG) == 1


@pytest.mark.parametrize("error", fake.SHORTAGES)
def test_a_shortage_evicts_in_all_caches_and_tries_again(cache, error):
    c = cache()
    for i in range(3):
        c.note(i * 4096, 4096)
    c.use(0, 1, which=0)
    c.use(4096, 1, which=1)
    c.library.fake_fail(fake.REG, 0, 1, error)
    assert c.use(2 * 4096, 1) is not None
    assert c.library.fake_live() == 1
    assert c.told() == set()


@pytest.mark.parametrize("error, event", [*((e, fake.MEMLOCK) for e in fake.SHORTAGES), (errno.EFAULT, fake.REFUSED)])
def test_refused_memory_is_staged_and_not_tried_again(cache, error, event):
    c = cache()
    c.note(0, 4096)
    c.note(4096, 4096)
    c.library.fake_fail(fake.REG, 0, NEVER, error)
    assert c.use(0, 1) is None
    tries = c.library.fake_calls(fake.REG)
    assert c.use(0, 1) is None
    assert c.library.fake_calls(fake.REG) == tries
    assert (c.told(), c.library.cache_error(0, event)) == ({event}, error)
    c.library.fake_fail(fake.REG, 0, 0, 0)
    assert c.use(4096, 1) is not None
    c.forget(0)
    c.note(0, 4096)
    assert c.use(0, 1) is not None


def test_memory_of_another_fault_evicts_nothing(cache):
    c = cache()
    c.note(0, 4096)
    c.note(4096, 4096)
    key = c.use(0, 1)
    c.library.fake_fail(fake.REG, 0, 1, errno.EFAULT)
    assert c.use(4096, 1) is None
    assert c.use(0, 1) == key


@pytest.mark.parametrize("error", [0, *fake.SHORTAGES, errno.EFAULT])
def test_memory_of_the_engine(cache, error):
    c = cache()
    c.note(4096, 4096)
    c.use(4096, 1)
    c.library.fake_fail(fake.REG, 0, NEVER if error else 0, error)
    mem = c.get(0, 1 << 20, fake.OF_ENGINE)
    assert (mem is None) == bool(error)
    assert c.library.cache_nengine(0) == (not error)
    if mem is not None:
        assert c.library.fake_live() == 2
        c.put(mem)
    assert c.library.cache_nengine(0) == 0
    # A shortage has cost the user's registration.
    assert c.library.fake_live() == (error not in fake.SHORTAGES)
    assert c.told() == ({fake.MEMLOCK if error in fake.SHORTAGES else fake.REFUSED} if error else set())


def test_what_cannot_be_given_back_is_told(cache):
    c = cache()
    c.note(0, 4096)
    c.use(0, 1)
    c.library.fake_fail(fake.DEREG, 0, 1, errno.EBUSY)
    c.forget(0)
    assert c.told() == {fake.STUCK}
    assert c.library.cache_error(0, fake.STUCK) == errno.EBUSY
    assert c.library.fake_live() == 1
    c.library.fake_reset()


@pytest.mark.parametrize("answer, automatic", [(fake.FORK_UNNEEDED, 1), (fake.FORK_ENABLED, 0), (0, 0), (None, 0)])
def test_pages_are_shared_with_the_child_or_only_registered_by_the_user(cache, answer, automatic):
    library = fake.load()
    library.fake_reset()
    if answer is None:
        library.fake_lacks_fork_status()
    else:
        library.fake_fork_status(answer)
    c = cache()
    c.note(0, 4096)
    assert (c.use(0, 1) is not None) == automatic
    assert c.told() == (set() if automatic else {fake.FORK})
    c.keep(0)
    assert c.use(0, 1) is not None
    c.release(0)
    mem = c.get(1 << 20, 10, fake.OF_ENGINE)
    assert mem is not None
    c.put(mem)


def test_a_guarantee_goes_before_a_promise(cache):
    c = cache()
    c.note(0, 64 * KIB, promised=1)
    promise = c.use(4096, 10)
    c.note(4096, 8192)
    assert c.use(4096, 10) not in (None, promise)
    assert c.use(0, 10) == promise
    c.forget(4096)
    assert c.use(4096, 10) == promise


def test_closing_a_cache_takes_its_own_registrations_back(cache):
    c = cache()
    c.note(0, 4096)
    c.use(0, 1, which=0)
    key = c.use(0, 1, which=1)
    c.library.cache_close(0)
    assert c.library.fake_live() == 1
    assert c.use(0, 1, which=1) == key
    c.library.cache_open(0, 10, 1 << 20)
    assert c.use(0, 1, which=0) is not None


@pytest.mark.parametrize("seed", range(30))
def test_ranges_against_a_list(cache, seed):
    """Look-ups in overlapping, nested and equal ranges, against a search of all."""
    c = cache()
    rng = random.Random(seed)
    held = []
    for _ in range(300):
        if held and rng.random() < 0.4:
            base, nbytes, promised, handle = held.pop(rng.randrange(len(held)))
            c.library.range_forget(handle)
        elif len(held) < 60:
            base, nbytes, promised = rng.randrange(200), rng.randrange(1, 80), rng.randrange(2)
            held.append((base, nbytes, promised, c.library.range_note(BASE + base, nbytes, promised)))
        ptr, length = rng.randrange(250), rng.randrange(1, 40)
        around = [r for r in held if r[0] <= ptr and ptr + length <= r[0] + r[1]]
        best = [r[3] for r in around if not r[2]] or [r[3] for r in around] or [None]
        assert c.library.range_find(BASE + ptr, length) in best
        touching = [r for r in held if not r[2] and r[0] < ptr + length and ptr < r[0] + r[1]]
        last = max((r[0] for r in touching), default=None)
        found = c.library.range_touching(BASE + ptr, length)
        assert found in [r[3] for r in touching if r[0] == last] or (found, last) == (None, None)
    for *_, handle in held:
        c.library.range_forget(handle)


@pytest.mark.parametrize("base, nbytes", [(0, 0), (2**64 - 4096, 8192)])
def test_impossible_ranges_are_not_noted(cache, base, nbytes):
    c = cache()
    assert c.library.range_note(base, nbytes, 0) is None


@pytest.mark.parametrize("seed", range(5))
def test_threads_that_note_get_put_and_forget(seed):
    library = fake.load()
    library.fake_reset()
    assert library.race(seed) == 0
    assert library.fake_calls(fake.REG) > 100
