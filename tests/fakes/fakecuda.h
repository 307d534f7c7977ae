/* The fake CUDA driver's types, its settings, and what all its functions share: errors that a test asked for, and
 * checked handles. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef FAKE_CUDA_HEADER
#include <cuda.h>
#else
typedef int CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope;
typedef int CUresult, CUdevice, CUpointer_attribute, CUdevice_attribute, CUstreamCaptureStatus, CUmemRangeHandleType;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *);
typedef struct { char reserved[64]; } CUipcMemHandle;
#endif

#define EXPORT __attribute__((visibility("default")))
#ifndef FAKE_HIP /* fakehip.c keeps the driver to itself */
#define API EXPORT
#define PREFIX "FAKE_CUDA_"
#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define FIRST_BUS 0x3B
#endif
enum { DEVICES_MAX = 64, HANDLES_MAX = 1 << 16, RANGES_MAX = 1 << 14, CALLS_MAX = 128 };
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200 };
enum { BAD_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ALREADY_REGISTERED = 712 };
enum { NOT_REGISTERED = 713, TIMED_OUT = 702, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900 };
enum { HOST = 1, DEVICE = 2, MANAGED = 3, REGISTERED = 4, OPENED = 5 };
enum { CONTEXT = 1, STREAM = 2, EVENT = 3, MODULE = 4, FUNCTION = 5 };

typedef struct {
    int kind, alive, device, pending, capturing;
    void *object;
    int dealt;                      /* of a stream: 1 + its queue; 0: none yet */
    unsigned long recorded, reached; /* of an event */
    unsigned argument_nbytes;       /* of a function: its one argument's size; 0: not known */
} handle_t;
typedef struct {
    char *base;
    size_t nbytes, mapped;
    int kind, device, fd;
    unsigned long long id;
    char *window; /* where the driver itself sees it, if not at base */
} range_t;
typedef struct { int32_t pid, fd, device; size_t nbytes, mapped; } ipc_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static handle_t handles[HANDLES_MAX];
static unsigned nhandles;
static range_t ranges[RANGES_MAX];
static int nranges;
static unsigned long long last_id;
static handle_t *primary[DEVICES_MAX];
static int retained[DEVICES_MAX];
static pid_t initialized_by;
static __thread handle_t *current;
static struct { const char *name; long count; } calls[CALLS_MAX];

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* The device that the user's device `index` really is; -1: there is none. */
static int physical(int index) {
    const char *visible = getenv(VISIBLE);
    int ndevices = setting(PREFIX "DEVICES", 4);
    if (index < 0 || index >= DEVICES_MAX) return -1;
    if (!visible) return index < ndevices ? index : -1;
    for (; *visible; index--) {
        char *end;
        long device = strtol(visible, &end, 10);
        if (end == visible || device < 0 || device >= ndevices) return -1;
        if (!index) return (int)device;
        visible = *end == ',' ? end + 1 : end;
    }
    return -1;
}

/* The code that ..._FAIL asks for, of a function which may be named with or without its _v2. */
static int injected(const char *function) {
    const char *text = getenv(PREFIX "FAIL");
    while (text && *text) {
        size_t n = strcspn(text, "=");
        if (!strncmp(text, function, n) && (!function[n] || !strcmp(function + n, "_v2")) && text[n]) {
            return atoi(text + n + 1);
        }
        text = strchr(text, ',');
        if (text) text++;
    }
    return OK;
}

static void counted(const char *function) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < CALLS_MAX - 1 && calls[i].name && calls[i].name != function) i++;
    calls[i].name = function;
    calls[i].count++;
    pthread_mutex_unlock(&lock);
}

static int begin(const char *function, int needs_context) {
    counted(function);
    int code = injected(function);
    if (code) return code;
    if (initialized_by != getpid()) return NOT_INITIALIZED;
    return needs_context && !current ? BAD_CONTEXT : OK;
}

#define BEGIN(needs_context)                   \
    int code = begin(__func__, needs_context); \
    if (code) return code

/* Handles are used up one after another, so that a destroyed one is not soon another's. */
static handle_t *handle_new(int kind, void *object) {
    pthread_mutex_lock(&lock);
    handle_t *handle = NULL;
    for (int tries = 0; tries < HANDLES_MAX && !handle; tries++) {
        handle_t *next = &handles[nhandles++ % HANDLES_MAX];
        if (!next->alive) handle = next;
    }
    if (handle) *handle = (handle_t){kind, 1, current ? current->device : -1, 0, 0, object, 0, 0, 0, 0};
    pthread_mutex_unlock(&lock);
    return handle;
}

static handle_t *handle_of(const void *pointer, int kind) {
    uintptr_t offset = (uintptr_t)pointer - (uintptr_t)handles;
    if (offset >= sizeof handles || offset % sizeof *handles) return NULL;
    handle_t *handle = &handles[offset / sizeof *handles];
    return handle->alive && handle->kind == kind ? handle : NULL;
}

/* A stream that may be used; the legacy and per-thread ones (0, 1 and 2) share an entry that is always ready. */
static handle_t *stream_of(CUstream stream) {
    static handle_t common = {STREAM, 1, -1, 0, 0, NULL, 0, 0, 0, 0};
    return (uintptr_t)stream <= 2 ? &common : handle_of(stream, STREAM);
}

#endif
