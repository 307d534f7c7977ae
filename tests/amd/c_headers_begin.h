/* Between this file and c_headers_end.h, C++ reads headers as C does: HIP's add overloads for C++, of which no address
 * can be taken. The standard headers that they include come first, since those do need to know. */
#include <assert.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef __cplusplus
#define _Bool bool
extern "C" {
