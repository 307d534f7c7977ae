/* The fake's communicators, and the faults that a test asks it for. */
#ifndef FAKECCL_STATE_H
#define FAKECCL_STATE_H

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>

#include "fakeccl_link.h"
#include "fakeccl_numbers.h"

#define API __attribute__((visibility("default")))

enum { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { ALIVE = 0x0c0ffee5, OPS_OF_USERS_MAX = 64, FACTOR_BYTES = 8, CONFIG_BYTES_MIN = 48, OLDEST_CONFIG = 21400 };

typedef struct factor {
    int used, dtype;
    const void *on_device; /* read when it is used; NULL: the value below */
    char value[FACTOR_BYTES];
} factor_t;

typedef struct comm {
    int mark; /* ALIVE */
    wire_t link;
    int is_blocking;
    int is_connecting;  /* not all ranks have come */
    int is_finalized;
    int ncalls, nsplits, nregistered;
    atomic_int pending; /* questions that are answered "in progress" from now on; INT_MAX: all */
    atomic_int inside;  /* calls of other threads, which abort waits for */
    factor_t factors[OPS_OF_USERS_MAX];
} comm_t;

static atomic_int ncomms;
static __thread char last_error[256];

static int fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

/* The entry "name=..." or "name" of a list such as "ncclSend=2,ncclAllReduce=3@5" in a variable, or NULL. */
static const char *entry_of(const char *variable, const char *name) {
    const char *text = getenv(variable);
    size_t n = strlen(name);
    for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL)
        if (!strncmp(text, name, n) && (text[n] == '=' || text[n] == ',' || !text[n])) return text + n;
    return NULL;
}

static int hangs(const char *function) { return entry_of("FAKE_CCL_HANG", function) != NULL; }

/* Stay, if the function has to hang; until a communicator is aborted, where one is given. */
static void hang(atomic_int *aborted, const char *function) {
    while (hangs(function) && !(aborted && atomic_load(aborted))) nanosleep(&(struct timespec){0, 10000000}, NULL);
}

/* The code that a function has to answer at this call of it. */
static int injected(const char *function) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        const char *function;
        int ncalls;
    } counts[64];
    const char *entry = entry_of("FAKE_CCL_FAIL", function);
    int code = 0, at = 0, i = 0;
    if (!entry || sscanf(entry, "=%d@%d", &code, &at) < 1) return OK;
    pthread_mutex_lock(&mutex);
    while (counts[i].function && strcmp(counts[i].function, function)) i++;
    counts[i].function = function;
    int ncalls = ++counts[i].ncalls;
    pthread_mutex_unlock(&mutex);
    return at && at != ncalls ? OK : fail(code, "%s was told to fail", function);
}

static int is_comm(const comm_t *comm) { return comm && comm->mark == ALIVE; }

/* Where the communicator stands: OK, IN_PROGRESS or an error; each question brings it on. */
static int progress(comm_t *comm) {
    const char *text = getenv("FAKE_CCL_ASYNC_ERROR");
    int pending = atomic_load(&comm->pending);
    if (comm->is_connecting && !link_is_complete(&comm->link)) return IN_PROGRESS;
    comm->is_connecting = 0;
    if (pending == INT_MAX) return IN_PROGRESS;
    if (pending) {
        atomic_fetch_sub(&comm->pending, 1);
        return IN_PROGRESS;
    }
    return text && comm->ncalls ? fail(atoi(text), "FAKE_CCL_ASYNC_ERROR") : OK;
}

/* Whether a call may use the communicator. */
static int ready(comm_t *comm, const char *function) {
    if (!is_comm(comm)) return fail(INVALID_ARGUMENT, "%s: comm is NULL or freed", function);
    if (atomic_load(&comm->link.aborted)) return fail(INVALID_USAGE, "%s: comm is aborted", function);
    if (comm->is_finalized) return fail(INVALID_USAGE, "%s: comm is finalized", function);
    int state = comm->is_connecting || atomic_load(&comm->pending) ? IN_PROGRESS : OK;
    if (state == IN_PROGRESS) return fail(INVALID_USAGE, "%s: comm is in progress", function);
    return injected(function);
}

/* What a call answers that has been done: a communicator that does not block is in progress, for some questions. */
static int done(comm_t *comm, const char *function, int nquestions) {
    if (comm->is_blocking) return OK;
    atomic_store(&comm->pending, hangs(function) ? INT_MAX : nquestions);
    return atomic_load(&comm->pending) ? IN_PROGRESS : OK;
}

static int explain(int status, const char *function) {
    switch (status) {
        case MOVED: return OK;
        case ABORTED: return fail(REMOTE_ERROR, "%s: comm was aborted", function);
        case LATE: return fail(REMOTE_ERROR, "%s: a peer has not come", function);
        default: return fail(INTERNAL_ERROR, "%s: a peer has called something else, or with another count", function);
    }
}

#endif
