// pane.h: what the requests of docs/service.md share. Private to tools/service.
#ifndef SERVICE_PANE_H
#define SERVICE_PANE_H

#include "frontend/uses.h"
#include "internal.h"
#include "tools/bind.h"

typedef struct Pane {
    Service *s;
    const cJSON *params;
    Analysis source; // of the document under the request's constants
    Arena *arena;    // its own
    Variant *variant;
    RowProgram *row; // NULL unless it was derived
    Stream *stream;
} Pane;

// What is computed of a document for a request.
typedef enum PaneNeed { PANE_VARIANT, PANE_DERIVED } PaneNeed;

// False: the request has failed. pane_close is due whatever comes back, and gives `result` on.
bool pane_open(Pane *p, Service *s, const cJSON *params, PaneNeed need);
// Reads the document alone; uses: NULL, or is filled.
bool pane_load(Pane *p, Service *s, const cJSON *params, struct Uses *uses);
cJSON *pane_close(Pane *p, cJSON *result);
cJSON *pane_wrong(Pane *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); // -32602
cJSON *pane_refused(Pane *p); // what the diagnostics say, or that a launch cannot be shown

// ---- parameters. False: the request has failed.
bool pane_int(Pane *p, const char *name, int least, int most, int otherwise, int *value);
bool pane_target(Pane *p, Target *t);
// What is a number in JSON, or one of "nan", "inf", "-inf".
bool pane_is_number(const cJSON *item, double *value);
// The sizes that the request gives, and defaults; rows: of Sq and Sk.
bool pane_sizes(Pane *p, const Signature *sig, int rows, int32_t *size);
// Sizes, and memory for every argument for which `read` holds: given, or drawn by the seed.
bool pane_bind(Pane *p, Binding *b, const Signature *sig, const int32_t *size, const bool *read);
bool pane_place(Pane *p, const int32_t *size, int *batch, int *head);
uint64_t pane_seed(const Pane *p);

// ---- results
cJSON *pane_number(double v);
cJSON *pane_numbers(Pane *p, const double *v, int64_t n);
cJSON *pane_bits(Pane *p, const unsigned char *bits, int64_t n);
cJSON *pane_span(Pane *p, Span span); // a place, or null
cJSON *pane_drawn(Pane *p, const Binding *b, const bool *read);
// Adds mathml, text and tex of a formula over the row's symbols.
void pane_formula(Pane *p, cJSON *to, const Ex *e, const ExNames *names);
void pane_range(void *pane, Text *out, Span span); // attributes of MathML, as ExplainForm has them
// <math> of a name, as explanations write it.
const char *pane_name(Pane *p, const char *name);

#endif
