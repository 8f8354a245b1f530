// parts.h: the programs of parts in the interpreter: the keys of a binding in parts, then the combination.
#ifndef TESTS_PARTS_H
#define TESTS_PARTS_H

#include "tools/bind.h"
#include "tools/compile.h"

// The outputs of a binding, by argument, in arena a; NULL with a reason in diags. Two states are left, as by tools/launch_parts.c.
double **parts_interpret(Arena *a, const TileProgram *part, const TileProgram *combine,
                         const Binding *b, int parts, Diags *diags);

#endif
