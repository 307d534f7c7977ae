"""HIP's functions as a runtime; layer L1."""
