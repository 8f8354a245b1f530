// nan.c: see nan.h. NaNs with all bits set, which rounding to bf16 by an addition would carry into
// another number, in a bias: of one row for all keys, of another for one key. Those rows come out as
// NaN and the others as if there were none, for weights that are divided by their sum, whose NaN may
// be lost on the way (ir/tile_unguarded.h), and for weights that are not.
#include "tests/gcn/nan.h"
#include "tests/gcn/subject.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE = 3, ONE = 5, KEY = 40 }; // the rows; the key that the second one has it from

static const char text[] = "import std.normalization;\n"
                           "attention biased {\n"
                           "    dim D = 32;\n"
                           "    input row: f32[Sq];\n"
                           "    input key: f32[Sk];\n"
                           "    score(q, k) = dot(q, k) * 0.2;\n"
                           "    modify(s, b, h, q, k) = s + (q == 5 ? key[k] : row[q]);\n"
                           "    normalize(s) = %s;\n"
                           "}\n";
static const char *const normalizations[] = {"softmax(s)", "s * 0.1"};

static Tensor *named(Trial *t, const char *name) {
    for (int i = 0; i < t->b.sig->args.n; i++)
        if (strcmp(t->b.sig->args.data[i].name, name) == 0) return &t->b.tensor[i];
    return NULL;
}

static void put_nan(Tensor *x, int at) {
    if (x) memset((char *)x->data + 4 * at, 0xff, 4);
}

// Which rows are as they should be; NULL: all.
static const char *wrong_rows(Trial *t) {
    Tensor *o = named(t, "o");
    int rows = t->b.size[SIZE_SQ];
    int64_t each = o->count / rows;
    double *x = tensor_doubles(o), *want = t->x.out[o - t->b.tensor];
    const char *why = NULL;
    for (int64_t i = 0; i < o->count && !why; i++) {
        int64_t row = i / each;
        if (row == WHOLE || row == ONE)
            why = isnan(x[i]) ? NULL : "a NaN has been lost";
        else if (!(fabs(x[i] - want[i]) <= 0.05 * (1 + fabs(want[i]))))
            why = "a row without NaN is not as it should be";
    }
    free(x);
    return why;
}

static void check(TargetId target, const char *normalization, int *passed, int *failed) {
    char source[sizeof text + 64];
    int n = snprintf(source, sizeof source, text, normalization);
    CompileOptions o = {.source = {.path = "biased.attn", .text = source, .text_bytes = (size_t)n},
                        .target = target,
                        .dtype = DT_BF16,
                        .level = 2};
    Subject s;
    Trial t = {0};
    Report r = {OUTCOME_REFUSED, "it does not compile, or its inputs cannot be made"};
    if (subject_open(&s, &o, stdout) && subject_load(&s, NULL, &r) &&
        trial_open(&t, &s, "B=1,H=1,Sq=20,Sk=70", "0")) {
        put_nan(named(&t, "row"), WHOLE);
        put_nan(named(&t, "key"), KEY);
        r = trial_run(&t, &s, 7);
        const char *why = r.outcome < OUTCOME_FAULT ? wrong_rows(&t) : r.text;
        r.outcome = why ? OUTCOME_WRONG : OUTCOME_RIGHT;
        if (why != r.text && why) snprintf(r.text, sizeof r.text, "%s", why);
    }
    bool good = r.outcome == OUTCOME_RIGHT;
    if (!good) printf("FAILED: %s, NaN, %s: %s\n", cg_target(target).name, normalization, r.text);
    *(good ? passed : failed) += 1;
    trial_close(&t);
    subject_close(&s);
}

void nan_check(int target, int *passed, int *failed) {
    static const TargetId targets[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            if (target < 0 || targets[i] == (TargetId)target)
                check(targets[i], normalizations[k], passed, failed);
}
