/* The fake CUDA driver's memory: device memory, host memory, pointer attributes, copies, fills, and what other
 * processes can open. */
#ifndef FAKECUDA_MEMORY_H
#define FAKECUDA_MEMORY_H

#include "fakecuda_queue.h"

static range_t *range_of(const void *pointer) {
    for (int i = 0; i < nranges; i++)
        if ((const char *)pointer >= ranges[i].base && (const char *)pointer < ranges[i].base + ranges[i].nbytes)
            return &ranges[i];
    return NULL;
}

/* Where the driver sees what a process knows by this address. */
static void *seen(const void *pointer) {
    pthread_mutex_lock(&lock);
    range_t *range = range_of(pointer);
    char *window = range ? range->window : NULL;
    void *there = window ? window + ((const char *)pointer - range->base) : (void *)pointer;
    pthread_mutex_unlock(&lock);
    return there;
}

static int range_add(range_t range) {
    pthread_mutex_lock(&lock);
    int full = nranges == RANGES_MAX;
    if (!full) {
        range.id = ++last_id;
        ranges[nranges++] = range;
    }
    pthread_mutex_unlock(&lock);
    return full ? NO_MEMORY : OK;
}

/* Forget the range that begins at base and is of one of two kinds; `was` is what it was. */
static int range_remove(const void *base, int kind, int other, range_t *was) {
    pthread_mutex_lock(&lock);
    range_t *range = range_of(base);
    int found = range && range->base == base && (range->kind == kind || range->kind == other);
    if (found) {
        *was = *range;
        *range = ranges[--nranges];
    }
    pthread_mutex_unlock(&lock);
    return found ? OK : INVALID;
}

static int inside(const void *pointer, size_t nbytes) {
    pthread_mutex_lock(&lock);
    range_t *range = range_of(pointer);
    int fits = !range || (size_t)((const char *)pointer - range->base) + nbytes <= range->nbytes;
    pthread_mutex_unlock(&lock);
    return fits;
}

static int memory_new(void **pointer, size_t nbytes, int kind) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (nbytes + page - 1) / page * page;
    if (!nbytes) return INVALID;
    int fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (fd < 0) return NO_MEMORY;
    int guarded = kind == DEVICE && setting(PREFIX "GUARD", 0);
    void *base = MAP_FAILED, *window = NULL;
    if (!ftruncate(fd, (off_t)mapped))
        base = mmap(NULL, mapped, guarded ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED && guarded) window = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED || window == MAP_FAILED) {
        close(fd);
        return NO_MEMORY;
    }
    memset(window ? window : base, 0xA5, mapped); /* new device memory is not zero */
    *pointer = base;
    return range_add((range_t){base, nbytes, mapped, kind, current->device, fd, 0, window});
}

static int memory_free(const void *pointer, int kind, int other) {
    range_t range;
    int code = range_remove(pointer, kind, other, &range);
    if (code) return code;
    munmap(range.base, range.mapped);
    if (range.window) munmap(range.window, range.mapped);
    close(range.fd);
    return OK;
}

EXPORT void *fakeWindow(const void *pointer) {
    return seen(pointer);
}

EXPORT long fakeRanges(void) {
    return nranges;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t nbytes) {
    BEGIN(1);
    return memory_new((void **)pointer, nbytes, DEVICE);
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    BEGIN(1);
    return pointer ? memory_free((void *)pointer, DEVICE, MANAGED) : OK;
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t nbytes, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    return memory_new((void **)pointer, nbytes, MANAGED);
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t nbytes, CUstream stream) {
    BEGIN(1);
    return stream_of(stream) ? memory_new((void **)pointer, nbytes, DEVICE) : BAD_HANDLE;
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    BEGIN(1);
    return stream_of(stream) ? memory_free((void *)pointer, DEVICE, DEVICE) : BAD_HANDLE;
}

API CUresult cuMemHostAlloc(void **pointer, size_t nbytes, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    return memory_new(pointer, nbytes, HOST);
}

API CUresult cuMemFreeHost(void *pointer) {
    BEGIN(1);
    return memory_free(pointer, HOST, HOST);
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t nbytes, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    if (!pointer || !nbytes) return INVALID;
    pthread_mutex_lock(&lock);
    int known = range_of(pointer) != NULL;
    pthread_mutex_unlock(&lock);
    if (known) return ALREADY_REGISTERED;
    return range_add((range_t){pointer, nbytes, 0, REGISTERED, current->device, -1, 0, NULL});
}

API CUresult cuMemHostUnregister(void *pointer) {
    BEGIN(1);
    range_t range;
    return range_remove(pointer, REGISTERED, REGISTERED, &range) ? NOT_REGISTERED : OK;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *on_device, void *pointer, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    pthread_mutex_lock(&lock);
    range_t *range = range_of(pointer);
    int known = range && (range->kind == HOST || range->kind == REGISTERED);
    pthread_mutex_unlock(&lock);
    *on_device = known ? (CUdeviceptr)pointer : 0;
    return known ? OK : INVALID;
}

static int attribute_write(void *value, int attribute, const range_t *range) {
    int host = range->kind == HOST || range->kind == REGISTERED;
    switch (attribute) {
    case 2: *(unsigned *)value = !range->kind ? 0 : host ? 1 : 2; return OK;
    case 7: *(unsigned long long *)value = range->id; return OK;
    case 8: *(unsigned *)value = range->kind == MANAGED; return OK;
    case 9: *(int *)value = range->kind ? range->device : -2; return OK;
    case 11: *(void **)value = range->base; return OK;
    case 12: *(size_t *)value = range->nbytes; return OK;
    default: return INVALID;
    }
}

API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                    CUdeviceptr pointer) {
    BEGIN(0);
    pthread_mutex_lock(&lock);
    const range_t *range = range_of((void *)pointer);
    range_t about = range ? *range : (range_t){0};
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count && !code; i++) code = attribute_write(values[i], (int)attributes[i], &about);
    return code;
}

API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t nbytes, CUstream stream) {
    BEGIN(1);
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    if (!inside((void *)dst, nbytes) || !inside((void *)src, nbytes)) return INVALID;
    return submit(queue, (work_t){.kind = COPY, .dst = (void *)dst, .src = (void *)src, .nbytes = nbytes});
}

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t nbytes) {
    CUresult code = cuMemcpyAsync(dst, src, nbytes, NULL);
    if (!code && nqueues()) drain(queue_of(stream_of(NULL)));
    return code;
}

static int fill(CUdeviceptr dst, unsigned value, size_t width, size_t count, CUstream stream) {
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    if (dst % width || !inside((void *)dst, width * count)) return INVALID;
    return submit(queue, (work_t){.kind = FILL, .dst = (void *)dst, .nbytes = width, .count = count, .value = value});
}

API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
    BEGIN(1);
    return fill(dst, value, 1, count, stream);
}

API CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
    BEGIN(1);
    return fill(dst, value, 2, count, stream);
}

API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream) {
    BEGIN(1);
    return fill(dst, value, 4, count, stream);
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    BEGIN(1);
    pthread_mutex_lock(&lock);
    range_t *range = range_of((void *)pointer);
    code = range && range->kind == DEVICE ? OK : INVALID;
    if (!code) {
        ipc_t ipc = {getpid(), range->fd, range->device, range->nbytes, range->mapped};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &ipc, sizeof ipc);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* As with a real driver, the process that allocated the memory cannot open it. */
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    BEGIN(1);
    ipc_t ipc;
    char path[64];
    memcpy(&ipc, &handle, sizeof ipc);
    if (flags != 1) return INVALID;
    if (ipc.pid == getpid()) return BAD_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return INVALID;
    void *base = mmap(NULL, ipc.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        return NO_MEMORY;
    }
    *pointer = (CUdeviceptr)base;
    return range_add((range_t){base, ipc.nbytes, ipc.mapped, OPENED, current->device, fd, 0, NULL});
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    BEGIN(1);
    return memory_free((void *)pointer, OPENED, OPENED);
}

/* The descriptor is the whole allocation's, so the range must begin where that does. */
API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t nbytes, CUmemRangeHandleType type,
                                           unsigned long long flags) {
    BEGIN(1);
    pthread_mutex_lock(&lock);
    range_t *range = range_of((void *)pointer);
    int fits = range && range->kind == DEVICE && (void *)pointer == range->base && nbytes <= range->mapped;
    int fd = fits && (int)type == 1 && !flags ? fcntl(range->fd, F_DUPFD_CLOEXEC, 3) : -1;
    pthread_mutex_unlock(&lock);
    *(int *)handle = fd;
    return fd < 0 ? INVALID : OK;
}

static struct { long count; int device, scope; } flushed; /* the last one */

EXPORT long fakeFlushes(int *device, int *scope) {
    *device = flushed.device;
    *scope = flushed.scope;
    return flushed.count;
}

/* What a fake of libibverbs has written, and keeps from being seen, is seen afterwards. */
API CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                             CUflushGPUDirectRDMAWritesScope scope) {
    BEGIN(1);
    if ((int)target || ((int)scope != 100 && (int)scope != 200)) return INVALID;
    if (!(setting(PREFIX "FLUSH", 1) & 1)) return NOT_SUPPORTED;
    void (*show)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "fakeverbs_show");
    if (show) show();
    flushed.count++;
    flushed.device = current->device;
    flushed.scope = (int)scope;
    return OK;
}

#endif
