// pane_row.h: q, k, v and inputs of a request as the reference reads them: what `attn/weights` and `attn/steps` share.
#ifndef SERVICE_PANE_ROW_H
#define SERVICE_PANE_ROW_H

#include "frontend/reference.h"
#include "pane.h"

typedef struct PaneRun {
    Binding b;
    const bool *read;
    int batch, head;
    const cJSON *tokens; // NULL: q and k are drawn or given
    const double *q, *k, *v;
    RefRun run; // the outputs are the caller's affair
} PaneRun;

enum { PANE_MOST_DIM = 512, PANE_MOST_TOKENS = 128 };

// False: the request has failed.
bool pane_run(Pane *p, PaneRun *r, int rows);
// Evaluates the rows of the batch entry and head from `first` to `end`, into r->run.
void pane_evaluate(Pane *p, PaneRun *r, int first, int end);
// The place of a row of q, o or an emit; of k and v.
size_t pane_q_row(const PaneRun *r, int query);
size_t pane_k_row(const PaneRun *r, int key);

#endif
