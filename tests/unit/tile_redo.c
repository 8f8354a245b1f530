// Steps that are done again: what the interpreter makes of `redo`, in which rows, and what the verifier
// refuses. tests/tile/redo.tile is the schedule: full tiles keep the shift that they find.
#include "tests/support/random.h"
#include "tests/unit/tile_util.h"

static TileProgram *parse(Arena *a, const char *text, Diags *diags) {
    *diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, strlen(text), diags);
    ck_assert_msg(p != NULL, "%s", diags->first ? diags->first->message : "");
    return p;
}

static double *tensor(const TileProgram *p, const TileData *d, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return d->tensor[i];
    ck_abort_msg("no tensor %s", name);
}

// ---- runs

typedef struct Run {
    TileProgram *p;
    TileData *d;
    Diags diags;
} Run;

// Of 7 queries and 19 keys the first query of each tile of 4 has one in the tile of 3 keys that is
// masked: where it has none, its shift is no number, and the step is done again for that.
enum { HEADS = 2, QUERIES = 7, KEYS = 19, COLUMNS = 5 };

static void drop_redo(TileProgram *p) {
    TileBlock *b = &p->kernels.data[0]->body;
    for (TileOp *op; (op = tu_first(b, TILE_REDO)); tile_unlink(op))
        for (int i = 0; i < op->results.n; i++)
            tile_replace(b, op->results.data[i], op->args.data[i + 1]);
}

// One head's queries `from` to `to` find the first key, which is in a full tile, much better than
// those that they have seen before: by more than f32's exponents have room for.
static void run(Arena *a, Run *r, const char *text, bool redoes, int head, int from, int to) {
    int32_t z[SIZE_FREE] = {0};
    z[SIZE_B] = z[SIZE_HKV] = 1;
    z[SIZE_HQ] = HEADS;
    z[SIZE_SQ] = QUERIES;
    z[SIZE_SK] = KEYS;
    z[SIZE_Q_OFFSET] = KEYS - QUERIES;
    r->p = parse(a, text, &r->diags);
    if (!redoes) drop_redo(r->p);
    r->d = tile_data_random(a, r->p, z, 3, 1);
    double *q = tensor(r->p, r->d, "q"), *k = tensor(r->p, r->d, "k");
    for (int i = 0; i < HEADS * QUERIES * COLUMNS; i++) {
        int row = i / COLUMNS;
        bool large = row / QUERIES == head && row % QUERIES >= from && row % QUERIES < to;
        q[i] = large ? 1 : 0;
    }
    for (int i = 0; i < KEYS * COLUMNS; i++) k[i] = i < COLUMNS ? 100 : 0;
    tile_eval(r->p, r->d, true, &r->diags);
    ck_assert_msg(!r->diags.errors, "%s", r->diags.first ? r->diags.first->message : "");
}

ARENA_TEST(what_is_too_large_is_done_again) {
    Run plain, redone, once;
    const char *text = tu_tile(a, "redo"), *wide = tu_with(a, text, "over 2, ", "over 92, ");
    run(a, &plain, tu_tile(a, "roles"), true, 1, 0, QUERIES);
    run(a, &redone, text, true, 1, 0, QUERIES);
    ck_assert(tile_data_distance(plain.p, plain.d, redone.p, redone.d) < 1e-2);
    run(a, &redone, wide, true, 1, 0, QUERIES);
    ck_assert(tile_data_distance(plain.p, plain.d, redone.p, redone.d) < 1e-2);
    run(a, &once, wide, false, 1, 0, QUERIES);
    ck_assert(isinf(tile_data_distance(plain.p, plain.d, once.p, once.d)));
}

// Others keep what stands, to the last bit.
ARENA_TEST(in_the_rows_that_need_it) {
    Run redone, once;
    const char *text = tu_with(a, tu_tile(a, "redo"), "over 2, ", "over 92, ");
    run(a, &redone, text, true, 0, 5, 6);
    run(a, &once, text, false, 0, 5, 6);
    const double *x = tensor(redone.p, redone.d, "lse"), *y = tensor(once.p, once.d, "lse");
    for (int i = 0; i < HEADS * QUERIES; i++) {
        bool same = x[i] == y[i] || (isnan(x[i]) && isnan(y[i]));
        ck_assert_msg(same == (i != 5), "row %d: %g, %g", i, x[i], y[i]);
    }
}

// ---- where the words may stand

static const char *refused(Arena *a, const char *text) {
    Diags diags;
    TileProgram *p = parse(a, text, &diags);
    return tile_verify(p, &diags) ? NULL : diags.first->message;
}

static void check_refused(Arena *a, const char *text, const char *said) {
    const char *message = refused(a, text);
    ck_assert_msg(message && strstr(message, said), "'%s', not '%s'", message ? message : "", said);
}

static const char *const kept_text =
    "program p algorithm target host dtype f32 dims D=4 Dv=4\n"
    "tensor q: f32[B, H, Sq, 4] q\n"
    "tensor o: f32[B, H, Sq, 4] o\n"
    "plan fwd\n"
    "\n"
    "kernel fwd\n"
    "  axis M: Sq tile 2\n"
    "  axis N: Sk tile 2\n"
    "  axis D: 4 whole tile 4\n"
    "  grid b: B\n"
    "  grid h: H\n"
    "  grid M: ((Sq + 1) / 2)\n"
    "  mask true\n"
    "  {\n"
    "    %q: f32[M, D] = load q[b, h, M:, D:]\n"
    "    %x9: f32[M, D] = loop N from 0 to Sk carry (%x: f32[M, D] = %q) {\n"
    "      %x1: f32[M, D] = map [M, D] (%x, %q) { select(kept, %x, (%x + %q)) }\n"
    "      yield %x1\n"
    "    }\n"
    "    store o[b, h, M:, D:] = %x9\n"
    "  }\n";

ARENA_TEST(kept_is_of_algorithms) {
    Diags diags;
    TileProgram *p = parse(a, kept_text, &diags);
    const char *t = tu_printed(a, p);
    ck_assert_str_eq(t, kept_text);
    int32_t z[SIZE_FREE] = {1, 1, 1, 3, 2, 0};
    TileData *d = tile_data_random(a, p, z, 4, 7);
    ck_assert(tile_eval(p, d, false, &diags));
    ck_assert(d->tensor[1][1] == 3 * d->tensor[0][1]); // it is false
    check_refused(a, tu_with(a, kept_text, "to Sk", "to Sk class full"),
                  "in a loop over tiles of a");
    check_refused(a, tu_with(a, kept_text, "to Sk", "to Sk class partial"),
                  "in a loop over tiles of");
    check_refused(a, tu_with(a, kept_text, "algorithm", "scheduled"),
                  "scheduled program has decided");
    check_refused(a, tu_with(a, kept_text, "to Sk", "to select(kept, 0, Sk)"),
                  "may not use 'kept'");
}

// It says what will be asked, and changes nothing.
ARENA_TEST(bound_is_of_algorithms) {
    Diags diags;
    const char *carried = tu_with(a, kept_text, "carry (%x: f32[M, D] = %q)",
                                  "carry (%x: f32[M, D] = %q, %l: f32[M] = %l0)");
    carried = tu_with(a, carried, "yield %x1", "yield %x1, %l");
    carried = tu_with(a, carried, "%x9: f32[M, D] = loop", "%x9: f32[M, D], %l9: f32[M] = loop");
    carried = tu_with(a, carried, "    %x9", "    %l0: f32[M] = map [M] () { 1e+30 }\n    %x9");
    const char *text = tu_with(a, carried, "    store", "    bound %l9 over 48\n    store");
    TileProgram *p = parse(a, text, &diags);
    const char *t = tu_printed(a, p);
    ck_assert_str_eq(t, text);
    int32_t z[SIZE_FREE] = {1, 1, 1, 3, 2, 0};
    TileData *d = tile_data_random(a, p, z, 4, 7);
    ck_assert(tile_eval(p, d, false, &diags));
    ck_assert(d->tensor[1][1] == 3 * d->tensor[0][1]);
    check_refused(a, tu_with(a, text, "over 48", "over 48 bound %l9 over 48"), "says twice");
    check_refused(a, tu_with(a, text, "bound %l9", "bound %l0"), "%l0 is not what a loop carries");
    check_refused(a, tu_with(a, text, "bound %l9", "bound %x9"), "%x9 is not an f32 for each row");
    check_refused(a, tu_with(a, carried, "yield", "bound %l over 48 yield"),
                  "elsewhere than behind");
    text = tu_with(a, text, "select(kept, %x, (%x + %q))", "%x");
    ck_assert_ptr_null(refused(a, text));
    check_refused(a, tu_with(a, text, "algorithm", "scheduled"), "elsewhere than behind");
}

ARENA_TEST(redo_is_of_roles) {
    const char *redo = "    %l: f32[M] = map [M] () { 1.0 }\n"
                       "    %l1: f32[M] in fragment = redo %l over 48 else (%l) { yield %l }\n"
                       "    store";
    check_refused(a, tu_with(a, kept_text, "    store", redo), "it stands outside roles");
}

// An input of that name is not the symbol.
ARENA_TEST(inputs_may_be_called_so) {
    Diags diags;
    const char *text = tu_with(a, kept_text, "] o\n", "] o\ntensor kept: f32[] input 0\n");
    text = tu_with(a, text, "select(kept, %x, (%x + %q))", "(%x + @kept)");
    const char *t = tu_printed(a, parse(a, text, &diags));
    ck_assert_str_eq(t, text);
}
