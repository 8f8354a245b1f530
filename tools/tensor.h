// tensor.h: dense row-major arrays in memory, in a kernel's own element types, for the verbs that
// run kernels.
#ifndef TOOLS_TENSOR_H
#define TOOLS_TENSOR_H

#include "ir/row.h"
#include "status.h"
#include <stdbool.h>
#include <stdint.h>

enum { TENSOR_MAX_RANK = EX_MAX_RANK };

typedef struct Tensor {
    Dtype dtype;
    int rank;
    int64_t dim[TENSOR_MAX_RANK];
    int64_t count;
    void *data; // malloc'ed; one element's room at least
} Tensor;

// Uninitialised. False when the extents overflow or memory is out.
bool tensor_alloc(Tensor *t, Dtype dtype, int rank, const int64_t *dim);
void tensor_free(Tensor *t);
double tensor_get(const Tensor *t, int64_t i);
enum { TENSOR_RUN = 1024 }; // elements that are well read together
void tensor_read(const Tensor *t, int64_t i, int n, double *out); // [i, i + n)
void tensor_set(Tensor *t, int64_t i, double v);                  // rounds to nearest even
// A copy as doubles (malloc'ed), what the float64 reference reads.
double *tensor_doubles(const Tensor *t);
// Standard normal, rounded to the element type; the same for the same seed and name whatever else
// is drawn. Integers and bools become 0.
void tensor_normal(Tensor *t, uint64_t seed, const char *name);
// In (0, 1), the same for the same seed, name and element.
double tensor_uniform(uint64_t seed, const char *name, int64_t i);
// The same of its first elements, which are then repeated: for what only wants to be random.
void tensor_normal_repeated(Tensor *t, uint64_t seed, const char *name);
// "[1, 8, 256, 64]" into buf.
const char *tensor_shape(const Tensor *t, char *buf, size_t n);

float half_to_f32(uint16_t h);
float e4m3_to_f32(uint8_t x);
uint16_t half_from_f32(float f);
float bf16_to_f32(uint16_t h);
uint16_t bf16_from_f32(float f);

// How far outputs may be from float64, relative, where q, k and v are of this type (tolerance.def).
double tensor_tolerance(Dtype dtype);
double tensor_tolerance_tf32(void);      // of f32, where products are by tf32
double tensor_tolerance_gradients(void); // times those, of gradients
// The difference of one element of an output of this type that is no error: half of what lies between two subnormal f16; else what a sum
// that counts as 0, for it is subnormal in f32, may be after it is multiplied (docs/arithmetic.md).
double tensor_step(Dtype dtype);
// Whether an output of this type holds a number as large as x. A kernel writes an infinity, or the largest number, where it does not.
bool tensor_holds(Dtype dtype, double x);

#endif
