"""Host memory as a runtime; layer L1."""
