// decay.c: see decay.h. The formula is evaluated on samples, so that nothing needs to be known of its form.
#include "decay.h"
#include "tensor.h"
#include <math.h>
#include <string.h>

enum { SAMPLES = 64, MOST = 4, INPUT_SIGNS = 3 };

typedef struct Trial {
    const Variant *v;
    TxNodes nodes;
    TxValue *value; // by id
    int read[MOST]; // the inputs that it loads numbers of
    int n;
} Trial;

static bool is_drawn(const Trial *x, const Tx *t) {
    return t->op == EX_LOAD && dtype_reads(x->v->inputs.data[t->index].dtype) == EX_F32;
}

static TxValue value_of(const Trial *x, const Tx *t, const int *sign, uint64_t sample) {
    if (t->known) return t->value;
    if (is_drawn(x, t)) {
        double u = 8 * tensor_uniform(sample, x->v->inputs.data[t->index].name, t->id) - 4;
        return tx_number(sign[t->index] ? sign[t->index] * fabs(u) : u);
    }
    if (t->op == EX_LOAD) return (TxValue){0};
    if (t->op == EX_SYM) return t->type == TX_F32 ? tx_number(1) : (TxValue){.i = 1};
    TxValue args[EX_MAX_RANK];
    for (int k = 0; k < t->nargs; k++) args[k] = x->value[t->args[k]->id];
    return tx_apply(t->op, t->type, t->args[t->nargs - 1]->type, args);
}

// Whether no sample is above 1.
static bool decays(const Trial *x, const int *sign) {
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        for (int i = 0; i < x->nodes.n; i++) {
            const Tx *t = x->nodes.data[i];
            x->value[t->id] = value_of(x, t, sign, sample);
        }
        if (!(x->value[x->v->clause[CLAUSE_DECAY]->id].f <= 1)) return false;
    }
    return true;
}

// False: more inputs than are tried.
static bool find_inputs(Trial *x) {
    for (int i = 0; i < x->nodes.n; i++) {
        const Tx *t = x->nodes.data[i];
        bool known = !is_drawn(x, t);
        for (int k = 0; k < x->n && !known; k++) known = x->read[k] == t->index;
        if (known) continue;
        if (x->n == MOST) return false;
        x->read[x->n++] = t->index;
    }
    return true;
}

// The signs of one number in base 3, the first input's digit the highest. How many there are.
static int set_signs(const Trial *x, int code, int *sign) {
    static const int digit[INPUT_SIGNS] = {0, 1, -1};
    int set = 0;
    for (int k = x->n - 1; k >= 0; k--, code /= INPUT_SIGNS) {
        sign[x->read[k]] = digit[code % INPUT_SIGNS];
        set += code % INPUT_SIGNS != 0;
    }
    return set;
}

void decay_signs(Arena *a, const Variant *v, int *sign) {
    const Tx *decay = v->clause[CLAUSE_DECAY];
    memset(sign, 0, (size_t)v->inputs.n * sizeof *sign);
    if (!decay) return;
    Trial x = {.v = v, .nodes = tx_nodes(a, &decay, 1)};
    x.value = ARENA_ARRAY(a, TxValue, decay->id + 1);
    if (!find_inputs(&x)) return;
    int all = 1;
    for (int k = 0; k < x.n; k++) all *= INPUT_SIGNS;
    for (int most = 0; most <= x.n; most++)
        for (int code = 0; code < all; code++)
            if (set_signs(&x, code, sign) == most && decays(&x, sign)) return;
    set_signs(&x, 0, sign);
}

// *reads: elements of the rows; *norm: the norm of k.
static void look(Arena *a, const Variant *v, ClauseId clause, int input, bool *reads, bool *norm) {
    const Tx *root = v->clause[clause];
    if (!root) return;
    TxNodes nodes = tx_nodes(a, &root, 1);
    for (int i = 0; i < nodes.n; i++) {
        const Tx *t = nodes.data[i];
        *reads |= input < 0 ? tx_is_sym(t, TS_EK) : t->op == EX_LOAD && t->index == input;
        *norm |= input < 0 && tx_is_sym(t, TS_SQEK);
    }
}

static bool has_channels(const Variant *v, int input) {
    if (input < 0) return true;
    const TxInput *in = &v->inputs.data[input];
    const TxExtent *last = in->rank ? &in->extent[in->rank - 1] : NULL;
    return last && last->size < 0 && last->value == v->D && dtype_reads(in->dtype) == EX_F32;
}

bool decay_takes_unit(Arena *a, const Variant *v, int input) {
    bool reads = false, decays = false, norm = false;
    look(a, v, CLAUSE_ERASE, input, &reads, &norm);
    look(a, v, CLAUSE_WRITE, input, &reads, &norm);
    look(a, v, CLAUSE_DECAY, input, &decays, &norm);
    return reads && !decays && !norm && has_channels(v, input);
}
