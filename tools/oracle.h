// oracle.h: the naive float64 evaluation of a variant over a binding: what check compares with, and
// what runs a recurrence.
#ifndef TOOLS_ORACLE_H
#define TOOLS_ORACLE_H

#include "bind.h"
#include "frontend/frontend.h"
#include "frontend/reference.h"

// out: one array per argument of the signature, malloc'ed here for outputs, NULL for the rest.
// outside (NULL: not wanted): what -g reports. pairs (NULL: not wanted): how many took part.
Status oracle_run(const Variant *v, const Binding *b, double **out, RefOutside *outside,
                  int64_t *pairs);
// Prints the outside read as a warning; nothing when there was none. d: whose files it is in.
void oracle_warn(const Diags *d, const Variant *v, const RefOutside *outside);
void oracle_free(const Binding *b, double **out);

#endif
