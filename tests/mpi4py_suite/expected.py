"""Which of mpi4py's test files are run, and which of their tests do not pass on hetccl, each with the reason.

Read by the program under mpirun and by pytest. The names are those of mpi4py 4.1.
"""

import fnmatch
from typing import NamedTuple


class File(NamedTuple):
    """A test file that is run.

    own   : it is about calls that hetccl has itself, so that requests and messages are hetccl's too; else its calls
            are passed on to MPI, and it shows that they are
    ranks : the sizes of jobs in which it is run
    """

    own: bool
    ranks: tuple


OWN, PASSED_ON = File(True, (1, 2, 3, 4)), File(False, (3,))

FILES = {
    "test_cco_buf": OWN,
    "test_cco_nb_buf": OWN,
    "test_cco_pr_buf": OWN,
    "test_cco_vec": OWN,
    "test_cco_nb_vec": OWN,
    "test_cco_pr_vec": OWN,
    "test_p2p_buf": OWN,
    "test_p2p_buf_matched": OWN,
    "test_request": OWN,
    "test_msgspec": OWN,
    "test_msgzero": OWN,
    "test_op": OWN,
    "test_comm": OWN,
    "test_cco_obj": PASSED_ON,
    "test_p2p_obj": PASSED_ON,
    "test_p2p_buf_part": File(False, (1,)),
    "test_comm_topo": PASSED_ON,
}

# Files that are not run, by why.
GIVES_AWAY = "gives the communicator to a class or function of mpi4py, which takes no hetccl.Comm: comm.mpi is for that"
INTER = "is about intercommunicators, which hetccl.Comm refuses"
NO_TRAFFIC = "is about objects of MPI, or of Python, that move no data"
OF_MPI = "works on what Create_cart and Create_graph return, which are MPI's own communicators"
SEPARATE = "is about windows, files, sessions or processes, which hetccl has nothing to do with"
NOT_RUN = {
    "test_address": NO_TRAFFIC,
    "test_attributes": GIVES_AWAY,
    "test_buffer": NO_TRAFFIC,
    "test_cco_buf_inter": INTER,
    "test_cco_obj_inter": INTER,
    "test_cco_vec_inter": INTER,
    "test_cco_ngh_buf": OF_MPI,
    "test_cco_ngh_obj": OF_MPI,
    "test_cco_pr_ngh_buf": OF_MPI,
    "test_cffi": NO_TRAFFIC,
    "test_comm_inter": INTER,
    "test_ctypes": NO_TRAFFIC,
    "test_datatype": NO_TRAFFIC,
    "test_doc": NO_TRAFFIC,
    "test_dynproc": SEPARATE,
    "test_environ": NO_TRAFFIC,
    "test_errhandler": NO_TRAFFIC,
    "test_errorcode": NO_TRAFFIC,
    "test_exceptions": NO_TRAFFIC,
    "test_file": SEPARATE,
    "test_grequest": NO_TRAFFIC,
    "test_group": NO_TRAFFIC,
    "test_handle": NO_TRAFFIC,
    "test_info": NO_TRAFFIC,
    "test_io": SEPARATE,
    "test_mpiabi": NO_TRAFFIC,
    "test_mpiapi": NO_TRAFFIC,
    "test_mpimem": NO_TRAFFIC,
    "test_objmodel": NO_TRAFFIC,
    "test_p2p_obj_matched": GIVES_AWAY,
    "test_pack": GIVES_AWAY,
    "test_package": NO_TRAFFIC,
    "test_pickle": NO_TRAFFIC,
    "test_rma": SEPARATE,
    "test_rma_nb": SEPARATE,
    "test_session": SEPARATE,
    "test_spawn": SEPARATE,
    "test_status": NO_TRAFFIC,
    "test_subclass": GIVES_AWAY,
    "test_threads": NO_TRAFFIC,
    "test_toplevel": NO_TRAFFIC,
    "test_ulfm": SEPARATE,
    "test_util_dtlib": NO_TRAFFIC,
    "test_util_pkl5": GIVES_AWAY,
    "test_util_pool": SEPARATE,
    "test_util_sync": GIVES_AWAY,
    "test_win": SEPARATE,
}


class Difference(NamedTuple):
    """Tests that do not pass: every one whose name, without the file's "test_", matches the pattern.

    applies : False for what hetccl does not have or do, so that the test says nothing about it; True where it has the
              call, but differs
    says    : part of what the failing test prints, so that it cannot fail for another reason; None: it is not run,
              since it would end the job
    ranks   : sizes of jobs for which it holds, or None for all
    """

    pattern: str
    applies: bool
    reason: str
    says: str | None
    ranks: tuple | None = None


HANDLES = "makes, copies or pickles a handle of MPI; hetccl's objects have none"
UNBOUND = "calls a method of mpi4py's class on a hetccl.Comm, which mpi4py does not check and reads as its own"
FAKE_GPU = "passes host memory as a GPU's; hetccl looks for that GPU's driver, which these jobs do not have"
# Where the jobs look for CUDA's driver; errors name it.
NO_DRIVER = "/no/driver/libcuda.so.1"
ABSOLUTE = "MPI.BOTTOM is refused: whether absolute addresses lie in the caller's memory cannot be checked"
CLASS_OF_ERROR = "an error of another class: TypeError where mpi4py raises KeyError, ValueError or BufferError"
A_GROUP = "the type of comm.group is a subclass of MPI.Group, to serve `with` too"
NO_CANCEL = "Cancel raises NotImplementedError: no message is ever taken back"
TWO_WAYS = "receives by recv what Send has sent: only MPI has pickles"

# The first pattern that matches counts.
DIFFERENCES = (
    Difference("cco_nb_vec.*.testAlltoallwBottom", True, ABSOLUTE, "BOTTOM (absolute addresses)"),
    Difference("cco_pr_vec.*.testAlltoallwBottom", True, ABSOLUTE, "BOTTOM (absolute addresses)"),
    Difference("cco_vec.*.testAlltoallwBottom", True, ABSOLUTE, "BOTTOM (absolute addresses)"),
    Difference("comm.*.testCompare", False, GIVES_AWAY, "expected mpi4py.MPI.Comm"),
    Difference("comm.TestComm[SW]*.testConstructor", False, GIVES_AWAY, "expected mpi4py.MPI.Comm"),
    Difference("comm.*.testCreate", False, UNBOUND, None),
    Difference("comm.*.testCreateFromGroup", False, UNBOUND, None),
    Difference("comm.*.testCreateGroup", False, UNBOUND, None),
    Difference("comm.*.testIDup", False, UNBOUND, None),
    Difference("comm.*.testIDupWithInfo", False, UNBOUND, None),
    Difference("comm.TestComm[SW]*.testPickle", False, HANDLES, "a Comm cannot be pickled"),
    Difference("comm.*.testPyProps", True, A_GROUP, "MPI.Group"),
    Difference("msgspec.TestMessageCAIBuf.testTypestrEndian", False, FAKE_GPU, "byte order"),
    Difference("msgspec.TestMessageCAIBuf.testDescrMissing", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageCAIBuf.testStridesMissing", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageCAIBuf.test*Missing", True, CLASS_OF_ERROR, "CAIBuf lacks"),
    Difference("msgspec.TestMessageCAIBuf.testAttrEmpty", True, CLASS_OF_ERROR, "CAIBuf lacks"),
    Difference("msgspec.TestMessageCAIBuf.testDescr*", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageCAIBuf.testMask", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageCAIBuf.testNonContiguous", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageCAIBuf.testStridesNone", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageSimpleCAIBuf.testArray*", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageVectorCAIBuf.*", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageVectorW.testMessageCAIBuf", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageSimpleDLPackGPUBuf*.testArray*", False, FAKE_GPU, NO_DRIVER),
    Difference("msgspec.TestMessageRMA.*", False, SEPARATE, "expected mpi4py.MPI.Intracomm"),
    Difference("msgspec.TestMessageSimple.testMessageBad", True, CLASS_OF_ERROR, "TypeError: sendbuf: no dtype has"),
    Difference("msgspec.TestMessageVector.testMessageBad", True, CLASS_OF_ERROR, "TypeError: sendbuf: no dtype has"),
    Difference("msgspec.TestMessageVectorW.testMessageBad", True, CLASS_OF_ERROR, "TypeError: sendbuf: counts and"),
    Difference("msgspec.TestMessageSimpleNumPy.testByteOrder", True, CLASS_OF_ERROR, "TypeError: sendbuf: byte order"),
    Difference("msgspec.TestMessage*.testMessageBottom", True, ABSOLUTE, "BOTTOM (absolute addresses)"),
    Difference("p2p_buf.*.testConstructor", False, HANDLES, "<hetccl.Prequest null> != <hetccl.Prequest of Send>"),
    Difference("p2p_buf.*.testProbeCancel", True, NO_CANCEL, "NotImplementedError: Cancel"),
    Difference("p2p_buf_matched.TestMessage.testMessageNoProc", False, HANDLES, "<hetccl.Message null> is not true"),
    Difference("p2p_buf_matched.TestMessage.testMessageNull", False, HANDLES, "!= <hetccl.Message null>"),
    Difference("p2p_buf_matched.TestMessage.testPickle", False, HANDLES, "a Message cannot be pickled"),
    Difference("p2p_obj.*.testCommLock", False, GIVES_AWAY, "expected mpi4py.MPI.Comm"),
    Difference("p2p_obj.*.testMixed", True, TWO_WAYS, None),
)


def difference(name, ranks):
    """The entry that says why a test does not pass in a job of so many ranks, or None."""
    for entry in DIFFERENCES:
        if fnmatch.fnmatchcase(name, f"test_{entry.pattern}") and ranks in (entry.ranks or (ranks,)):
            return entry
    return None
