/* Kernels for the fake driver's cuModuleLoadData: one call does the work of the whole grid. */
#include <stdint.h>

/* data[i] += by, for i in [0, count) */
__attribute__((visibility("default"))) void increment(void **arguments, const unsigned *grid, const unsigned *block) {
    uint32_t *data = *(uint32_t **)arguments[0], by = *(uint32_t *)arguments[1], count = *(uint32_t *)arguments[2];
    for (uint32_t i = 0; i < grid[0] * block[0] && i < count; i++) data[i] += by;
}
