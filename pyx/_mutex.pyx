"""The mutex of include/hetccl/mutex.h; layer L0."""
