/* The fake libibverbs' state. What the processes of a job must know of each other's objects lies in an arena: a file
 * that all of them map (FAKEVERBS_ARENA), or memory of this process alone. One lock guards all of it, and each
 * process's own objects too. */
#ifndef FAKEVERBS_STATE_H
#define FAKEVERBS_STATE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "hetccl/verbs_abi.h"

#define API __attribute__((visibility("default")))

enum {
    QPS_MAX = 512, /* of all processes */
    CQS_MAX = 512,
    MRS_MAX = 8192,
    CUTS_MAX = 16,
    ARRIVED_MAX = 16384, /* immediate values that a queue pair has not taken in */
    SGES_MAX = 8,
    INLINE_MAX = 400,
    NAME_CHARS = 64
};

typedef struct shared_cq {
    int pid; /* 0: free */
    int armed;
    int channel;      /* number of the process's, 0: none */
    int overrun;
    uint32_t count, cqe;
    uint64_t address; /* of the process's hetccl_ibv_cq_t */
} shared_cq_t;

typedef struct arrived {
    uint32_t imm, nbytes;
} arrived_t;

typedef struct shared_qp {
    int pid; /* 0: free */
    int state;
    uint32_t generation, number, peer, rq_psn;
    uint32_t nrecvs; /* posted, and no immediate value has taken them */
    int recv_cq;     /* index of its shared_cq_t */
    int lid, rnr_timer;
    int access; /* what its peer may do */
    hetccl_ibv_gid_t gid; /* of this end */
    char device[NAME_CHARS];
    uint32_t head, tail; /* of arrived */
    arrived_t arrived[ARRIVED_MAX];
} shared_qp_t;

typedef struct shared_mr {
    int pid; /* 0: free */
    uint32_t generation, key;
    int access;
    uint64_t address; /* as requests name it */
    uint64_t memory;  /* where it lies in the process */
    uint64_t nbytes;
    int is_gpu;
} shared_mr_t;

typedef struct arena {
    atomic_int owner; /* process that holds the lock */
    char cut[CUTS_MAX][NAME_CHARS]; /* devices whose packets get lost */
    shared_cq_t cqs[CQS_MAX];
    shared_mr_t mrs[MRS_MAX];
    shared_qp_t qps[QPS_MAX];
} arena_t;

static arena_t *arena;
static char arena_name[40]; /* distinguishes the sockets of one arena's processes from another's */
static int bell_fd = -1;    /* what other processes' channels are rung with */

static int alive(int pid) { return pid && (pid == getpid() || kill(pid, 0) == 0 || errno != ESRCH); }

/* A process that was killed inside does not stop the others. */
static void lock(void) {
    int pid = getpid();
    for (unsigned turns = 1;; turns++) {
        int owner = 0;
        if (atomic_compare_exchange_weak(&arena->owner, &owner, pid)) return;
        if (turns % 64 == 0) sched_yield();
        if (turns % 4096 || !owner || alive(owner)) continue;
        if (atomic_compare_exchange_weak(&arena->owner, &owner, pid)) return;
    }
}

static void unlock(void) { atomic_store(&arena->owner, 0); }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void arena_open(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!arena) {
        const char *path = getenv("FAKEVERBS_ARENA");
        int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("fakeverbs", MFD_CLOEXEC);
        struct stat about;
        if (fd < 0 || ftruncate(fd, sizeof(arena_t)) || fstat(fd, &about)) abort();
        arena_t *mapped = mmap(NULL, sizeof(arena_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped == MAP_FAILED) abort();
        close(fd);
        snprintf(arena_name, sizeof arena_name, "%lx.%lx", (long)about.st_dev, (long)about.st_ino);
        bell_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        arena = mapped;
    }
    pthread_mutex_unlock(&once);
}

static socklen_t channel_address(struct sockaddr_un *address, int pid, int channel) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fakeverbs.%s.%d.%d", arena_name, pid,
                     channel);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Something has come into a completion queue, of whichever process: count it, and announce it if that was asked for. */
static void cq_came(shared_cq_t *cq) {
    if (++cq->count > cq->cqe) cq->overrun = 1;
    if (!cq->armed || !cq->channel) return;
    cq->armed = 0;
    struct sockaddr_un address;
    socklen_t nbytes = channel_address(&address, cq->pid, cq->channel);
    sendto(bell_fd, &cq->address, sizeof cq->address, MSG_DONTWAIT, (struct sockaddr *)&address, nbytes);
}

static int is_cut(const char *device) {
    for (int i = 0; i < CUTS_MAX; i++)
        if (!strcmp(arena->cut[i], device)) return 1;
    return 0;
}

static shared_mr_t *mr_of(uint32_t key, int pid, uint64_t address, uint64_t nbytes) {
    shared_mr_t *mr = &arena->mrs[key % MRS_MAX];
    if (mr->pid != pid || mr->key != key || address < mr->address) return NULL;
    return address - mr->address <= mr->nbytes && nbytes <= mr->nbytes - (address - mr->address) ? mr : NULL;
}

static shared_qp_t *qp_numbered(uint32_t number) {
    shared_qp_t *qp = &arena->qps[number % QPS_MAX];
    return qp->pid && qp->number == number ? qp : NULL;
}

/* What a test asks for: FAKEVERBS_FAIL, or fakeverbs_fail(): "reg_mr=12@3,create_qp=1" is errno 12 for the third call
 * of reg_mr, and errno 1 for every call of create_qp. */
enum { CALLS_MAX = 64 };

static struct { char name[32]; long count; } calls[CALLS_MAX];
static char failures[1024];
static int failures_given;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

static long calls_of(const char *name, int more) {
    int i = 0;
    while (i < CALLS_MAX - 1 && calls[i].name[0] && strcmp(calls[i].name, name)) i++;
    snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
    return calls[i].count += more;
}

/* Count a call; the errno with which it must fail, or 0. */
static int called(const char *name) {
    pthread_mutex_lock(&calls_lock);
    long count = calls_of(name, 1), nth = 0;
    int error = 0, given = 0;
    size_t n = strlen(name);
    const char *text = failures_given ? failures : getenv("FAKEVERBS_FAIL");
    for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) {
        if (strncmp(text, name, n) || text[n] != '=') continue;
        int fields = sscanf(text + n + 1, "%d@%ld", &given, &nth);
        if (fields == 1 || (fields == 2 && count == nth)) error = given;
    }
    pthread_mutex_unlock(&calls_lock);
    return error;
}

API void fakeverbs_fail(const char *text) {
    pthread_mutex_lock(&calls_lock);
    failures_given = text != NULL;
    snprintf(failures, sizeof failures, "%s", text ? text : "");
    memset(calls, 0, sizeof calls);
    pthread_mutex_unlock(&calls_lock);
}

API long fakeverbs_calls(const char *name) {
    pthread_mutex_lock(&calls_lock);
    long count = calls_of(name, 0);
    pthread_mutex_unlock(&calls_lock);
    return count;
}

#endif
