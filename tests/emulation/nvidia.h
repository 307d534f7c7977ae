/* What the emulated HIP runtime asks of NVIDIA's driver, in plain C types: AMD's and NVIDIA's headers define the same
 * names (dim3, float4), so that no source file can include both. All answer the driver's error number, which HIP took
 * over; a function that this driver lacks answers ABSENT. Streams, events, modules and functions are the driver's own
 * pointers. Each call runs in the primary context of the thread's current device, which is 0 at first, as in HIP. */
#ifndef HETCCL_EMULATION_NVIDIA_H
#define HETCCL_EMULATION_NVIDIA_H

#include <stddef.h>
#include <stdint.h>

namespace nvidia
{

enum { NO_DEVICE = 100, ABSENT = 801 };
enum { IPC_BYTES = 64 };
enum Kind { UNKNOWN, HOST, DEVICE, MANAGED };

struct Pointer {
    Kind kind;
    int device;
    void *on_device, *on_host, *base;
    size_t nbytes; /* of the allocation */
    unsigned long long buffer_id;
};

int device_count(int *count);
int device_get(int *device);
int device_set(int device);
int device_synchronize();
int device_name(char *text, int nchars, int device);
int device_pci(char *text, int nchars, int device);
int device_state(int device, unsigned *flags, int *active);

int alloc(void **ptr, size_t nbytes);
int release(void *ptr);
int alloc_async(void **ptr, size_t nbytes, void *stream);
int release_async(void *ptr, void *stream);
int alloc_managed(void **ptr, size_t nbytes);
int host_alloc(void **ptr, size_t nbytes, unsigned flags);
int host_release(void *ptr);
int host_register(void *ptr, size_t nbytes, unsigned flags);
int host_unregister(void *ptr);
int host_address(void **on_device, void *ptr, unsigned flags);
int pointer(Pointer *about, const void *ptr);
int dmabuf(int *fd, void *ptr, size_t nbytes, unsigned long long flags);

/* Between any two places. */
int copy(void *dst, const void *src, size_t nbytes);
int copy_async(void *dst, const void *src, size_t nbytes, void *stream);
int fill8(void *dst, unsigned char value, size_t count, void *stream);
int fill16(void *dst, unsigned short value, size_t count, void *stream);
int fill32(void *dst, unsigned value, size_t count, void *stream);

int stream_create(void **stream, unsigned flags);
int stream_destroy(void *stream);
int stream_query(void *stream);
int stream_synchronize(void *stream);
int stream_capturing(void *stream, int *status);
int stream_wait_event(void *stream, void *event, unsigned flags);
int stream_write32(void *stream, void *ptr, uint32_t value, unsigned flags);
int stream_wait32(void *stream, void *ptr, uint32_t value, unsigned flags);
int host_function(void *stream, void (*function)(void *), void *argument);

int event_create(void **event, unsigned flags);
int event_destroy(void *event);
int event_record(void *event, void *stream);
int event_query(void *event);
int event_synchronize(void *event);

int ipc_export(void *handle, void *ptr);
int ipc_open(void **ptr, const void *handle);
int ipc_close(void *ptr);

int module_load(void **module, const void *image);
int module_unload(void *module);
int module_function(void **function, void *module, const char *name);
/* sizes: of the grid, then of the block */
int launch(void *function, const unsigned sizes[6], unsigned shared_nbytes, void *stream, void **arguments,
           void **extra);

} /* namespace nvidia */

#endif
