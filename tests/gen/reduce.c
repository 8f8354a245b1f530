// reduce.c: makes a failing variant smaller: takes clauses and lets out, puts a child or a plain
// leaf in the place of an expression, shrinks sizes; keeps a step when the failure stays. Repeats
// until nothing more can be taken.
#include "gen.h"
#include <string.h>

typedef struct Reduce {
    GenProgram *p;
    Arena *a;
    bool (*fails)(void *ctx, const GenProgram *p);
    void *ctx;
    int budget;
} Reduce;

static bool still(Reduce *r) { return r->budget-- > 0 && r->fails(r->ctx, r->p); }

static const char *plain(char what) {
    switch (what) {
    case 'S': return "dot(q, k)";
    case 'M':
    case 'W': return "s";
    case 'Z': return "s";
    case 'X': return "softmax(s)";
    case 'I': return "kv_idx";
    case 'C': return "true";
    case 'R':
    case 'K': return "1.0";
    case 'J': return "7";
    default: return "o";
    }
}

static bool try_node(Reduce *r, GenNode **slot) {
    GenNode *old = *slot;
    if (!old) return false;
    if (strcmp(old->text, plain(old->what)) != 0) {
        GenNode *leaf = ARENA_NEW(r->a, GenNode);
        leaf->what = old->what;
        leaf->text = plain(old->what);
        *slot = leaf;
        if (still(r)) return true;
    }
    for (int i = 0; i < old->nkids; i++) {
        bool same =
            old->kid[i]->what == old->what || (old->what == 'Z' && old->kid[i]->what == 'W');
        *slot = old->kid[i];
        if (same && still(r)) return true;
    }
    *slot = old;
    for (int i = 0; i < old->nkids; i++)
        if (try_node(r, &old->kid[i])) return true;
    return false;
}

static bool try_absent(Reduce *r, GenNode **slot) {
    GenNode *old = *slot;
    if (!old) return false;
    *slot = NULL;
    if (still(r)) return true;
    *slot = old;
    return false;
}

static bool try_size(Reduce *r, int *size, int to) {
    int old = *size;
    if (to < 1 || old <= to) return false;
    *size = to;
    if (still(r)) return true;
    *size = old;
    return false;
}

static bool sizes(Reduce *r) {
    GenShape *s = &r->p->shape, old = *s;
    bool smaller = try_size(r, &s->B, 1);
    smaller = try_size(r, &s->D, 8) || try_size(r, &s->Dv, 8) || smaller;
    if (s->q_offset) {
        s->q_offset = 0;
        if (still(r)) return true;
        s->q_offset = old.q_offset;
    }
    if (s->H > 1) {
        s->H = s->Hkv = 1;
        if (still(r)) return true;
        s->H = old.H, s->Hkv = old.Hkv;
    }
    smaller = try_size(r, &s->Sq, s->Sq / 2) || try_size(r, &s->Sk, s->Sk / 2) || smaller;
    return try_size(r, &s->Sq, s->Sq - 1) || try_size(r, &s->Sk, s->Sk - 1) || smaller;
}

void gen_reduce(GenProgram *p, Arena *a, bool (*fails)(void *ctx, const GenProgram *p), void *ctx,
                int budget) {
    Reduce r = {p, a, fails, ctx, budget};
    bool more = true;
    while (more && r.budget > 0) {
        more = try_absent(&r, &p->output) || try_absent(&r, &p->mask) || try_absent(&r, &p->unless);
        more = (!p->unless && try_absent(&r, &p->modify)) || more;
        for (int i = p->nlets - 1; i >= 0; i--) more = try_absent(&r, &p->let[i].value) || more;
        more =
            try_node(&r, &p->result) || try_node(&r, &p->modify) || try_node(&r, &p->mask) || more;
        more =
            try_node(&r, &p->score) || try_node(&r, &p->output) || try_node(&r, &p->unless) || more;
        for (int i = 0; i < p->nlets; i++) more = try_node(&r, &p->let[i].value) || more;
        more = sizes(&r) || more;
    }
}
