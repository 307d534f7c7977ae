/* A libibverbs without devices, for tests: the functions that include/hetccl/verbs.h lists, with the library's symbol
 * versions (fakeverbs.map). RC queue pairs really move data, inside a process and between the processes that share a
 * FAKEVERBS_ARENA (a file's name); whether they reach each other depends on state, numbers, first packet numbers and
 * GIDs, as with a real device. What a test can ask for:
 *
 *     FAKEVERBS_DEVICES    which devices there are: fakeverbs_devices.h
 *     FAKEVERBS_FAIL       which calls fail: fakeverbs_state.h, called()
 *     FAKEVERBS_MINUS_ONE  posting answers -1 and sets errno, as some drivers do
 *     FAKEVERBS_MEMLOCK    registering more than RLIMIT_MEMLOCK in all fails with ENOMEM
 *     FAKEVERBS_PEERMEM    memory that fakeverbs_gpu() has named can be registered, else EFAULT
 *     FAKEVERBS_UNSEEN     what is written to a GPU's memory is seen late: fakeverbs_work.h, unseen_t
 *     FAKEVERBS_FORK       what ibv_is_fork_initialized answers before ibv_fork_init
 *
 * fakeverbs_live("qp", NULL) counts the process's objects, fakeverbs_calls("reg_mr") its calls; fakeverbs_cut, _event,
 * _port and _break make things happen while a test runs. */
#define _GNU_SOURCE
#include "fakeverbs_qp.h"

enum { GPU_RANGES_MAX = 64 };

typedef struct mr {
    hetccl_ibv_mr_t public;
    void *mapped; /* of a dma-buf, NULL: none */
    size_t mapped_nbytes;
} mr_t;

static struct { const char *kind; int counts[DEVICES_MAX]; } live[] = {
    {"context", {0}}, {"pd", {0}}, {"mr", {0}}, {"channel", {0}}, {"cq", {0}}};
enum { CONTEXT, PD, MR, CHANNEL, CQ, KINDS };

static int fork_status = -1;
static uint64_t locked_nbytes;
static struct { uint64_t address, nbytes, window; } gpu_ranges[GPU_RANGES_MAX];
static int ngpu_ranges;

/* Under the lock. */
static void counted(int kind, const hetccl_ibv_context_t *context, int more) {
    live[kind].counts[device_of(context) - devices] += more;
}

static void *failed(int error) {
    errno = error;
    return NULL;
}

/* What waits must end in time though nobody polls, and the peer may have stopped a queue pair. */
static void *watch(void *unused) {
    for (;;) {
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        lock();
        for (qp_t *qp = the_qps; qp; qp = qp->next) settle(qp);
        unlock();
    }
    return unused;
}

static void watch_start(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static int started_in;
    pthread_t thread;
    pthread_mutex_lock(&once);
    if (started_in != getpid() && !pthread_create(&thread, NULL, watch, NULL)) {
        started_in = getpid();
        pthread_detach(thread);
    }
    pthread_mutex_unlock(&once);
}

API hetccl_ibv_context_t *ibv_open_device(hetccl_ibv_device_t *device) {
    int fds[2], error = called("open_device");
    if (!error) error = ((device_t *)device)->open_error;
    if (error) return failed(error);
    arena_open();
    watch_start();
    context_t *context = calloc(1, sizeof *context);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds)) return failed(errno);
    context->public.device = device;
    context->public.ops.poll_cq = poll_cq;
    context->public.ops.req_notify_cq = req_notify_cq;
    context->public.ops.post_send = post_send;
    context->public.ops.post_recv = post_recv;
    context->public.cmd_fd = -1;
    context->public.async_fd = fds[0];
    context->public.num_comp_vectors = 2;
    context->event_fd = fds[1];
    lock();
    context->next = the_contexts;
    the_contexts = context;
    counted(CONTEXT, &context->public, 1);
    unlock();
    return &context->public;
}

API int ibv_close_device(hetccl_ibv_context_t *public) {
    context_t *context = (context_t *)public;
    int error = called("close_device");
    if (error) return error;
    if (context->nlive) return EBUSY;
    lock();
    context_t **link = &the_contexts;
    while (*link != context) link = &(*link)->next;
    *link = context->next;
    counted(CONTEXT, public, -1);
    unlock();
    close(public->async_fd);
    close(context->event_fd);
    free(context);
    return 0;
}

API hetccl_ibv_pd_t *ibv_alloc_pd(hetccl_ibv_context_t *context) {
    int error = called("alloc_pd");
    if (error) return failed(error);
    pd_t *pd = calloc(1, sizeof *pd);
    pd->public.context = context;
    lock();
    ((context_t *)context)->nlive++;
    counted(PD, context, 1);
    unlock();
    return &pd->public;
}

API int ibv_dealloc_pd(hetccl_ibv_pd_t *public) {
    pd_t *pd = (pd_t *)public;
    int error = called("dealloc_pd");
    if (error) return error;
    if (pd->nlive) return EBUSY;
    lock();
    ((context_t *)public->context)->nlive--;
    counted(PD, public->context, -1);
    unlock();
    free(pd);
    return 0;
}

/* The range of a GPU's memory with a byte of this, or -1. */
static int gpu_range(uint64_t address, uint64_t nbytes) {
    for (int i = 0; i < ngpu_ranges; i++)
        if (address < gpu_ranges[i].address + gpu_ranges[i].nbytes && gpu_ranges[i].address < address + nbytes)
            return i;
    return -1;
}

/* errno if memory could not be registered. */
static int range_check(uint64_t address, uint64_t nbytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address / page * page;
    uint64_t npages = (address + nbytes - first + page - 1) / page;
    struct rlimit limit;
    if (gpu_range(address, nbytes) >= 0) return getenv("FAKEVERBS_PEERMEM") ? 0 : EFAULT;
    unsigned char *in_core = malloc(npages + 1);
    int mapped = in_core && !mincore((void *)(uintptr_t)first, npages * page, in_core);
    free(in_core);
    if (nbytes && !mapped) return EFAULT;
    int limited = getenv("FAKEVERBS_MEMLOCK") && !getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY;
    return limited && locked_nbytes + nbytes > limit.rlim_cur ? ENOMEM : 0;
}

/* memory: where the range lies that requests name by address. */
static hetccl_ibv_mr_t *mr_new(hetccl_ibv_pd_t *pd, uint64_t memory, uint64_t address, uint64_t nbytes, int access) {
    static uint32_t next;
    mr_t *mr = calloc(1, sizeof *mr);
    lock();
    uint32_t slot = next % MRS_MAX, tried = 0;
    while (tried < MRS_MAX && arena->mrs[slot].pid && alive(arena->mrs[slot].pid)) slot = (slot + 1) % MRS_MAX, tried++;
    shared_mr_t *shared = &arena->mrs[slot];
    if (tried == MRS_MAX) {
        unlock();
        free(mr);
        return failed(ENOMEM);
    }
    next = slot + 1;
    shared->generation = shared->generation % 0x3ffff + 1;
    shared->pid = getpid();
    shared->key = slot + shared->generation * MRS_MAX;
    shared->access = access;
    shared->address = address;
    shared->memory = memory;
    shared->nbytes = nbytes;
    shared->is_gpu = 0;
    mr->public = (hetccl_ibv_mr_t){pd->context, pd, (void *)(uintptr_t)address, nbytes, slot, shared->key, shared->key};
    locked_nbytes += nbytes;
    ((pd_t *)pd)->nlive++;
    counted(MR, pd->context, 1);
    unlock();
    return &mr->public;
}

API hetccl_ibv_mr_t *ibv_reg_mr(hetccl_ibv_pd_t *pd, void *ptr, size_t nbytes, int access) {
    int error = called("reg_mr");
    if (!error) error = range_check((uintptr_t)ptr, nbytes);
    if (error) return failed(error);
    int gpu = gpu_range((uintptr_t)ptr, nbytes);
    uint64_t memory = (uintptr_t)ptr;
    if (gpu >= 0) memory += gpu_ranges[gpu].window - gpu_ranges[gpu].address;
    hetccl_ibv_mr_t *mr = mr_new(pd, memory, (uintptr_t)ptr, nbytes, access);
    if (mr) arena->mrs[mr->handle].is_gpu = gpu >= 0;
    return mr;
}

/* The descriptor is any that can be mapped, as the fake CUDA driver's are. */
API hetccl_ibv_mr_t *ibv_reg_dmabuf_mr(hetccl_ibv_pd_t *pd, uint64_t offset, size_t nbytes, uint64_t iova, int fd,
                                       int access) {
    int error = called("reg_dmabuf_mr");
    if (error) return failed(error);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    size_t mapped_nbytes = offset - first + nbytes;
    char *mapped = mmap(NULL, mapped_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)first);
    if (mapped == MAP_FAILED) return failed(EINVAL);
    mr_t *mr = (mr_t *)mr_new(pd, (uintptr_t)mapped + (offset - first), iova, nbytes, access);
    if (mr) {
        mr->mapped = mapped;
        mr->mapped_nbytes = mapped_nbytes;
        arena->mrs[mr->public.handle].is_gpu = 1;
    } else
        munmap(mapped, mapped_nbytes);
    return &mr->public;
}

API int ibv_dereg_mr(hetccl_ibv_mr_t *public) {
    mr_t *mr = (mr_t *)public;
    int error = called("dereg_mr");
    if (error) return error;
    lock();
    arena->mrs[public->handle].pid = 0;
    locked_nbytes -= public->length;
    ((pd_t *)public->pd)->nlive--;
    counted(MR, public->context, -1);
    unlock();
    if (mr->mapped) munmap(mr->mapped, mr->mapped_nbytes);
    free(mr);
    return 0;
}

API hetccl_ibv_comp_channel_t *ibv_create_comp_channel(hetccl_ibv_context_t *context) {
    static int numbers;
    int error = called("create_comp_channel");
    if (error) return failed(error);
    channel_t *channel = calloc(1, sizeof *channel);
    lock();
    channel->number = ++numbers;
    struct sockaddr_un address;
    socklen_t nbytes = channel_address(&address, getpid(), channel->number);
    channel->public.context = context;
    channel->public.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (channel->public.fd < 0 || bind(channel->public.fd, (struct sockaddr *)&address, nbytes)) error = errno;
    ((context_t *)context)->nlive += !error;
    counted(CHANNEL, context, !error);
    unlock();
    if (!error) return &channel->public;
    free(channel);
    return failed(error);
}

API int ibv_destroy_comp_channel(hetccl_ibv_comp_channel_t *public) {
    channel_t *channel = (channel_t *)public;
    int error = called("destroy_comp_channel");
    if (error) return error;
    if (channel->nlive) return EBUSY;
    lock();
    ((context_t *)public->context)->nlive--;
    counted(CHANNEL, public->context, -1);
    unlock();
    close(public->fd);
    free(channel);
    return 0;
}

API hetccl_ibv_cq_t *ibv_create_cq(hetccl_ibv_context_t *context, int cqe, void *cq_context,
                                   hetccl_ibv_comp_channel_t *channel, int comp_vector) {
    int slot = 0, error = called("create_cq");
    if (!error && (cqe < 1 || cqe > device_of(context)->max_cqe)) error = EINVAL;
    if (!error && (comp_vector < 0 || comp_vector >= context->num_comp_vectors)) error = EINVAL;
    if (error) return failed(error);
    cq_t *cq = calloc(1, sizeof *cq);
    lock();
    while (slot < CQS_MAX && arena->cqs[slot].pid && alive(arena->cqs[slot].pid)) slot++;
    if (slot == CQS_MAX) abort();
    cq->public = (hetccl_ibv_cq_t){context, channel, cq_context, (uint32_t)slot, cqe};
    cq->shared = &arena->cqs[slot];
    cq->channel = (channel_t *)channel;
    cq->last = &cq->first;
    *cq->shared = (shared_cq_t){.pid = getpid(), .channel = channel ? cq->channel->number : 0, .cqe = (uint32_t)cqe,
                                .address = (uintptr_t)cq};
    if (channel) cq->channel->nlive++;
    ((context_t *)context)->nlive++;
    counted(CQ, context, 1);
    unlock();
    return &cq->public;
}

API int ibv_resize_cq(hetccl_ibv_cq_t *public, int cqe) {
    cq_t *cq = (cq_t *)public;
    int error = called("resize_cq");
    if (error) return error;
    lock();
    if (cqe < 1 || cqe > device_of(public->context)->max_cqe || (uint32_t)cqe < cq->shared->count) error = EINVAL;
    if (!error) cq->shared->cqe = (uint32_t)(public->cqe = cqe);
    unlock();
    return error;
}

/* A real library would wait for the events to be acknowledged, for ever. */
API int ibv_destroy_cq(hetccl_ibv_cq_t *public) {
    cq_t *cq = (cq_t *)public;
    int error = called("destroy_cq");
    if (error) return error;
    if (cq->nlive || cq->nevents) return EBUSY;
    lock();
    cq->shared->pid = 0;
    if (cq->channel) cq->channel->nlive--;
    ((context_t *)public->context)->nlive--;
    counted(CQ, public->context, -1);
    unlock();
    for (done_t *done = cq->first, *next; done; done = next) {
        next = done->next;
        free(done);
    }
    free(cq);
    return 0;
}

API int ibv_get_cq_event(hetccl_ibv_comp_channel_t *channel, hetccl_ibv_cq_t **cq_p, void **cq_context) {
    uint64_t address;
    int error = called("get_cq_event");
    if (error) return failed(error), -1;
    if (read(channel->fd, &address, sizeof address) != sizeof address) return -1;
    cq_t *cq = (cq_t *)(uintptr_t)address;
    cq->nevents++;
    *cq_p = &cq->public;
    *cq_context = cq->public.cq_context;
    return 0;
}

API void ibv_ack_cq_events(hetccl_ibv_cq_t *cq, unsigned nevents) { ((cq_t *)cq)->nevents -= nevents; }

API int ibv_get_async_event(hetccl_ibv_context_t *context, hetccl_ibv_async_event_t *event) {
    int error = called("get_async_event");
    if (error) return failed(error), -1;
    return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

API void ibv_ack_async_event(hetccl_ibv_async_event_t *event) { (void)event; }

API int ibv_fork_init(void) {
    int error = called("fork_init");
    if (!error) fork_status = HETCCL_IBV_FORK_ENABLED;
    return error;
}

API int ibv_is_fork_initialized(void) {
    const char *text = getenv("FAKEVERBS_FORK");
    return fork_status >= 0 ? fork_status : text ? atoi(text) : HETCCL_IBV_FORK_DISABLED;
}

/* For tests. */

/* The process's objects of a kind on one device, or on all (NULL). */
API long fakeverbs_live(const char *kind, const char *device) {
    long count = 0;
    if (!arena) return 0;
    lock();
    for (qp_t *qp = the_qps; qp; qp = qp->next)
        count += !strcmp(kind, "qp") && (!device || !strcmp(qp->shared->device, device));
    for (int i = 0; i < KINDS; i++)
        for (int d = 0; d < ndevices && !strcmp(live[i].kind, kind); d++)
            if (!device || !strcmp(devices[d].public.name, device)) count += live[i].counts[d];
    unlock();
    return count;
}

/* A range is a GPU's memory from now on, which a device sees at `window`. */
API void fakeverbs_window(uint64_t address, uint64_t nbytes, uint64_t window) {
    if (ngpu_ranges == GPU_RANGES_MAX) abort();
    gpu_ranges[ngpu_ranges].address = address;
    gpu_ranges[ngpu_ranges].window = window;
    gpu_ranges[ngpu_ranges++].nbytes = nbytes;
}

API void fakeverbs_gpu(uint64_t address, uint64_t nbytes) { fakeverbs_window(address, nbytes, address); }

/* None is any more. */
API void fakeverbs_no_gpu(void) { ngpu_ranges = 0; }

/* What was written to GPUs' memory is seen. */
API void fakeverbs_show(void) {
    arena_open();
    lock();
    show_unseen(NULL);
    unlock();
}

/* Packets of a device get lost, those to it too, for all processes of the arena; 0: no longer. */
API int fakeverbs_cut(const char *device, int cut) {
    arena_open();
    lock();
    int i = 0;
    while (i < CUTS_MAX && strcmp(arena->cut[i], cut ? "" : device)) i++;
    if (i < CUTS_MAX) snprintf(arena->cut[i], NAME_CHARS, "%s", cut ? device : "");
    unlock();
    return i < CUTS_MAX ? 0 : -1;
}

/* An asynchronous event of a device, for each context of this process. port: 0: none; number: of a queue pair, or 0. */
API int fakeverbs_event(const char *device, int type, int port, uint32_t number) {
    int count = 0;
    hetccl_ibv_async_event_t event = {.event_type = type, .element.port_num = port};
    arena_open();
    lock();
    for (qp_t *qp = the_qps; number && qp; qp = qp->next)
        if (qp->public.qp_num == number) event.element.qp = &qp->public;
    for (context_t *context = the_contexts; context; context = context->next)
        if (!strcmp(context->public.device->name, device))
            count += write(context->event_fd, &event, sizeof event) == sizeof event;
    unlock();
    return count;
}

/* The state that a port has from now on in this process. */
API int fakeverbs_port(const char *device, int number, int state) {
    devices_read();
    for (int i = 0; i < ndevices; i++)
        if (!strcmp(devices[i].public.name, device) && number >= 1 && number <= devices[i].nports) {
            devices[i].ports[number - 1].attr.state = state;
            return 0;
        }
    return -1;
}

/* A queue pair of any process fails: what is posted to it is flushed. */
API int fakeverbs_break(uint32_t number) {
    arena_open();
    lock();
    shared_qp_t *qp = qp_numbered(number);
    if (qp) qp->state = HETCCL_IBV_QPS_ERR;
    unlock();
    return qp ? 0 : -1;
}
