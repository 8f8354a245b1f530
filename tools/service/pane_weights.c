// pane_weights.c: `attn/weights`: scores and weights of one head, as the float64 reference has them, and softmax of the same scores.
#include "pane_row.h"

#include <math.h>

enum { MOST_PAIRS = 1 << 14 };

typedef struct Matrix { // of the head: Sq x Sk
    int rows, columns;
    const double *scores, *weights;
    const unsigned char *mask;
} Matrix;

static cJSON *numbers(Pane *p, const Matrix *m, const double *x) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < m->rows; i++)
        cJSON_AddItemToArray(all, pane_numbers(p, x + (size_t)i * (size_t)m->columns, m->columns));
    return all;
}

static cJSON *bits(Pane *p, const Matrix *m) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < m->rows; i++)
        cJSON_AddItemToArray(all,
                             pane_bits(p, m->mask + (size_t)i * (size_t)m->columns, m->columns));
    return all;
}

static const double *softmax(Pane *p, const Matrix *m) {
    double *out = ARENA_ARRAY(p->arena, double, m->rows * m->columns + 1);
    for (int i = 0; i < m->rows; i++) {
        const double *s = m->scores + (size_t)i * (size_t)m->columns;
        const unsigned char *in = m->mask + (size_t)i * (size_t)m->columns;
        double *w = out + (size_t)i * (size_t)m->columns, most = -INFINITY, sum = 0;
        for (int j = 0; j < m->columns; j++)
            if (in[j]) most = fmax(most, s[j]);
        for (int j = 0; j < m->columns; j++) sum += w[j] = in[j] ? exp(s[j] - most) : 0;
        for (int j = 0; j < m->columns && sum > 0; j++) w[j] /= sum;
    }
    return out;
}

static cJSON *emits(Pane *p, const PaneRun *r) {
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < p->variant->emits.n; i++) {
        const double *x = r->run.emits[i] + pane_q_row(r, 0);
        cJSON *o = json_pair("name", cJSON_CreateString(p->variant->emits.data[i].name), "values",
                             pane_numbers(p, x, r->b.size[SIZE_SQ]));
        cJSON_AddItemToArray(all, o);
    }
    return all;
}

static cJSON *weights(Pane *p, PaneRun *r) {
    const int32_t *n = r->b.size;
    if ((int64_t)n[SIZE_SQ] * n[SIZE_SK] > MOST_PAIRS)
        return pane_wrong(p, "Sq * Sk is at most %d", MOST_PAIRS);
    size_t pairs = (size_t)n[SIZE_B] * (size_t)n[SIZE_HQ] * (size_t)n[SIZE_SQ] * (size_t)n[SIZE_SK];
    r->run.scores = ARENA_ARRAY(p->arena, double, pairs + 1);
    r->run.weights = ARENA_ARRAY(p->arena, double, pairs + 1);
    r->run.taking_part = arena_alloc(p->arena, pairs + 1);
    pane_evaluate(p, r, 0, n[SIZE_SQ]);
    size_t from = pane_q_row(r, 0) * (size_t)n[SIZE_SK];
    Matrix m = {n[SIZE_SQ], n[SIZE_SK], r->run.scores + from, r->run.weights + from,
                r->run.taking_part + from};
    double *sums = ARENA_ARRAY(p->arena, double, m.rows + 1);
    for (int i = 0; i < m.rows; i++)
        for (int j = 0; j < m.columns; j++) sums[i] += m.weights[i * m.columns + j];
    cJSON *o = json_pair("variant", cJSON_CreateString(p->variant->name), "queries",
                         cJSON_CreateNumber(m.rows));
    cJSON_AddNumberToObject(o, "keys", m.columns);
    if (r->tokens) cJSON_AddItemToObject(o, "tokens", cJSON_Duplicate(r->tokens, true));
    cJSON_AddItemToObject(o, "scores", numbers(p, &m, m.scores));
    cJSON_AddItemToObject(o, "mask", bits(p, &m));
    cJSON_AddItemToObject(o, "weights", numbers(p, &m, m.weights));
    cJSON_AddItemToObject(o, "softmax", numbers(p, &m, softmax(p, &m)));
    cJSON_AddItemToObject(o, "sums", pane_numbers(p, sums, m.rows));
    cJSON_AddItemToObject(o, "emits", emits(p, r));
    cJSON_AddItemToObject(o, "drawn", pane_drawn(p, &r->b, r->read));
    return o;
}

cJSON *pane_weights(Service *s, const cJSON *params) {
    Pane p;
    PaneRun r;
    bool good = pane_open(&p, s, params, PANE_DERIVED) && pane_run(&p, &r, 16);
    return pane_close(&p, good ? weights(&p, &r) : NULL);
}
