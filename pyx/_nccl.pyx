"""NCCL and RCCL, which share one ABI; layer L1."""
