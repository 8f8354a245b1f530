// ptx.h: what of an artifact's PTX one kernel needs. The driver compiles all of a text that it
// loads, one kernel after the other, tenths of a second each: a kernel is given to it alone, when it
// is wanted.
#ifndef RUNTIME_PTX_H
#define RUNTIME_PTX_H

#include <stddef.h>

// The text without the other entries: variables and functions stay, and so does all of a text that
// is not written as LLVM does (an entry begins a line, and the brace that ends it is one). malloc'ed,
// with a NUL behind it; NULL: out of memory.
char *rt_ptx_alone(const char *text, size_t n, const char *symbol);

#endif
