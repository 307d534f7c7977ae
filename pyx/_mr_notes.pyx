"""Layer L2: which memory of users may be registered with RDMA devices, called with the GIL by those who read buffers.

A registration pins pages. If the memory is given back to the system and its addresses are used again, the device still
reaches the old pages: data would be lost in silence. So only memory is noted whose life is known: that of an owner who
can be referenced weakly, and whose memory stays until it dies. Those are

- a NumPy array that owns its data: while it is referenced weakly, it cannot be resized;
- a torch storage that is not resizable: one that another library made, or of which .numpy() was asked.

All others can lose their memory and live on: bytearray and array.array (append), mmap (close, resize) and arrays over
it, memoryview (release), torch's resizable storages (resize_), ctypes (resize), JAX's arrays (donation). They are
staged, unless the user registers them: then their export is held open, and what has none is the user's promise.

What NumPy lets a program do behind all backs (assigning .data, calling __setstate__ of an array in use) is noticed when
memory is noted that lies in a stretch noted before: of two owners of a byte the later one is right.
"""

import sys
import weakref

from libc.stdint cimport uint64_t

from hetccl._array cimport is_of
from hetccl._mr_cache cimport (
    hetccl_mr_notes_t, hetccl_mr_ranges_t, notes_lock, notes_report, notes_unlock, process_notes, pthread_mutex_lock,
    pthread_mutex_unlock,
)

cdef extern from "<unistd.h>" nogil:
    int getpid() noexcept

cdef extern from "hetccl/mr_cache.h" nogil:
    hetccl_mr_range_t* hetccl_mr_note(hetccl_mr_notes_t* notes, void* base, size_t nbytes, int promised) noexcept
    void hetccl_mr_forget(hetccl_mr_notes_t* notes, hetccl_mr_range_t* range) noexcept
    int hetccl_mr_keep(hetccl_mr_notes_t* notes, hetccl_mr_range_t* range) noexcept
    void hetccl_mr_release(hetccl_mr_notes_t* notes, hetccl_mr_range_t* range) noexcept
    hetccl_mr_range_t* hetccl_mr_ranges_touching(const hetccl_mr_ranges_t* ranges, uintptr_t ptr,
                                                 size_t nbytes) noexcept

# What was noted lately, by object and address: a program passes few arrays many times.
cdef enum:
    NRECENT = 256

ctypedef struct Recent:
    void* obj
    void* ptr
    size_t nbytes

cdef Recent[NRECENT] recent
cdef list recent_notes = [None] * NRECENT
cdef dict notes_of_owners = {}             # id of an owner -> Note
cdef dict notes_of_ranges = {}             # address of a hetccl_mr_range_t that an owner guarantees -> Note
cdef int owner_pid = getpid()


cdef class Note:
    def _forget(self, reference):
        """The owner is gone: its memory goes next."""
        self.forget()

    cdef int forget(self) except -1:
        """The memory may go after this."""
        cdef hetccl_mr_range_t* range = self.range
        self.range = NULL
        # A child of fork has copies of the owners, but the registrations are its parent's, and so is the lock.
        if range == NULL or getpid() != owner_pid:
            return 0
        if self.reference is not None:
            del notes_of_owners[self.owner_id]
            del notes_of_ranges[<uintptr_t>range]
        self.reference = None
        with nogil:
            pthread_mutex_lock(&process_notes.lock)
            hetccl_mr_forget(process_notes, range)
            pthread_mutex_unlock(&process_notes.lock)
        return 0


cdef int buffer_note(object obj, void* ptr, size_t nbytes) except -1:
    cdef uint64_t mixed = (<uintptr_t><void*>obj >> 4 ^ <uintptr_t>ptr >> 6) * <uint64_t>0x9E3779B97F4A7C15
    cdef int slot = <int>(mixed >> 56)
    cdef Recent* entry = &recent[slot]
    cdef Note note
    if entry.obj == <void*>obj and entry.ptr == ptr and entry.nbytes == nbytes:
        note = recent_notes[slot]
        if note is not None and note.range != NULL:
            return 0
    note = note_of(obj, ptr, nbytes)
    entry.obj, entry.ptr, entry.nbytes = <void*>obj, ptr, nbytes
    recent_notes[slot] = note
    notes_report()
    return 0


cdef Note note_of(object obj, void* ptr, size_t nbytes):
    """The note of the memory, made if there is none; None if its life is not known."""
    cdef uintptr_t base = 0
    cdef size_t length = 0
    cdef Note note
    owner = owner_of(obj)
    if owner is None or not memory_of(owner, &base, &length) or <uintptr_t>ptr < base or \
            <uintptr_t>ptr + nbytes > base + length:
        note = notes_of_owners.get(id(obj))
        if note is not None:
            note.forget()
        drop_untrue(<uintptr_t>ptr, nbytes)
        return None
    note = notes_of_owners.get(id(owner))
    if note is not None and (note.range.base != base or note.range.nbytes != length):
        note.forget()
        note = None
    if note is None:
        drop_all(base, length)
        note = note_new(owner, base, length)
    return note


cdef Note note_new(object owner, uintptr_t base, size_t nbytes):
    cdef Note note = Note.__new__(Note)
    cdef hetccl_mr_range_t* range
    reference = weakref.ref(owner, note._forget)
    notes_lock()
    range = hetccl_mr_note(process_notes, <void*>base, nbytes, 0)
    notes_unlock()
    if range == NULL:
        return None
    note.range, note.reference, note.owner_id = range, reference, id(owner)
    notes_of_owners[id(owner)] = note
    notes_of_ranges[<uintptr_t>range] = note
    return note


cdef object owner_of(object obj):
    """Who owns the object's memory, if its type guarantees that it owns it until it dies; else None."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        while isinstance(obj, numpy.ndarray):
            if obj.flags.owndata:
                return obj
            obj = obj.base
        return None
    if is_of(type(obj), "torch", "Tensor"):
        storage = obj.untyped_storage()
        # Releases that cannot be asked have none that stays an object between two calls either.
        if hasattr(storage, "resizable") and not storage.resizable():
            return storage
    return None


cdef bint memory_of(object owner, uintptr_t* base, size_t* nbytes) except -1:
    """Where the owner's memory is now; False if it owns none any more."""
    if hasattr(owner, "data_ptr"):
        base[0], nbytes[0] = owner.data_ptr(), owner.nbytes()
        return True
    base[0], nbytes[0] = owner.__array_interface__["data"][0], owner.nbytes
    return owner.flags.owndata


cdef Note touching(uintptr_t ptr, size_t nbytes):
    """Of the notes of owners that share a byte with it, the one that begins last; or None."""
    cdef hetccl_mr_range_t* range
    notes_lock()
    range = hetccl_mr_ranges_touching(&process_notes.ranges, ptr, nbytes)
    notes_unlock()
    return None if range == NULL else notes_of_ranges.get(<uintptr_t>range)


cdef int drop_all(uintptr_t ptr, size_t nbytes) except -1:
    """What others own in this memory, of which the owner is now known, they own no more."""
    cdef Note note = touching(ptr, nbytes)
    while note is not None:
        note.forget()
        note = touching(ptr, nbytes)
    return 0


cdef int drop_untrue(uintptr_t ptr, size_t nbytes) except -1:
    """Forget what is noted in this memory, unless its owner still owns it."""
    cdef uintptr_t base = 0, end = ptr + nbytes, start
    cdef size_t length = 0
    cdef Note note = touching(ptr, nbytes)
    while note is not None:
        start = note.range.base
        owner = note.reference()
        if owner is None or not memory_of(owner, &base, &length) or base != start or \
                note.range != NULL and length != note.range.nbytes:
            note.forget()
        end = min(end, start)
        note = touching(ptr, end - ptr) if end > ptr else None
    return 0


cdef hetccl_mr_range_t* register_begin(object obj, void* ptr, size_t nbytes, int* ndevices) except NULL:
    cdef Note note = note_of(obj, ptr, nbytes)
    cdef hetccl_mr_range_t* range
    if note is not None:
        range = note.range
    else:
        notes_lock()
        range = hetccl_mr_note(process_notes, ptr, nbytes, 1)
        notes_unlock()
        if range == NULL:
            raise MemoryError("register: a note of the array's memory")
    with nogil:
        pthread_mutex_lock(&process_notes.lock)
        ndevices[0] = hetccl_mr_keep(process_notes, range)
        pthread_mutex_unlock(&process_notes.lock)
    notes_report()
    return range


cdef void register_end(hetccl_mr_range_t* range) noexcept:
    if getpid() == owner_pid:
        with nogil:
            pthread_mutex_lock(&process_notes.lock)
            hetccl_mr_release(process_notes, range)
            pthread_mutex_unlock(&process_notes.lock)
