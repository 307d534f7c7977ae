"""The mutex of include/hetccl/mutex.h."""

cdef extern from "hetccl/mutex.h" nogil:
    ctypedef struct hetccl_mutex_t:
        pass
    int hetccl_mutex_open(hetccl_mutex_t* m)
    void hetccl_mutex_close(hetccl_mutex_t* m)
    int hetccl_mutex_try(hetccl_mutex_t* m)
    void hetccl_mutex_lock(hetccl_mutex_t* m)
    int hetccl_mutex_lock_within(hetccl_mutex_t* m, long ns)
    void hetccl_mutex_unlock(hetccl_mutex_t* m)
    void hetccl_mutex_give_way(hetccl_mutex_t* m)
