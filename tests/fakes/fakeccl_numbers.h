/* NCCL's data types and reductions on host memory, in rank order, for the fake. The small floats are summed in single
 * precision and rounded once, where NCCL rounds at each step; MIN and MAX leave out NaN, as fmin does. */
#ifndef FAKECCL_NUMBERS_H
#define FAKECCL_NUMBERS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2, DTYPES };
enum { SUM, PROD, MAX, MIN, AVG, OPS };

/* A binary floating-point format; `finite`: without infinities, and what is too large becomes the largest. */
typedef struct format {
    int exponent_bits, mantissa_bits, finite, has_infinity;
} format_t;

typedef struct number {
    double f;
    uint64_t u;
} number_t;

static const int widths[DTYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static const format_t *format_of(int dtype) {
    static const format_t float16 = {5, 10, 0, 1}, bfloat16 = {8, 7, 0, 1}, e4m3 = {4, 3, 1, 0}, e5m2 = {5, 2, 1, 1};
    switch (dtype) {
        case FLOAT16: return &float16;
        case BFLOAT16: return &bfloat16;
        case FLOAT8E4M3: return &e4m3;
        case FLOAT8E5M2: return &e5m2;
        default: return NULL;
    }
}

static int is_signed(int dtype) { return dtype == INT8 || dtype == INT32 || dtype == INT64; }

static double decode(const format_t *format, unsigned bits) {
    int m = format->mantissa_bits, top = (1 << format->exponent_bits) - 1, bias = top >> 1;
    unsigned mantissa = bits & ((1u << m) - 1);
    int exponent = (bits >> m) & top;
    double sign = bits >> (m + format->exponent_bits) & 1 ? -1 : 1;
    if (exponent == top && format->has_infinity) return mantissa ? NAN : sign * INFINITY;
    if (exponent == top && mantissa == (1u << m) - 1) return NAN;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - m);
    return sign * ldexp(mantissa + (1u << m), exponent - bias - m);
}

/* Round to nearest, ties to even. */
static unsigned encode(const format_t *format, double value) {
    int m = format->mantissa_bits, top = (1 << format->exponent_bits) - 1, bias = top >> 1;
    unsigned sign = signbit(value) ? 1u << (m + format->exponent_bits) : 0, ones = (1u << m) - 1;
    unsigned infinity = (unsigned)top << m, largest = format->has_infinity ? infinity - 1 : infinity + ones - 1;
    if (isnan(value)) return sign | infinity | ones;
    if (isinf(value)) return sign | (format->finite ? largest : infinity);
    if (value == 0) return sign;
    int exponent = ilogb(value) < 1 - bias ? 1 - bias : ilogb(value);
    /* The leading one, if there is one, carries into the exponent's field. */
    double bits = rint(ldexp(fabs(value), m - exponent)) + ldexp(exponent + bias - 1, m);
    if (bits > largest) return sign | (format->finite ? largest : infinity);
    return sign | (unsigned)bits;
}

static number_t load(int dtype, const void *from) {
    number_t number = {0, 0};
    const format_t *format = format_of(dtype);
    float single;
    memcpy(&number.u, from, widths[dtype]);
    if (format) number.f = decode(format, (unsigned)number.u);
    if (dtype == FLOAT32) number.f = (memcpy(&single, from, sizeof single), single);
    if (dtype == FLOAT64) memcpy(&number.f, from, sizeof number.f);
    if (dtype == INT8) number.u = (uint64_t)(int64_t)(int8_t)number.u;
    if (dtype == INT32) number.u = (uint64_t)(int64_t)(int32_t)number.u;
    return number;
}

static void store(int dtype, number_t number, void *to) {
    const format_t *format = format_of(dtype);
    float single = (float)number.f;
    if (format) number.u = encode(format, number.f);
    if (dtype == FLOAT32) memcpy(to, &single, sizeof single);
    else if (dtype == FLOAT64) memcpy(to, &number.f, sizeof number.f);
    else memcpy(to, &number.u, widths[dtype]);
}

static double rounded(int dtype, double value) { return dtype == FLOAT64 ? value : (double)(float)value; }

static number_t combine(int dtype, int op, number_t a, number_t b) {
    int less = is_signed(dtype) ? (int64_t)a.u < (int64_t)b.u : a.u < b.u;
    switch (op) {
        case PROD: return (number_t){rounded(dtype, a.f * b.f), a.u * b.u};
        case MAX: return (number_t){fmax(a.f, b.f), less ? b.u : a.u};
        case MIN: return (number_t){fmin(a.f, b.f), less ? a.u : b.u};
        default: return (number_t){rounded(dtype, a.f + b.f), a.u + b.u};
    }
}

static number_t divide(int dtype, number_t a, int n) {
    char bytes[sizeof(uint64_t)];
    store(dtype, a, bytes); /* a sum of integers wraps before it is divided */
    uint64_t wrapped = load(dtype, bytes).u;
    uint64_t quotient = is_signed(dtype) ? (uint64_t)((int64_t)wrapped / n) : wrapped / (uint64_t)n;
    return (number_t){rounded(dtype, a.f / n), quotient};
}

/* out[i] = op over the ranks of parts[rank][i]; parts: nranks times count elements. */
static void reduce(int dtype, int op, void *out, const void *parts, size_t count, int nranks) {
    size_t width = widths[dtype];
    for (size_t i = 0; i < count; i++) {
        const char *part = (const char *)parts + i * width;
        number_t sum = load(dtype, part);
        for (int rank = 1; rank < nranks; rank++)
            sum = combine(dtype, op, sum, load(dtype, part + rank * count * width));
        if (op == AVG) sum = divide(dtype, sum, nranks);
        store(dtype, sum, (char *)out + i * width);
    }
}

static void scale(int dtype, const void *factor, const void *in, void *out, size_t count) {
    size_t width = widths[dtype];
    for (size_t i = 0; i < count; i++) {
        number_t product = combine(dtype, PROD, load(dtype, factor), load(dtype, (const char *)in + i * width));
        store(dtype, product, (char *)out + i * width);
    }
}

#endif
