"""Layer L3: names of the calls, by the numbers in _calls.pxd, and the plans that collectives run."""

# For messages; a call is passed and published as its index.
CALLS = (
    "Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Barrier", "Gather", "Gatherv",
    "Scatter", "Scatterv", "Allgatherv", "Reduce_scatter", "Alltoallv", "Alltoallw", "Scan", "Exscan",
    "Send", "Recv", "Sendrecv", "Probe", "Split", "Split_type", "Dup", "Create", "set-up of the GPUs",
)

# The collectives' names in hetccl.plan, by call. A call whose units differ in length runs the plan of the one whose
# units do not.
PLANS = (
    "allreduce", "reduce", "bcast", "allgather", "reduce_scatter_block", "alltoall", "barrier", "gather", "gather",
    "scatter", "scatter", "allgather", "reduce_scatter_block", "alltoall", "alltoall", "scan", "exscan",
)
