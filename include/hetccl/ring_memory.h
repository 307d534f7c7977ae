/* Pinned memory that the peers of a host can read directly: pages of our own, registered with the GPU's runtime. What
 * the runtime allocates itself, process_vm_readv does not read (layer L3). */
#ifndef HETCCL_RING_MEMORY_H
#define HETCCL_RING_MEMORY_H

#include <sys/mman.h>

#include "hetccl/runtime.h"

enum { HETCCL_RING_NO_MEMORY = 2 }; /* CUDA's and HIP's code for it */

/* Answers NULL with a code of the runtime's. Shared, so that a child of a fork cannot take the pages away. */
static void *hetccl_pinned_alloc(const hetccl_runtime_t *gpu, size_t nbytes, int *code) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *code = HETCCL_RING_NO_MEMORY;
        return NULL;
    }
    *code = gpu->host_register(memory, nbytes);
    if (!*code) return memory;
    munmap(memory, nbytes);
    return NULL;
}

static void hetccl_pinned_free(const hetccl_runtime_t *gpu, void *memory, size_t nbytes) {
    if (!memory) return;
    gpu->host_unregister(memory);
    munmap(memory, nbytes);
}

#endif
