/* What other libraries lay out in memory and hetccl only reads (layer L2, used by _array): NumPy's array object,
 * DLPack's tensors and exchange table. Declared here so that neither is needed to build. */
#ifndef HETCCL_ARRAYS_H
#define HETCCL_ARRAYS_H

#include <Python.h>
#include <stdint.h>

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "hetccl needs a 64-bit machine");

/* numpy/core/include/numpy/ndarraytypes.h, PyArray_Descr: the prefix that NumPy 1.x and 2.x share. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *typeobj;
    char kind;
    char type;
    char byteorder; /* '=' or '|' native, '<' little, '>' big */
    char flags_v1;
    int type_num;
} hetccl_descr_t;

/* PyArrayObject_fields in the same file. _array checks this layout against NumPy's own answers before it trusts it. */
typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides; /* bytes */
    PyObject *base;
    hetccl_descr_t *descr;
    int flags;
} hetccl_ndarray_t;

enum hetccl_npy_flags { HETCCL_NPY_C = 0x1, HETCCL_NPY_F = 0x2, HETCCL_NPY_WRITEABLE = 0x400 };

/* DLPack 1.3, dlpack.h. Codes beyond those named here are not carried by hetccl. */
enum hetccl_dl_device {
    HETCCL_DL_CPU = 1,
    HETCCL_DL_CUDA = 2,
    HETCCL_DL_CUDA_HOST = 3,
    HETCCL_DL_ROCM = 10,
    HETCCL_DL_ROCM_HOST = 11,
    HETCCL_DL_CUDA_MANAGED = 13,
    HETCCL_DL_ONEAPI = 14
};

enum hetccl_dl_code { HETCCL_DL_BFLOAT = 4, HETCCL_DL_FLOAT8_E4M3FN = 10, HETCCL_DL_FLOAT8_E5M2 = 12 };

#define HETCCL_DL_READ_ONLY 1u
#define HETCCL_DL_IS_COPIED 2u

typedef struct {
    int32_t type, id;
} hetccl_dldevice_t;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} hetccl_dldtype_t;

typedef struct {
    void *data;
    hetccl_dldevice_t device;
    int32_t ndim;
    hetccl_dldtype_t dtype;
    int64_t *shape;
    int64_t *strides; /* elements; NULL means C order */
    uint64_t byte_offset;
} hetccl_dltensor_t;

typedef struct hetccl_dlmanaged { /* capsule "dltensor": 0.x */
    hetccl_dltensor_t tensor;
    void *context;
    void (*deleter)(struct hetccl_dlmanaged *);
} hetccl_dlmanaged_t;

typedef struct hetccl_dlversioned { /* capsule "dltensor_versioned": 1.x; the part before `tensor` never changes */
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct hetccl_dlversioned *);
    uint64_t flags;
    hetccl_dltensor_t tensor;
} hetccl_dlversioned_t;

typedef struct hetccl_dlexchange { /* capsule "dlpack_exchange_api" on a type; lives as long as the process */
    uint32_t major, minor;
    struct hetccl_dlexchange *previous;
    void *allocate;
    int (*managed_from_object)(void *object, hetccl_dlversioned_t **out); /* owning, carries the flags */
    void *managed_to_object;
    int (*tensor_from_object)(void *object, hetccl_dltensor_t *out); /* borrowed from the object; may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device, void **stream); /* of this thread; may be NULL */
} hetccl_dlexchange_t;

/* HETCCL_NPY_C and HETCCL_NPY_F bits of a layout with strides in units of `unit` (bytes, or 1 for elements).
 * Strides of dimensions of size 0 or 1 mean nothing: no step is ever taken along them. */
static inline int hetccl_layout_order(int ndim, const int64_t *shape, const int64_t *strides, int64_t unit)
{
    int64_t c = unit, f = unit;
    int order = HETCCL_NPY_C | HETCCL_NPY_F;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0)
            return HETCCL_NPY_C | HETCCL_NPY_F;
    }
    for (int i = 0; i < ndim; i++) {
        int j = ndim - 1 - i;
        if (shape[j] > 1 && strides && strides[j] != c)
            order &= ~HETCCL_NPY_C;
        if (shape[i] > 1 && strides && strides[i] != f)
            order &= ~HETCCL_NPY_F;
        c *= shape[j];
        f *= shape[i];
    }
    if (!strides && ndim > 1)
        order = HETCCL_NPY_C;
    return order;
}

#endif
