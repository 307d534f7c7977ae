/* The fake CUDA driver's streams: what is queued is done at once, or with ..._QUEUES=n by a thread for each of n queues
 * of the "hardware", to which the streams are dealt out as they are made. With one, whatever waits holds up all that is
 * queued behind it, as on a GPU under CUDA_DEVICE_MAX_CONNECTIONS=1. */
#ifndef FAKECUDA_QUEUE_H
#define FAKECUDA_QUEUE_H

#include "fakecuda.h"

enum { QUEUES_MAX = 16, ARGUMENT_MAX = 256 };
enum { COPY = 1, FILL, WRITE, WAIT, CALL, LAUNCH, RECORD, FOLLOW };

typedef struct work {
    struct work *next;
    int kind, wraps;
    void *dst;
    const void *src;
    size_t nbytes, count; /* of FILL: of an element, and how many */
    uint32_t value;
    void (*function)(void *);
    handle_t *event;
    unsigned long number; /* of the event's records */
    void (*kernel)(void **, const unsigned *, const unsigned *);
    unsigned grid[3], block[3];
    char argument[ARGUMENT_MAX]; /* of LAUNCH: the kernel's one */
} work_t;

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    work_t *first, *last; /* the first is at work */
    int running;
} queue_t;

static queue_t queues[QUEUES_MAX];

static void *seen(const void *pointer); /* of fakecuda_memory.h */
static unsigned ndealt;

static int nqueues(void) {
    int n = setting(PREFIX "QUEUES", 0);
    return n < QUEUES_MAX ? n : QUEUES_MAX;
}

/* Until *word has reached value: the CUDA way, by the sign of the difference, or the HIP way, as plain numbers. */
static int wait_for(const uint32_t *word, uint32_t value, int wraps) {
    struct timespec start, now, pause = {0, 20000};
    int limit_ms = setting(PREFIX "WAIT_MS", 20000);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        uint32_t got = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (wraps ? (int32_t)(got - value) >= 0 : got >= value) return OK;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >= limit_ms) return TIMED_OUT;
        if (nqueues()) nanosleep(&pause, NULL);
        else sched_yield();
    }
}

static int perform(const work_t *work) {
    struct timespec pause = {0, 20000};
    switch (work->kind) {
    case COPY: memmove(seen(work->dst), seen(work->src), work->nbytes); break;
    case FILL:
        for (size_t i = 0; i < work->count; i++)
            memcpy((char *)seen(work->dst) + i * work->nbytes, &work->value, work->nbytes);
        break;
    case WRITE: __atomic_store_n((uint32_t *)seen(work->dst), work->value, __ATOMIC_SEQ_CST); break;
    case WAIT: return wait_for(seen(work->dst), work->value, work->wraps);
    case CALL: work->function(work->dst); break;
    case LAUNCH: work->kernel((void *[]){(void *)work->argument}, work->grid, work->block); break;
    case RECORD: __atomic_store_n(&work->event->reached, work->number, __ATOMIC_SEQ_CST); break;
    case FOLLOW:
        while (__atomic_load_n(&work->event->reached, __ATOMIC_SEQ_CST) < work->number) nanosleep(&pause, NULL);
        break;
    }
    return OK;
}

static void *serve(void *argument) {
    queue_t *queue = argument;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (!queue->first) pthread_cond_wait(&queue->changed, &queue->mutex);
        work_t *work = queue->first;
        pthread_mutex_unlock(&queue->mutex);
        perform(work);
        pthread_mutex_lock(&queue->mutex);
        queue->first = work->next;
        if (!queue->first) queue->last = NULL;
        free(work);
        pthread_cond_broadcast(&queue->changed);
    }
    return NULL;
}

/* The legacy and per-thread streams share a handle, which has the first queue. */
static queue_t *queue_of(handle_t *stream) {
    pthread_mutex_lock(&lock);
    if (!stream->dealt) stream->dealt = 1 + (int)(ndealt++ % (unsigned)nqueues());
    queue_t *queue = &queues[stream->dealt - 1];
    if (!queue->running) {
        pthread_t thread;
        pthread_mutex_init(&queue->mutex, NULL);
        pthread_cond_init(&queue->changed, NULL);
        queue->running = !pthread_create(&thread, NULL, serve, queue) && !pthread_detach(thread);
    }
    pthread_mutex_unlock(&lock);
    return queue;
}

static void worked(handle_t *stream) {
    if (setting(PREFIX "LAZY", 0)) stream->pending = 1;
}

static int submit(handle_t *stream, work_t work) {
    if (!nqueues()) {
        int code = perform(&work);
        if (work.kind <= LAUNCH && work.kind != WAIT) worked(stream);
        return code;
    }
    queue_t *queue = queue_of(stream);
    work_t *kept = malloc(sizeof *kept);
    if (!kept) return NO_MEMORY;
    *kept = work;
    kept->next = NULL;
    pthread_mutex_lock(&queue->mutex);
    if (queue->last) queue->last->next = kept;
    else queue->first = kept;
    queue->last = kept;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    return OK;
}

static int is_empty(handle_t *stream) {
    if (!nqueues()) return 1;
    queue_t *queue = queue_of(stream);
    pthread_mutex_lock(&queue->mutex);
    int empty = !queue->first;
    pthread_mutex_unlock(&queue->mutex);
    return empty;
}

static void drain(queue_t *queue) {
    if (!queue->running) return;
    pthread_mutex_lock(&queue->mutex);
    while (queue->first) pthread_cond_wait(&queue->changed, &queue->mutex);
    pthread_mutex_unlock(&queue->mutex);
}

static void drain_all(void) {
    for (int i = 0; i < nqueues(); i++) drain(&queues[i]);
}

#endif
