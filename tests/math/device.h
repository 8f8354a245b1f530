// device.h: f32 functions as a kernel on a device of this machine computes them.
#ifndef TESTS_MATH_DEVICE_H
#define TESTS_MATH_DEVICE_H

#include "tools/cmd.h"

typedef struct MathDevice {
    Compile c;
    Launch l;
    Binding b;
    Options o;
    int a, second, out; // arguments of the kernel
    int64_t n;
} MathDevice;

enum { MATH_DEVICE_ROW = 64 };

// A kernel that applies op to n elements, a multiple of MATH_DEVICE_ROW; false, with a message, where
// there is none. math_device_close is due whatever comes back.
bool math_device_open(MathDevice *d, ExOp op, int64_t n, const Options *o);
// The arguments' elements, to be filled in, and the results; NULL, with a message, where it fails.
float *math_device_in(MathDevice *d, int which);
const float *math_device_run(MathDevice *d);
void math_device_close(MathDevice *d);

#endif
