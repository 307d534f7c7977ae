/* The shared-memory segment of one communicator (layer L2): its layout, the ranks' public state, and the bells.
 *
 * Whoever waits sleeps on its own bell, a futex. Its peers ring it, when they publish or release, only if somebody
 * sleeps there; the full fences make "I published, do you sleep?" and "I sleep, did you publish?" see each other
 * (Dekker). */
#ifndef HETCCL_SHM_H
#define HETCCL_SHM_H

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HETCCL_SHM_MAGIC 0x32306c6363746568ull /* "hetccl02" */
#define HETCCL_SHM_SECRET_BYTES 16
#define HETCCL_CACHE_LINE 64
#define HETCCL_SHM_PAGE 4096

/* DEAD: known of ranks on other hosts only; of those on this host, /proc tells. */
enum hetccl_rank_state { HETCCL_RANK_ALIVE = 1, HETCCL_RANK_FREED = 2, HETCCL_RANK_DEAD = 3 };

/* One rank's public state; the first line is written by its peers, the second by itself. */
typedef struct hetccl_rank_block {
    uint32_t bell;     /* futex word: counts rings */
    uint32_t sleepers; /* threads of the rank that sleep on the bell */
    uint8_t pad0[HETCCL_CACHE_LINE - 8];
    uint64_t entered;  /* collectives this rank has entered on this communicator */
    uint32_t call;     /* which one the last was */
    uint32_t state;    /* enum hetccl_rank_state */
    uint64_t pid;
    uint64_t start_ticks;   /* field 22 of /proc/<pid>/stat: tells a reused pid */
    uint64_t probe_address; /* of a word of this process that holds the job secret's first 8 bytes */
    uint8_t pad1[HETCCL_CACHE_LINE - 40];
} hetccl_rank_block_t;

typedef struct hetccl_shm_header {
    uint64_t magic;
    uint8_t secret[HETCCL_SHM_SECRET_BYTES];
    uint32_t nranks;
    uint32_t ncells;
    uint64_t cell_bytes;
    uint64_t total_bytes;
    uint8_t pad0[HETCCL_CACHE_LINE - 48];
    uint64_t fault; /* 0, or why the communicator is broken: see HETCCL_FAULT */
    uint8_t pad1[HETCCL_CACHE_LINE - 8];
} hetccl_shm_header_t;

/* The fault word: the first rank that gives up writes it, all others read it. */
enum hetccl_reason {
    HETCCL_REASON_DEAD = 1,
    HETCCL_REASON_LEFT = 2,
    HETCCL_REASON_TIMEOUT = 3,
    HETCCL_REASON_FREED = 4,
    HETCCL_REASON_NETWORK = 5, /* the reporter lost its connection to the culprit */
};
#define HETCCL_FAULT(reason, reporter, culprit) \
    ((uint64_t)(reason) << 56 | (uint64_t)(uint32_t)(reporter) << 28 | (uint64_t)(uint32_t)(culprit))
#define HETCCL_FAULT_REASON(fault) ((int)((fault) >> 56))
#define HETCCL_FAULT_REPORTER(fault) ((int)((fault) >> 28 & 0xfffffff))
#define HETCCL_FAULT_CULPRIT(fault) ((int)((fault) & 0xfffffff))

static inline size_t hetccl_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* Layout: header | rank blocks | tails | acks | readable matrix | cells. Two classes of tails, acks and cells: 0
 * collectives, 1 point to point. */
static inline size_t hetccl_shm_blocks_at(void) {
    return hetccl_round_up(sizeof(hetccl_shm_header_t), HETCCL_CACHE_LINE);
}
static inline size_t hetccl_shm_tails_at(size_t nranks) {
    return hetccl_shm_blocks_at() + nranks * sizeof(hetccl_rank_block_t);
}
static inline size_t hetccl_shm_acks_at(size_t nranks) {
    return hetccl_shm_tails_at(nranks) + 2 * nranks * nranks * HETCCL_CACHE_LINE;
}
static inline size_t hetccl_shm_readable_at(size_t nranks) {
    return hetccl_shm_acks_at(nranks) + 2 * nranks * nranks * HETCCL_CACHE_LINE;
}
static inline size_t hetccl_shm_cells_at(size_t nranks) {
    return hetccl_round_up(hetccl_shm_readable_at(nranks) + nranks * nranks, HETCCL_SHM_PAGE);
}
static inline size_t hetccl_shm_total(size_t nranks, size_t ncells, size_t cell_bytes) {
    return hetccl_shm_cells_at(nranks) + 2 * nranks * nranks * ncells * cell_bytes;
}

static inline void hetccl_bell_ring(hetccl_rank_block_t *block) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&block->sleepers, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&block->bell, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &block->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static inline uint32_t hetccl_bell_now(hetccl_rank_block_t *block) {
    return __atomic_load_n(&block->bell, __ATOMIC_ACQUIRE);
}

/* Between arm and disarm the caller polls once more, then sleeps if nothing has come. */
static inline uint32_t hetccl_bell_arm(hetccl_rank_block_t *block) {
    uint32_t bell = hetccl_bell_now(block);
    __atomic_fetch_add(&block->sleepers, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return bell;
}

static inline void hetccl_bell_sleep(hetccl_rank_block_t *block, uint32_t bell, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, &block->bell, FUTEX_WAIT, bell, &timeout, NULL, 0);
}

static inline void hetccl_bell_disarm(hetccl_rank_block_t *block) {
    __atomic_fetch_sub(&block->sleepers, 1, __ATOMIC_SEQ_CST);
}

#endif
