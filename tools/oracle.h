// oracle.h: the naive float64 evaluation of a variant over a binding: what check compares with, and
// what runs a recurrence.
#ifndef TOOLS_ORACLE_H
#define TOOLS_ORACLE_H

#include "bind.h"
#include "frontend/frontend.h"

// out: one array per argument of the signature, malloc'ed here for outputs, NULL for the rest.
Status oracle_run(const Variant *v, const Binding *b, double **out);
void oracle_free(const Binding *b, double **out);

#endif
