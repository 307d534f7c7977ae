/* See c_headers_begin.h. */
}
#undef _Bool
#define __cplusplus 201703L
