// waits.c: which registers a memory instruction is still to fill, and what s_waitcnt waits for.
//
// The data is there at once; what is tracked is whether the program may know it. Vector loads and
// stores come back in the order of their issue, LDS's, too; scalar loads in any order, so that only
// a count of 0 covers them.
#include "tests/gcn/wave.h"

static void mark(Wave *w, const Pending *p, int by) {
    uint8_t *busy = p->scalar ? w->busy_s : w->busy_v;
    for (int i = 0; i < p->count; i++) {
        busy[p->reg + i] = (uint8_t)(busy[p->reg + i] + by);
        w->busy += by;
    }
}

static void complete(Wave *w, Waiting *q) {
    mark(w, &q->p[q->first], -1);
    q->first = (q->first + 1) % GCN_PENDING;
    q->n--;
}

void gcn_issue(Wave *w, GcnCounter c, const Operand *result, bool lds) {
    Waiting *q = &w->waiting[c];
    Pending p = {.lds = lds};
    if (result && result->reg != GCN_NULL) {
        p.reg = result->reg;
        p.count = result->count;
        p.scalar = result->kind == OPERAND_S;
    }
    if (q->n == GCN_PENDING) complete(w, q); // the counter is full: the device waits
    q->p[(q->first + q->n++) % GCN_PENDING] = p;
    mark(w, &p, 1);
    for (int i = 0; i < p.count && !p.scalar; i++) w->busy_by[p.reg + i] = (uint8_t)c;
}

static void wait_for(Wave *w, Waiting *q, int count) {
    bool any_order = false;
    for (int i = 0; i < q->n; i++) any_order |= q->p[(q->first + i) % GCN_PENDING].scalar;
    if (any_order && count > 0) return;
    while (q->n > count) complete(w, q);
}

void gcn_wait(Wave *w, const int *counts) {
    for (int c = 0; c < GCN_COUNTERS; c++)
        if (counts[c] >= 0) wait_for(w, &w->waiting[c], counts[c]);
}

bool gcn_outstanding_lds(const Wave *w) {
    const Waiting *q = &w->waiting[GCN_LGKM];
    for (int i = 0; i < q->n; i++)
        if (q->p[(q->first + i) % GCN_PENDING].lds) return true;
    return false;
}

static bool free_of(Wave *w, const Op *op, const Operand *o) {
    const uint8_t *busy = o->kind == OPERAND_V ? w->busy_v : w->busy_s;
    if (o->kind != OPERAND_V && o->kind != OPERAND_S) return true;
    if (o->reg == GCN_NULL || o->reg == GCN_SCC) return true;
    for (int i = 0; i < o->count; i++) {
        if (!busy[o->reg + i]) continue;
        gcn_fault(w, op, "touches %s%d, which a load is still to fill: there is no s_waitcnt",
                  o->kind == OPERAND_S ? "s"
                  : o->reg >= 256      ? "a"
                                       : "v",
                  (o->reg + i) % (o->kind == OPERAND_S ? GCN_SGPRS : 256));
        return false;
    }
    return true;
}

// A load may write to what an earlier load of the same counter is still to fill: they come back in
// order.
static bool in_order(const Wave *w, const Op *op) {
    const Operand *o = &op->dst[0];
    bool memory = op->row->flags & ROW_MEMORY, lds = op->row->flags & ROW_LDS;
    if ((!memory && !lds) || op->ndst == 0 || o->kind != OPERAND_V) return false;
    for (int i = 0; i < o->count; i++)
        if (w->busy_v[o->reg + i] && w->busy_by[o->reg + i] != (memory ? GCN_VM : GCN_LGKM))
            return false;
    return true;
}

bool gcn_ready(Wave *w, const Op *op) {
    for (int i = 0; i < op->nsrc; i++)
        if (!free_of(w, op, &op->src[i])) return false;
    if (in_order(w, op)) return true;
    for (int i = 0; i < op->ndst; i++)
        if (!free_of(w, op, &op->dst[i])) return false;
    return true;
}
