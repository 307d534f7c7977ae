/* The emulated RCCL: each of its functions jumps to NCCL's of the same name, arguments untouched. Those that NCCL lacks
 * answer ncclInvalidUsage; without NCCL all answer ncclSystemError. NCCL and RCCL share their C interface, so that
 * nothing is translated; see tests/amd for what proves that. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "rccl_names.h"

#ifndef __x86_64__
#error "the jumps are written for x86-64"
#endif

enum { SYSTEM_ERROR = 2, INVALID_USAGE = 5 };

const char hetccl_emulation[] = "emulated RCCL: NCCL does the work";

#define SLOT(name) __attribute__((visibility("hidden"))) void *slot_##name;
RCCL_NAMES(SLOT)

#define JUMP(name)                                                                                                     \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n\tendbr64\n\tjmp *slot_" #name           \
            "(%rip)\n.size " #name ", . - " #name "\n");
RCCL_NAMES(JUMP)

static int without_nccl(void) { return SYSTEM_ERROR; }
static int without_function(void) { return INVALID_USAGE; }
static const char *without_text(void) { return "emulated RCCL: libnccl.so.2 was not found"; }

static struct {
    const char *name;
    void **slot;
} functions[] = {
#define ROW(name) {#name, &slot_##name},
    RCCL_NAMES(ROW)};

static void *nccl(void)
{
    const char *given = getenv("EMULATION_NCCL");
    return dlopen(given ? given : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

/* RCCL's older spelling of a function that NCCL has. */
static const char *name_in_nccl(const char *name) { return strcmp(name, "ncclAllToAll") ? name : "ncclAlltoAll"; }

__attribute__((constructor)) static void fill(void)
{
    void *library = nccl();
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = library ? dlsym(library, name_in_nccl(functions[i].name)) : NULL;
        *functions[i].slot = found ? found : library ? (void *)without_function : (void *)without_nccl;
    }
    if (!library)
        slot_ncclGetErrorString = slot_ncclGetLastError = (void *)without_text;
}
