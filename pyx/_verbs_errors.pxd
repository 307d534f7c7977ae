"""The errors of libibverbs in words."""

# "ENOMEM (Cannot allocate memory)"
cdef str error_text(int error)

# Raise VerbsError for a call of the table. call: the symbol, "ibv_reg_mr"; error: errno; what: which object, "" or
# "1048576 bytes at 0x7f00deadb000"; port: 0: none.
cdef int verbs_raise(str call, int error, str device, int port, str what) except -1
