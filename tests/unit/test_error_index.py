"""The index of messages in docs/troubleshooting*.md against the errors in the sources: none missing, none left over."""

import fnmatch
import re

import error_texts
import pytest
from error_texts import ROOT, tidy

PAGES = sorted(ROOT.glob("docs/troubleshooting*.md"))
# An entry: a bullet that begins with messages in code quotes, with commas between them, and a colon after the last.
ENTRY = re.compile(r"^- (`[^`]+`(?:,\s+`[^`]+`)*):\n  (\S.*)$", re.MULTILINE)
# So many letters are the least that an entry must be sure of.
LETTERS = 8

# Errors that no user meets, or that say themselves all that there is to do: file, text, why they are not in the index.
LEFT_OUT = (
    ("hetccl/cli/*", "*", "usage of the command line, printed with its synopsis"),
    ("hetccl/plan/*", "*", "plans are built by hetccl; a PlanError is a fault of its own, as the index says"),
    ("hetccl/net/records.py", "*", "a peer's bytes, shown behind 'broke the protocol'"),
    ("hetccl/net/control.py", "*", "the same"),
    ("hetccl/net/gids.py", "gid: *", "an answer of libibverbs, read by hetccl"),
    ("pyx/*_kernels.pyx", "*", "an interface for tests and benchmarks"),
    ("hetccl/kernels.py", "*fat binary*", "caught by its caller"),
    ("pyx/_wire*.pyx", "*: *; *needed", "called by hetccl alone"),
    ("pyx/_wire.pyx", "the wire is closed", "called by hetccl alone"),
    ("pyx/_wire.pyx", "p[eo]*: *", "called by hetccl alone"),
    ("pyx/_wire.pyx", "in[bd]*: *", "called by hetccl alone"),
    ("pyx/_wire_poll.pyx", "c*_bytes*", "called by hetccl alone"),
    ("pyx/_tcp.pyx", "*rail*", "called by hetccl alone"),
    ("pyx/_tcp.pyx", "the p*", "called by hetccl alone"),
    ("pyx/_rdma.pyx", "*", "called by hetccl alone"),
    ("pyx/_board.pyx", "peer: *", "called by hetccl alone"),
    ("pyx/_program.pyx", "*", "a plan that hetccl's own executor cannot run"),
    ("pyx/_vendor.pyx", "VendorComm: *", "called by hetccl alone"),
    ("pyx/_vendor.pyx", "rank: *", "called by hetccl alone"),
    ("pyx/_vendor.pyx", "unique_id: *", "called by hetccl alone"),
    ("pyx/_verbs.pyx", "* is closed", "called by hetccl alone"),
    ("pyx/_c*.pyx", "function: * is none of *", "called by hetccl alone"),
    ("pyx/_runtime.pyx", "name: * is no function of hetccl_runtime_t", "called by hetccl alone"),
    ("pyx/*", "use *", "a class that is made in another way, by hetccl alone"),
    ("pyx/_runtime.pyx", "runtimes are opened, not made: *", "the same"),
    ("pyx/_layout.pyx", "Layout: is made *", "the same"),
    ("pyx/_dl.pyx", "sonames: *", "called by hetccl alone"),
)
# Errors whose message is put together elsewhere: file, argument. Their parts are texts of other entries.
MADE_ELSEWHERE = (
    ("hetccl/net/handshake.py", "STATUS[CLOSED]"),
    ("hetccl/net/handshake.py", "_refusal(status,hello)"),
    ("hetccl/net/meeting.py", "*records.refusal(body)"),
    ("hetccl/net/meeting.py", "text"),
    ("hetccl/net/control.py", "text"),
    ("hetccl/net/pair.py", "os.strerror(errno.ECONNREFUSED)"),
)


def letters(text):
    return sum(map(str.isalpha, text))


def matches(pattern, text):
    """Whether a message of the index, with … for anything, is the text."""
    cut = re.sub(r"\s+…$", "…", pattern)
    return re.fullmatch(".*".join(map(re.escape, cut.split("…"))), text) is not None


def entries():
    """[(page, message, what is said about it)]"""
    found = []
    for page in PAGES:
        for quoted, said in ENTRY.findall(page.read_text()):
            found += [(page.name, tidy(message), said) for message in re.findall(r"`([^`]+)`", quoted)]
    return found


INDEX = entries()


def left_out(text):
    return any(fnmatch.fnmatch(text.file, file) and fnmatch.fnmatch(text.text, part) for file, part, _ in LEFT_OUT)


def to_be_found():
    """The texts that a user may meet; what is but names and numbers is made of texts that have entries.

    Those of a MemoryError have one entry together.
    """
    texts = [text for text in error_texts.texts() if text.kind != "MemoryError" and not left_out(text)]
    return [text for text in texts if letters(text.text) >= LETTERS]


def test_texts_are_found():
    """Of each kind of source, with fields, joined strings, and a name that got its text before."""
    found = {text.text for text in error_texts.texts()}
    assert len(found) > 250
    assert "comm: is a hetccl.Comm already; its MPI communicator is comm.mpi" in found
    assert "… not found; tried: …" in found
    assert "… has no …: a newer release of this library is needed" in found
    reading = "…: reading … bytes from rank …'s memory: … (HETCCL_SINGLE_COPY=off avoids process_vm_readv)"
    assert reading in found


@pytest.mark.parametrize("file", sorted({text.file for text in to_be_found()}))
def test_each_error_has_an_entry(file):
    """Else write one in docs/troubleshooting.md, or docs/troubleshooting-arguments.md for an argument's."""
    texts = [text for text in to_be_found() if text.file == file]
    missing = [text for text in texts if not any(matches(message, text.text) for _, message, _ in INDEX)]
    assert missing == [], "\n".join(f"{t.file}:{t.line}\n- `{t.text}`:\n  what to do" for t in missing)


def test_messages_that_are_made_elsewhere():
    texts = [text for text in error_texts.texts() if not left_out(text)]
    unread = {(text.file, text.code) for text in texts if not text.text and text.code}
    assert unread <= set(MADE_ELSEWHERE)


@pytest.mark.parametrize("page, message", [(page, message) for page, message, _ in INDEX])
def test_each_entry_is_an_error(page, message):
    """What the sources say no more has no entry, and no entry is so wide that it stands for anything."""
    assert letters(message) >= LETTERS
    longest = max(message.split("…"), key=len).strip(" :;,.()")
    assert longest in error_texts.all_literals()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_of_the_index_is_read(page):
    """Each bullet that begins with a message is an entry, down to its end."""
    text = page.read_text()
    assert len(re.findall(r"^- `", text, re.MULTILINE)) == len(ENTRY.findall(text)) > 40


def test_reasons_for_leaving_out_are_needed():
    """Each stands for an error that has no entry."""
    texts = error_texts.texts()
    unneeded = [
        (file, part)
        for file, part, _ in LEFT_OUT
        if not any(fnmatch.fnmatch(text.file, file) and fnmatch.fnmatch(text.text, part) for text in texts)
    ]
    assert unneeded == []
