"""The CUDA driver's functions as a runtime; layer L1."""
