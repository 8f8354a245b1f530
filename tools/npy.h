// npy.h: NumPy's .npy files (format versions 1 to 3), untrusted input. Element types f2 f4 f8 i1 i4 i8
// u1 b1, either byte order; arrays in Fortran order are read as what they mean. Elements are reached
// by their row-major index whatever the order in the file.
#ifndef TOOLS_NPY_H
#define TOOLS_NPY_H

#include "tensor.h"

typedef enum NpyType {
#define NPY_TYPE(e, descr, bytes) NPY_##e,
#include "npy_types.def"
#undef NPY_TYPE
    NPY_TYPE_COUNT
} NpyType;

typedef struct Npy {
    NpyType type;
    bool swapped; // the other byte order than this machine's
    bool fortran;
    int rank;
    int64_t dim[TENSOR_MAX_RANK];
    int64_t count;
    const uint8_t *data; // inside the bytes given to npy_parse
    void *owner;         // the file's bytes (npy_read)
} Npy;

// False with *error set when the bytes are no such file. out->data points into `bytes`.
bool npy_parse(const void *bytes, size_t n, Npy *out, const char **error);
double npy_get(const Npy *a, int64_t i);

// STATUS_SYSTEM when the file cannot be read, STATUS_INPUT when it is no array; both with a
// message.
Status npy_read(const char *path, Npy *out);
void npy_free(Npy *a);
// Converts to a tensor's element type: integers must fit i32, a float given for an integer must be
// whole; b1 from anything; the bits of e4m3 and e5m2 from u1, and from the types of ml_dtypes; other files
// are rounded to them and to i8, and saturate (not 0 is true). `what` names the tensor in the message.
Status npy_to_tensor(const Npy *a, Dtype t, const char *what, Tensor *out);
// The bytes of a file: f4, C order. malloc'ed; NULL: out of memory.
void *npy_bytes(const Tensor *t, size_t *n);

#endif
