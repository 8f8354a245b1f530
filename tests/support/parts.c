// parts.c: see parts.h.
#include "tests/support/parts.h"
#include "ir/tile_eval.h"
#include <math.h>
#include <string.h>

enum { STATES = 2, WORKERS = 2 };

typedef struct Kept { // of a state: sums, numbers
    double *sums, *rows;
} Kept;

static void set_size(const TileProgram *p, int32_t *size, const char *name, int32_t value) {
    for (int i = SIZE_FREE; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) size[i] = value;
}

static int32_t *sizes_of(Arena *a, const TileProgram *p, const Binding *b, int32_t first,
                         int32_t keys) {
    int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n + 1);
    memcpy(size, b->size, sizeof *size * (size_t)b->sig->sizes.n);
    size[SIZE_SK] = keys;
    set_size(p, size, "q_first", 0);
    set_size(p, size, "kv_first", first);
    set_size(p, size, "Sq_all", b->size[SIZE_SQ]);
    set_size(p, size, "Sk_all", b->size[SIZE_SK]);
    set_size(p, size, "parts", STATES);
    tile_eval_sizes(p, size, WORKERS);
    return size;
}

// Rows of keys [batch, head, row, column] from `first` on.
static void copy_keys(double *to, const Tensor *t, int32_t first, int32_t keys) {
    int64_t columns = t->dim[3], heads = t->dim[0] * t->dim[1];
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < keys * columns; i++)
            *to++ = tensor_get(t, (h * t->dim[2] + first) * columns + i);
}

static double **tensors_of(Arena *a, const TileProgram *p, const Binding *b, const int32_t *size,
                           int32_t first) {
    double **x = ARENA_ARRAY(a, double *, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int arg = sig_arg(b->sig, t->name);
        int64_t n = tile_tensor_elements(t, size);
        x[i] = ARENA_ARRAY(a, double, n + 1);
        if (t->role == TENSOR_K || t->role == TENSOR_V)
            copy_keys(x[i], &b->tensor[arg], first, size[SIZE_SK]);
        else if (arg >= 0 && t->rank)
            for (int64_t k = 0; k < n; k++) x[i][k] = tensor_get(&b->tensor[arg], k);
        else if (tile_is_result(p, t))
            for (int64_t k = 0; k < n; k++) x[i][k] = NAN;
    }
    return x;
}

static double *of_role(const TileProgram *p, double **x, TensorRole role, int64_t *n,
                       const int32_t *size) {
    for (int i = 0; i < p->tensors.n; i++)
        if (p->tensors.data[i].role == role)
            return *n = tile_tensor_elements(&p->tensors.data[i], size), x[i];
    return *n = 0, NULL;
}

static void put(const TileProgram *p, double **x, const int32_t *size, TensorRole role, int slot,
                const double *from) {
    int64_t n;
    double *to = of_role(p, x, role, &n, size);
    if (p->phase == PHASE_COMBINE) n /= STATES, to += to ? slot * n : 0;
    if (to && from) memcpy(to, from, sizeof *to * (size_t)n);
}

static bool run(const TileProgram *p, double **x, const int32_t *size, const Binding *b,
                Diags *diags) {
    TileData data = {x, size, b->scalar + sig_operands(b->sig), WORKERS};
    return tile_verify(p, diags) && tile_eval(p, &data, true, diags);
}

double **parts_interpret(Arena *a, const TileProgram *part, const TileProgram *combine,
                         const Binding *b, int parts, Diags *diags) {
    Kept state[STATES] = {{NULL, NULL}};
    int32_t all = b->size[SIZE_SK], step = (all + parts - 1) / parts;
    int64_t n;
    for (int i = 0; i < parts; i++) {
        int32_t first = i * step < all ? i * step : all;
        int32_t *size = sizes_of(a, part, b, first, all - first < step ? all - first : step);
        double **x = tensors_of(a, part, b, size, first);
        Kept *s = &state[i % STATES];
        put(part, x, size, TENSOR_STATE0, 0, s->sums);
        put(part, x, size, TENSOR_ROWS0, 0, s->rows);
        if (!run(part, x, size, b, diags)) return NULL;
        s->sums = of_role(part, x, TENSOR_STATE, &n, size);
        s->rows = of_role(part, x, TENSOR_ROWS, &n, size);
    }
    int32_t *size = sizes_of(a, combine, b, 0, all);
    double **x = tensors_of(a, combine, b, size, 0);
    double **out = ARENA_ARRAY(a, double *, b->sig->args.n);
    for (int i = 0; i < STATES; i++) { // one that no part left is 0
        put(combine, x, size, TENSOR_STATE0, i, state[i].sums);
        put(combine, x, size, TENSOR_ROWS0, i, state[i].rows);
    }
    if (!run(combine, x, size, b, diags)) return NULL;
    for (int i = 0; i < combine->tensors.n; i++)
        if (tile_is_result(combine, &combine->tensors.data[i]))
            out[sig_arg(b->sig, combine->tensors.data[i].name)] = x[i];
    return out;
}
