// keep.h: a launch written to a folder, so that another emulator can run it (beside.py) and be held
// against this one, instruction by instruction.
//
//     N.hsaco         the code object of launch N
//     N.launch        text: the kernel, its grid and arguments, where each buffer lay
//     N.before.B      buffer B before the launch; N.after.B, if it may be written, after it
//     N.trace         what each instruction left, in 32-bit words: group, wave, offset in the code
//                     object's image, exec (2), how many registers; of each of them whether it is a
//                     vector register, its number, which lanes (or bits) were ever written (2), and
//                     its value, of vector registers one for each lane of the wave
#ifndef TESTS_GCN_KEEP_H
#define TESTS_GCN_KEEP_H

#include "tests/gcn/gcn.h"

typedef struct GcnKeep GcnKeep;

// What is known before; the launch is then watched. Its number is the first one that the folder
// does not have. NULL: something cannot be written.
GcnKeep *gcn_keep(const char *folder, GcnLaunch *l, const void *hsaco, size_t bytes);
// What the launch has left; ends it. False: something could not be written.
bool gcn_keep_after(GcnKeep *k, const GcnLaunch *l);

#endif
