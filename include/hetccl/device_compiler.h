/* Compilers of device code that run in the process: NVRTC and hipRTC, whose functions differ in their prefix alone
 * (layer L1, used by _device_compiler alone). Declared by hand from nvrtc.h and hiprtc.h; every function answers 0 or a
 * code of its own. */
#ifndef HETCCL_DEVICE_COMPILER_H
#define HETCCL_DEVICE_COMPILER_H

#include <stddef.h>

typedef struct hetccl_compiler {
    int (*version)(int *major, int *minor);
    const char *(*error_text)(int code);
    int (*create)(void **program, const char *source, const char *name, int nheaders, const char *const *headers,
                  const char *const *names);
    int (*compile)(void *program, int noptions, const char *const *options);
    int (*destroy)(void **program);
    int (*log_size)(void *program, size_t *nbytes); /* with the NUL */
    int (*log)(void *program, char *text);
    int (*code_size)(void *program, size_t *nbytes);
    int (*code)(void *program, char *bytes);
    int (*ptx_size)(void *program, size_t *nbytes); /* of hipRTC: the code's */
    int (*ptx)(void *program, char *bytes);
    int (*arch_count)(int *count); /* NULL where it does not tell: hipRTC, NVRTC before 11.2 */
    int (*archs)(int *numbers);    /* 75, 80, 90, ... */
} hetccl_compiler_t;

#endif
