/* The reduction kernels, one source for CUDA and HIP: what two elements give is in reduce_ops.h, which the host's loops
 * use too, so that both give the same bits. Compiled by itself, as C++ (tools/device_kernels.py makes one file of it):
 * nothing of hetccl's includes it. Which kernel serves which op and dtype: pyx/_device_kernels.pyx. Rules:
 * docs/reductions.md; how the kernels are built: docs/kernels.md. The compiler must not fuse products and sums, nor
 * flush subnormals. */
#include "hetccl/device.h"
#include "hetccl/device_args.h"
#include "hetccl/reduce_ops.h"

#ifdef HETCCL_DEVICE_ON_HOST
HETCCL_DEVICE_ON_HOST
#endif

/* ---- memory: a unit is what one access moves ---- */

template <int NBYTES> struct hetccl_word;
template <> struct hetccl_word<1> { typedef uint8_t type; };
template <> struct hetccl_word<2> { typedef uint16_t type; };
template <> struct hetccl_word<4> { typedef uint32_t type; };
template <> struct hetccl_word<8> { typedef uint64_t type; };
template <> struct hetccl_word<16> { typedef hetccl_16_t type; };

/* Units of NBYTES at addresses that are multiples of it: one or more elements of M. */
template <class M, int NBYTES> struct hetccl_aligned {
    enum { LANES = NBYTES / sizeof(M) };
    struct unit { M lane[LANES]; };
    typedef typename hetccl_word<NBYTES>::type word;

    HETCCL_OP unit load(const void *p, uint64_t i)
    {
        word w = ((const HETCCL_GLOBAL word *)p)[i];
        unit u;
        memcpy(&u, &w, sizeof u);
        return u;
    }
    HETCCL_OP void store(void *p, uint64_t i, unit u)
    {
        word w;
        memcpy(&w, &u, sizeof w);
        ((HETCCL_GLOBAL word *)p)[i] = w;
    }
};

/* One element at any address. */
template <class M> struct hetccl_bytewise {
    enum { LANES = 1 };
    struct unit { M lane[1]; };

    HETCCL_OP unit load(const void *p, uint64_t i)
    {
        uint8_t bytes[sizeof(M)];
        HETCCL_UNROLL
        for (unsigned b = 0; b < sizeof(M); b++)
            bytes[b] = ((const HETCCL_GLOBAL uint8_t *)p)[i * sizeof(M) + b];
        unit u;
        memcpy(&u, bytes, sizeof u);
        return u;
    }
    HETCCL_OP void store(void *p, uint64_t i, unit u)
    {
        uint8_t bytes[sizeof(M)];
        memcpy(bytes, &u, sizeof u);
        HETCCL_UNROLL
        for (unsigned b = 0; b < sizeof(M); b++)
            ((HETCCL_GLOBAL uint8_t *)p)[i * sizeof(M) + b] = bytes[b];
    }
};

/* ---- loops: thread `first` of the grid has units first, first + threads, ... ---- */

/* out = in[0] op in[1] op ... Two sources are held in turn, so that the next one's load is under way while one is
 * worked in. Each unit is read from every source before it is written, by the same thread, so that out may be one. */
template <class F> struct hetccl_fold {
    typedef typename F::memory memory;

    template <class A> HETCCL_OP void add(typename F::value *running, const typename A::unit &u)
    {
        HETCCL_UNROLL
        for (int l = 0; l < A::LANES; l++)
            running[l] = F::join(running[l], F::widen(u.lane[l]));
    }

    template <class A> HETCCL_OP void run(const hetccl_device_args_t &a, uint64_t first, uint64_t end)
    {
        uint64_t nthreads = (uint64_t)a.nblocks * HETCCL_DEVICE_BLOCK;
        HETCCL_ROLLED
        for (uint64_t i = first; i < end; i += nthreads) {
            typename A::unit now = A::load(a.in[0], i), next = A::load(a.in[a.nsources > 1], i);
            typename F::value running[A::LANES];
            HETCCL_UNROLL
            for (int l = 0; l < A::LANES; l++)
                running[l] = F::widen(now.lane[l]);
            HETCCL_ROLLED
            for (uint32_t s = 1; s < a.nsources; s += 2) {
                if (s + 1 < a.nsources)
                    now = A::load(a.in[s + 1], i);
                add<A>(running, next);
                if (s + 2 < a.nsources)
                    next = A::load(a.in[s + 2], i);
                if (s + 1 < a.nsources)
                    add<A>(running, now);
            }
            HETCCL_UNROLL
            for (int l = 0; l < A::LANES; l++)
                now.lane[l] = a.nsources == 1 ? F::alone(now.lane[l], a.divisor) : F::narrow(running[l], a.divisor);
            A::store(a.out, i, now);
        }
    }
};

/* out = in[0] * factor; F is a product. */
template <class F> struct hetccl_scaling {
    typedef typename F::memory memory;

    template <class A> HETCCL_OP void run(const hetccl_device_args_t &a, uint64_t first, uint64_t end)
    {
        uint64_t nthreads = (uint64_t)a.nblocks * HETCCL_DEVICE_BLOCK;
        memory factor;
        memcpy(&factor, a.factor, sizeof factor);
        HETCCL_ROLLED
        for (uint64_t i = first; i < end; i += nthreads) {
            typename A::unit u = A::load(a.in[0], i);
            HETCCL_UNROLL
            for (int l = 0; l < A::LANES; l++)
                u.lane[l] = F::narrow(F::join(F::widen(u.lane[l]), F::widen(factor)), 1);
            A::store(a.out, i, u);
        }
    }
};

/* The widest access that suits all addresses. */
template <class L> HETCCL_OP void hetccl_device_run(const hetccl_device_args_t &a, uint64_t first)
{
    typedef typename L::memory M;
    typedef hetccl_aligned<M, HETCCL_DEVICE_ACCESS> lines;
    uint64_t addresses = (uint64_t)a.out, done = 0;
    HETCCL_ROLLED
    for (uint32_t s = 0; s < a.nsources; s++)
        addresses |= (uint64_t)a.in[s];
    if (addresses % HETCCL_DEVICE_ACCESS == 0) {
        uint64_t nlines = a.count / lines::LANES;
        L::template run<lines>(a, first, nlines);
        done = nlines * lines::LANES;
    }
    if (addresses % sizeof(M) == 0)
        L::template run<hetccl_aligned<M, sizeof(M)> >(a, done + first, a.count);
    else
        L::template run<hetccl_bytewise<M> >(a, first, a.count);
}

/* ---- what is folded. M: the type in memory, V: of the running value ---- */

#define HETCCL_SAME(x) (x)
#define HETCCL_TRUTH(x) ((x) != 0)

/* ALONE: what a single source gives; DIVIDE(v, divisor): what is done to the result before it is narrowed. */
#define HETCCL_FOLD(NAME, M, V, WIDEN, JOIN, DIVIDE, NARROW, ALONE)                                                   \
    struct hetccl_##NAME##_t {                                                                                        \
        typedef M memory;                                                                                             \
        typedef V value;                                                                                              \
        HETCCL_OP value widen(memory m) { return WIDEN(m); }                                                          \
        HETCCL_OP value join(value a, value b) { return JOIN(a, b); }                                                 \
        HETCCL_OP memory narrow(value v, uint32_t divisor) { return NARROW(DIVIDE(v, divisor)); }                     \
        HETCCL_OP memory alone(memory m, uint32_t divisor) { return ALONE(m, divisor); }                              \
    };                                                                                                                \
    HETCCL_ENTRY(hetccl_reduce_##NAME, hetccl_device_run<hetccl_fold<hetccl_##NAME##_t> >)

#define HETCCL_WHOLE(v, divisor) (v)
#define HETCCL_AVERAGE_ALONE(m, divisor) narrow(widen(m), divisor)
#define HETCCL_TRUTH_ALONE(m, divisor) HETCCL_TRUTH(m)

/* One type in memory and in the fold. */
#define HETCCL_PLAIN(NAME, T, JOIN) HETCCL_FOLD(NAME, T, T, HETCCL_SAME, JOIN, HETCCL_WHOLE, HETCCL_SAME, HETCCL_WHOLE)
#define HETCCL_AVERAGE(NAME, M, V, WIDEN, JOIN, DIVIDE, NARROW) \
    HETCCL_FOLD(NAME, M, V, WIDEN, JOIN, DIVIDE, NARROW, HETCCL_AVERAGE_ALONE)

#define HETCCL_DIVIDE_I32(v, divisor) ((int32_t)(v) / (int32_t)(divisor))
#define HETCCL_DIVIDE_U32(v, divisor) ((uint32_t)(v) / (divisor))
#define HETCCL_DIVIDE_I64(v, divisor) ((int64_t)(v) / (int64_t)(divisor))
#define HETCCL_DIVIDE_U64(v, divisor) ((uint64_t)(v) / (divisor))
#define HETCCL_DIVIDE_F32(v, divisor) ((v) / (float)(int32_t)(divisor))
#define HETCCL_DIVIDE_F64(v, divisor) ((v) / (double)(int32_t)(divisor))

/* U, S: the unsigned and the signed type of BITS bits; W: 32 or 64, the width of the arithmetic. */
#define HETCCL_DEVICE_INTEGER(BITS, U, S, W)                                                                          \
    HETCCL_PLAIN(sum_u##BITS, U, (U)HETCCL_ADD_##W)                                                                   \
    HETCCL_PLAIN(prod_u##BITS, U, (U)HETCCL_MUL_##W)                                                                  \
    HETCCL_PLAIN(max_u##BITS, U, HETCCL_MAX)                                                                          \
    HETCCL_PLAIN(min_u##BITS, U, HETCCL_MIN)                                                                          \
    HETCCL_PLAIN(max_i##BITS, S, HETCCL_MAX)                                                                          \
    HETCCL_PLAIN(min_i##BITS, S, HETCCL_MIN)                                                                          \
    HETCCL_AVERAGE(avg_u##BITS, U, U, HETCCL_SAME, (U)HETCCL_ADD_##W, (U)HETCCL_DIVIDE_U##W, HETCCL_SAME)             \
    HETCCL_AVERAGE(avg_i##BITS, S, S, HETCCL_SAME, (S)HETCCL_ADD_##W, (S)HETCCL_DIVIDE_I##W, HETCCL_SAME)             \
    HETCCL_PLAIN(band_u##BITS, U, HETCCL_BITS_AND)                                                                    \
    HETCCL_PLAIN(bor_u##BITS, U, HETCCL_BITS_OR)                                                                      \
    HETCCL_PLAIN(bxor_u##BITS, U, HETCCL_BITS_XOR)                                                                    \
    HETCCL_LOGICAL(land_u##BITS, U, HETCCL_AND)                                                                       \
    HETCCL_LOGICAL(lor_u##BITS, U, HETCCL_OR)                                                                         \
    HETCCL_LOGICAL(lxor_u##BITS, U, HETCCL_XOR)                                                                       \
    HETCCL_SCALING(u##BITS)

#define HETCCL_LOGICAL(NAME, T, JOIN) \
    HETCCL_FOLD(NAME, T, T, HETCCL_SAME, JOIN, HETCCL_WHOLE, HETCCL_SAME, HETCCL_TRUTH_ALONE)

#define HETCCL_SCALING(TYPE) \
    HETCCL_ENTRY(hetccl_scale_##TYPE, hetccl_device_run<hetccl_scaling<hetccl_prod_##TYPE##_t> >)

#define HETCCL_DEVICE_FLOAT(TYPE, T, DIVIDE)                                                                          \
    HETCCL_PLAIN(sum_##TYPE, T, HETCCL_ADD)                                                                           \
    HETCCL_PLAIN(prod_##TYPE, T, HETCCL_MUL)                                                                          \
    HETCCL_PLAIN(max_##TYPE, T, hetccl_##TYPE##_max)                                                                  \
    HETCCL_PLAIN(min_##TYPE, T, hetccl_##TYPE##_min)                                                                  \
    HETCCL_AVERAGE(avg_##TYPE, T, T, HETCCL_SAME, HETCCL_ADD, DIVIDE, HETCCL_SAME)                                    \
    HETCCL_SCALING(TYPE)

/* Floats of 8 and 16 bits: sums and products in float32, the choice of one operand on its bits. */
#define HETCCL_DEVICE_NARROW(TYPE, M)                                                                                 \
    HETCCL_FOLD(sum_##TYPE, M, float, hetccl_##TYPE##_to_f32, HETCCL_ADD, HETCCL_WHOLE, hetccl_f32_to_##TYPE,         \
                HETCCL_WHOLE)                                                                                         \
    HETCCL_FOLD(prod_##TYPE, M, float, hetccl_##TYPE##_to_f32, HETCCL_MUL, HETCCL_WHOLE, hetccl_f32_to_##TYPE,        \
                HETCCL_WHOLE)                                                                                         \
    HETCCL_PLAIN(max_##TYPE, M, hetccl_##TYPE##_max)                                                                  \
    HETCCL_PLAIN(min_##TYPE, M, hetccl_##TYPE##_min)                                                                  \
    HETCCL_AVERAGE(avg_##TYPE, M, float, hetccl_##TYPE##_to_f32, HETCCL_ADD, HETCCL_DIVIDE_F32, hetccl_f32_to_##TYPE) \
    HETCCL_SCALING(TYPE)

/* Complex numbers are added as twice as many of their parts. */
#define HETCCL_DEVICE_COMPLEX(TYPE)                                                                                   \
    HETCCL_PLAIN(prod_##TYPE, hetccl_##TYPE##_t, hetccl_##TYPE##_mul)                                                 \
    HETCCL_SCALING(TYPE)

#define HETCCL_DEVICE_PAIR(TYPE)                                                                                      \
    HETCCL_PLAIN(minloc_##TYPE, hetccl_##TYPE##_m, hetccl_##TYPE##_minloc)                                            \
    HETCCL_PLAIN(maxloc_##TYPE, hetccl_##TYPE##_m, hetccl_##TYPE##_maxloc)

HETCCL_DEVICE_INTEGER(8, uint8_t, int8_t, 32)
HETCCL_DEVICE_INTEGER(16, uint16_t, int16_t, 32)
HETCCL_DEVICE_INTEGER(32, uint32_t, int32_t, 32)
HETCCL_DEVICE_INTEGER(64, uint64_t, int64_t, 64)
HETCCL_DEVICE_NARROW(f16, uint16_t)
HETCCL_DEVICE_NARROW(bf16, uint16_t)
HETCCL_DEVICE_NARROW(e4m3, uint8_t)
HETCCL_DEVICE_NARROW(e5m2, uint8_t)
HETCCL_DEVICE_FLOAT(f32, float, HETCCL_DIVIDE_F32)
HETCCL_DEVICE_FLOAT(f64, double, HETCCL_DIVIDE_F64)
HETCCL_DEVICE_COMPLEX(c64)
HETCCL_DEVICE_COMPLEX(c128)
HETCCL_DEVICE_PAIR(float_int)
HETCCL_DEVICE_PAIR(double_int)
HETCCL_DEVICE_PAIR(long_int)
HETCCL_DEVICE_PAIR(int_int)
HETCCL_DEVICE_PAIR(short_int)
