"""oneCCL's C API; layer L1."""
