// Tiles that come again: what the interpreter makes of `again`, which is run when, and what the
// verifier refuses. tests/tile/kept.tile is the schedule: full tiles keep the shift that they find.
#include "ir/tile_eval.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const char again[] = "again %bound over 2";

static char *read_tile(Arena *a, const char *name) {
    FILE *f = fopen(arena_printf(a, "tests/tile/%s.tile", name), "rb");
    ck_assert_msg(f != NULL, "%s: cannot be opened", name);
    char *s = arena_alloc(a, 1 << 16);
    s[fread(s, 1, (1 << 16) - 1, f)] = 0;
    fclose(f);
    return s;
}

// With every `old` replaced.
static const char *with(Arena *a, const char *text, const char *old, const char *new) {
    const char *at;
    Text t;
    text_init(&t, a);
    ck_assert_msg(strstr(text, old) != NULL, "'%s' is not in the text", old);
    for (; (at = strstr(text, old)); text = at + strlen(old))
        text_printf(&t, "%.*s%s", (int)(at - text), text, new);
    text_puts(&t, text);
    return t.s;
}

static TileProgram *parse(Arena *a, const char *text, Diags *diags) {
    diag_init(diags, a);
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
// masked: where it has none, its shift is no number, and the tile comes again for that.
enum { HEADS = 2, QUERIES = 7, KEYS = 19, COLUMNS = 5 };

// One head's queries `from` to `to` find the first key, which is in a full tile, much better than
// those that they have seen before: by more than f32's exponents have room for.
static void run(Arena *a, Run *r, const char *text, int head, int from, int to) {
    int32_t z[SIZE_FREE] = {0};
    z[SIZE_B] = z[SIZE_HKV] = 1;
    z[SIZE_HQ] = HEADS;
    z[SIZE_SQ] = QUERIES;
    z[SIZE_SK] = KEYS;
    z[SIZE_Q_OFFSET] = KEYS - QUERIES;
    r->p = parse(a, text, &r->diags);
    r->d = tile_data_random(a, r->p, z, 3, 1);
    double *q = tensor(r->p, r->d, "q"), *k = tensor(r->p, r->d, "k");
    for (int i = 0; i < HEADS * QUERIES * COLUMNS; i++) {
        int row = i / COLUMNS;
        bool large = row / QUERIES == head && row % QUERIES >= from && row % QUERIES < to;
        q[i] = large ? 1 : 0;
    }
    for (int i = 0; i < KEYS * COLUMNS; i++) k[i] = i < COLUMNS ? 100 : 0;
    tile_eval(r->p, r->d, true, &r->diags);
}

static void check_ran(const Run *r) {
    ck_assert_msg(!r->diags.errors, "%s", r->diags.first ? r->diags.first->message : "");
}

START_TEST(what_grows_too_large_comes_again) {
    Arena *a = arena_new();
    Run plain, kept, once;
    const char *text = read_tile(a, "kept");
    run(a, &plain, read_tile(a, "roles"), 1, 0, QUERIES);
    run(a, &kept, text, 1, 0, QUERIES);
    run(a, &once, with(a, text, again, ""), 1, 0, QUERIES);
    check_ran(&plain);
    check_ran(&kept);
    check_ran(&once);
    ck_assert(tile_data_distance(plain.p, plain.d, kept.p, kept.d) < 1e-2);
    ck_assert(isinf(tile_data_distance(plain.p, plain.d, once.p, once.d)));
    run(a, &kept, with(a, text, again, "again %bound over 48"), 1, 0, QUERIES);
    check_ran(&kept);
    ck_assert(tile_data_distance(plain.p, plain.d, kept.p, kept.d) < 1e-2);
    arena_free(a);
}
END_TEST

// The text that tells of the tiles that come again only.
static const char *telling(Arena *a, const char *text) {
    const char *all = with(a, text, again, "again %bound over 48");
    return with(a, all, "= %lse\n", "= %lse when again\n");
}

static void check_told(const Run *r, int head, int from, int to) {
    const double *lse = tensor(r->p, r->d, "lse");
    check_ran(r);
    for (int i = 0; i < HEADS * QUERIES; i++) {
        bool in = (head < 0 || i / QUERIES == head) && i % QUERIES >= from && i % QUERIES < to;
        ck_assert_msg(isnan(lse[i]) != in, "row %d of head %d: %g", i % QUERIES, i / QUERIES,
                      lse[i]);
    }
}

START_TEST(other_tiles_do_not) {
    Arena *a = arena_new();
    Run r;
    const char *text = telling(a, read_tile(a, "kept"));
    run(a, &r, text, 1, 2, 3); // one row of the first tile
    check_told(&r, 1, 0, 4);
    run(a, &r, text, 0, 5, 6);
    check_told(&r, 0, 4, QUERIES);
    run(a, &r, text, 0, 0, 0);
    check_told(&r, 0, 0, 0);
    arena_free(a);
}
END_TEST

START_TEST(a_cluster_does_so_together) {
    Arena *a = arena_new();
    Run r;
    const char *text = telling(a, read_tile(a, "kept"));
    text = with(a, text, "axis M: Sq tile 4", "axis M: Sq tile 16");
    text = with(a, text, "(M.tile * 4)", "(M.tile * 16)");
    text = with(a, text, "(M.tile * 16) + 4)", "(M.tile * 16) + 16)");
    text = with(a, text, "((Sq + 3) / 4)", "((Sq + 15) / 16)");
    text = with(a, text, "warps 8", "warps 1");
    run(a, &r, text, 1, 5, 6);
    check_told(&r, 1, 0, QUERIES);
    run(a, &r, with(a, text, "section 16", "section 16 cluster 2 rows 1"), 1, 5, 6);
    check_told(&r, -1, 0, QUERIES);
    arena_free(a);
}
END_TEST

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

static TileOp *first_of(const TileBlock *b, TileKind kind) {
    TileOp *op = tile_next(b, NULL);
    while (op && op->kind != kind) op = tile_next(b, op);
    return op;
}

START_TEST(it_is_asked_before_the_next_tile) {
    Arena *a = arena_new();
    Diags diags;
    TileProgram *p = parse(a, read_tile(a, "kept"), &diags);
    TileOp *op = first_of(&p->kernels.data[0]->body, TILE_AGAIN);
    TileBlock *tiles = op->block;
    tile_unlink(op);
    tile_insert_before(tiles->last, op);
    ck_assert(!tile_verify(p, &diags));
    ck_assert_ptr_nonnull(strstr(diags.first->message, "elsewhere than in 'tiles' before its"));
    arena_free(a);
}
END_TEST

static const char *const kept_text =
    "program p algorithm target host dtype f32 dims D=4 Dv=4\n"
    "tensor q: f32[B, H, Sq, 4] query\n"
    "tensor o: f32[B, H, Sq, 4] output\n"
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

START_TEST(kept_is_of_algorithms) {
    Arena *a = arena_new();
    Diags diags;
    Text t;
    TileProgram *p = parse(a, kept_text, &diags);
    text_init(&t, a);
    tile_print(&t, p);
    ck_assert_str_eq(t.s, kept_text);
    int32_t z[SIZE_FREE] = {1, 1, 1, 3, 2, 0};
    TileData *d = tile_data_random(a, p, z, 4, 7);
    ck_assert(tile_eval(p, d, false, &diags));
    ck_assert(d->tensor[1][1] == 3 * d->tensor[0][1]); // it is false
    check_refused(a, with(a, kept_text, "to Sk", "to Sk class full"), "in a loop over tiles of a");
    check_refused(a, with(a, kept_text, "to Sk", "to Sk class partial"), "in a loop over tiles of");
    check_refused(a, with(a, kept_text, "algorithm", "scheduled"), "scheduled program has decided");
    check_refused(a, with(a, kept_text, "to Sk", "to select(kept, 0, Sk)"), "may not use 'kept'");
    check_refused(a, with(a, kept_text, "kept", "again"), "may not use 'again'");
    check_refused(a, with(a, kept_text, "to Sk", "to select(again, 0, Sk)"), "not use 'again'");
    arena_free(a);
}
END_TEST

// Before the schedule it says what will be asked, and changes nothing.
START_TEST(algorithms_say_what_to_ask) {
    Arena *a = arena_new();
    Diags diags;
    const char *row = "    %l: f32[M] = map [M, D] (%x9) { rowsum over D of (1e30 * abs(%x9)) }\n"
                      "    again %l over 48\n    store",
               *text = with(a, kept_text, "    store", row);
    TileProgram *p = parse(a, text, &diags);
    int32_t z[SIZE_FREE] = {1, 1, 1, 3, 2, 0};
    TileData *d = tile_data_random(a, p, z, 4, 7);
    ck_assert(tile_eval(p, d, false, &diags));
    ck_assert(d->tensor[1][1] == 3 * d->tensor[0][1]);
    check_refused(a, with(a, text, "algorithm", "scheduled"), "scheduled program has decided");
    text = with(a, text, "select(kept, %x, (%x + %q))", "%x");
    ck_assert_ptr_null(refused(a, text));
    check_refused(a, with(a, text, "algorithm", "scheduled"), "it stands elsewhere");
    check_refused(a, with(a, text, "over 48", "over 48 again %l over 48"), "asks twice");
    arena_free(a);
}
END_TEST

// What is appended would be there twice.
START_TEST(lists_are_made_once) {
    Arena *a = arena_new();
    const char *list = "tensor list: i32[B, H, ((Sq + 1) / 2), 4] work 0\nplan",
               *append = "    %i: i32[D], %c: bool[D] = map [D] () { D.pos; (D.pos < 2) }\n"
                         "    %n: i32[] = map [] () { 0 }\n"
                         "    %n1: i32[] = append %i when %c after %n -> list[b, h, M.tile, %n]\n"
                         "    store",
               *row = "    %l: f32[M] = map [M, D] (%x9) { rowsum over D of %x9 }\n"
                      "    again %l over 48\n    store";
    const char *text = with(a, with(a, kept_text, "plan", list), "    store", append);
    ck_assert_ptr_null(refused(a, text));
    check_refused(a, with(a, text, "    store", row), "may come again that appends to a list");
    arena_free(a);
}
END_TEST

// An input of that name is not the symbol.
START_TEST(inputs_may_be_called_so) {
    Arena *a = arena_new();
    Diags diags;
    Text t;
    const char *text = with(a, kept_text, "output\n", "output\ntensor kept: f32[] input 0\n");
    text = with(a, text, "select(kept, %x, (%x + %q))", "(%x + @kept)");
    text_init(&t, a);
    tile_print(&t, parse(a, text, &diags));
    ck_assert_str_eq(t.s, text);
    arena_free(a);
}
END_TEST

Suite *tile_again_suite(void);
Suite *tile_again_suite(void) {
    Suite *s = suite_create("tile_again");
    TCase *t = tcase_create("again");
    tcase_add_test(t, what_grows_too_large_comes_again);
    tcase_add_test(t, other_tiles_do_not);
    tcase_add_test(t, a_cluster_does_so_together);
    tcase_add_test(t, it_is_asked_before_the_next_tile);
    tcase_add_test(t, kept_is_of_algorithms);
    tcase_add_test(t, algorithms_say_what_to_ask);
    tcase_add_test(t, lists_are_made_once);
    tcase_add_test(t, inputs_may_be_called_so);
    suite_add_tcase(s, t);
    return s;
}
