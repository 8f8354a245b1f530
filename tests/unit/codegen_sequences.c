// Host kernels of ragged and paged programs, with tensors that end where no memory is, against the float64 reference: no number in
// the tensors that say where rows lie makes a kernel touch anything else. Rows that no sequence has may hold anything.
#include "codegen_util.h"
#include "sequences_util.h"

// Of the pool and of packed rows, what lies outside of all sequences is NaN.
static void spoil(const TileProgram *p, TileData *x, const Launch *l) {
    static const TensorRole roles[] = {TENSOR_K, TENSOR_V};
    int64_t rows = l->batch == BATCH_PAGED ? (int64_t)l->pages * l->page : l->Tk;
    bool live[256] = {false};
    ck_assert_int_le(rows, 256);
    RefBatch batch = batch_of(l);
    for (int b = 0; b < l->B; b++)
        for (int j = 0; j < ref_keys(&batch, b); j++) live[ref_key_row(&batch, b, j)] = true;
    for (int i = 0; i < 2; i++) {
        int t = pu_tensor(p, roles[i], 0);
        int64_t n = t < 0 ? 0 : tile_tensor_elements(&p->tensors.data[t], x->size);
        for (int64_t e = 0; e < n; e++)
            if (!live[e / (n / rows)]) x->tensor[t][e] = (double)NAN;
    }
}

static void check_host(const char *path, const char *text, int which) {
    Launch all[LAUNCHES];
    ck_assert_int_eq(launches(all), LAUNCHES);
    Arena *a = arena_new();
    Variant *v;
    Stream *s = pu_stream(a, text ? "t.attn" : path, text, text ? 0 : 8, &v);
    const Launch *l = &all[which];
    for (int how = 0; how < 2 && has_layout(a, s, l->batch); how++) {
        PassOptions o = {.dtype = DT_F32, .batch = l->batch, .split = !how};
        Diags diags = diag_list(a);
        o.page = l->batch == BATCH_PAGED && how ? l->page : 0;
        ck_assert(cu_target(how ? 8 : 16, &o.target) || cu_target(8, &o.target));
        TileProgram *p = pass_program(a, s, &o, NULL, &diags);
        ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
        TileData *x = data_of(a, p, l);
        spoil(p, x, l);
        TileData *y = expected(a, v, p, x, l);
        cu_run(a, p, x, o.target.lanes, how % 2);
        double d = tile_data_distance(p, x, p, y);
        ck_assert_msg(d < 1e-4, "%s, launch %d, way %d: %g apart", s->row->name, which, how, d);
    }
    arena_free(a);
}

TEST_EACH(host_kernels, 0, TEXTS *LAUNCHES) {
    check_host(NULL, texts[_i / LAUNCHES], _i % LAUNCHES);
}

static void check_file(const char *path, int launch) { check_host(path, NULL, launch); }

TEST_EACH(library, 5, 6) { pu_library(check_file, _i); }
