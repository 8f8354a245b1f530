// shape.c: where the elements of a tile lie: registers of a fragment, bytes of LDS.
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

void am_prepare(Cg *cg) {
    AmState *s = am_state(cg);
    const TileKernel *k = cg->k;
    s->crowded = k->schedule.crowded;
    s->wave = cg->target->lanes;
    s->wmma = s->wave == 32;
    s->rows = tile_has_lanes(k) ? s->wave : k->schedule.matrix_rows;
    s->parts = s->wave / s->rows;
    s->gpu.threads = k->schedule.warps * s->wave;
    assert(s->gpu.threads > 0 && "scheduled for this target");
}

// ---- fragments

// What products take of WMMA has all columns of a row in each of its lanes: twice as many registers.
static int each_of(Cg *cg, const CgFragment *f) {
    return am_state(cg)->wmma && f->each == 2 ? 2 : 1;
}

int am_elements(Cg *cg, const CgFragment *f) { return cg_share(f, f->columns) / each_of(cg, f); }

int am_row(Cg *cg, int m) { return am_state(cg)->rows * m; }

int am_column(Cg *cg, const CgFragment *f, int e) {
    if (f->columns < 0) return 0;
    return layout_part(&f->is, LAYOUT_REG, f->columns, e * each_of(cg, f));
}

int am_register(Cg *cg, const CgFragment *f, int m, int e) {
    return cg_register(f, am_row(cg, m), am_column(cg, f, e));
}

int am_pair(Cg *cg, const CgFragment *f) { return f->each / each_of(cg, f); }

// The first digit of columns is all that lie side by side.
int am_unit(const CgFragment *f) { return f->is.digit[0].step == 1 ? f->is.digit[0].count : 1; }

// ---- LDS

Val am_lds(Cg *cg, Val offset) {
    return LLVMBuildInBoundsGEP2(cg->b, cg->i8, am_state(cg)->lds, &offset, 1, "");
}

// Bit 2 of a row; bits 1 and 3; bits 0 and 4: different for any eight rows that follow each other,
// and for eight that are four apart. Of what has no bits in common the keys are combined by xor.
static Val row_key(Cg *cg, Val row) {
    LLVMBuilderRef b = cg->b;
    Val bit[5];
    for (int i = 0; i < 5; i++)
        bit[i] = LLVMBuildAnd(b, LLVMBuildLShr(b, row, cg_i32(cg, i), ""), cg_i32(cg, 1), "");
    Val mid = LLVMBuildShl(b, LLVMBuildXor(b, bit[1], bit[3], ""), cg_i32(cg, 1), "");
    Val high = LLVMBuildShl(b, LLVMBuildXor(b, bit[0], bit[4], ""), cg_i32(cg, 2), "");
    return LLVMBuildOr(b, LLVMBuildOr(b, bit[2], mid, ""), high, "");
}

static int known_key(int r) {
    return (r >> 2 & 1) | ((r >> 1 ^ r >> 3) & 1) << 1 | ((r ^ r >> 4) & 1) << 2;
}

// Rows of fewer than eight chunks share a line of 128 bytes: bits 1 and 0 of the key then say which
// part of it is whose. What is known is added last, where it costs nothing.
Val am_chunk(Cg *cg, const TileShared *t, AmPlace row, AmPlace chunk) {
    int lines = t->pitch < 128 ? ~127 : ~0, pitch = t->pitch;
    Val line = cg_and(cg, cg_times(cg, row.at, pitch), cg_i32(cg, lines));
    Val high = cg_and(cg, chunk.at, cg_i32(cg, ~7));
    Val slot = cg_and(cg, chunk.at, cg_i32(cg, 7));
    slot = cg_xor(cg, slot, row_key(cg, row.at));
    int other = (chunk.more ^ known_key(row.more)) & 7;
    if (other) slot = cg_xor(cg, slot, cg_i32(cg, other));
    Val at = cg_add(cg, line, cg_times(cg, cg_or(cg, slot, high), HOME_PIECE));
    return cg_plus(cg, at, (row.more * pitch & lines) + (chunk.more & ~7) * HOME_PIECE);
}

// Columns 4 G s + 4 p + j of a block of 8 G are in chunk p, half s.
static Val paired_position(Cg *cg, Val col) {
    int parts = am_state(cg)->parts;
    LLVMBuilderRef b = cg->b;
    Val block = LLVMBuildAnd(b, col, cg_i32(cg, ~(8 * parts - 1)), "");
    Val half = LLVMBuildUDiv(b, LLVMBuildAnd(b, col, cg_i32(cg, 8 * parts - 1), ""),
                             cg_i32(cg, 4 * parts), "");
    Val part = LLVMBuildAnd(b, LLVMBuildLShr(b, col, cg_i32(cg, 2), ""), cg_i32(cg, parts - 1), "");
    Val in = LLVMBuildAnd(b, col, cg_i32(cg, 3), "");
    Val at = LLVMBuildAdd(b, block, cg_times(cg, part, 8), "");
    return LLVMBuildAdd(b, LLVMBuildAdd(b, at, cg_times(cg, half, 4), ""), in, "");
}

Val am_tile_offset(Cg *cg, const TileShared *t, Val outer, Val inner) {
    if (t->col_axis < 0) return cg_i32(cg, 0);
    if (t->row_axis < 0) return cg_times(cg, inner, t->elem);
    Val at = cg_times(cg, t->paired ? paired_position(cg, inner) : inner, t->elem);
    Val chunk = cg_lshr(cg, at, cg_i32(cg, 4));
    Val in = cg_and(cg, at, cg_i32(cg, 15));
    return cg_add(cg, am_chunk(cg, t, (AmPlace){outer, 0}, (AmPlace){chunk, 0}), in);
}

// ---- elements

Val am_held(Cg *cg, const TileValue *v, int i) {
    const CgValue *value = &cg->value[v->id];
    int each = cg_lanes(value->e[0]);
    return each == 1 ? value->e[i] : am_at(cg, value->e[i / each], i % each);
}

Val am_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    if (v->home == HOME_SHARED) return cg_shared_element(cg, v, layout, part);
    const CgFragment *f = cg_fragment(cg, v);
    Val x = am_held(cg, v, cg_slot(f, part));
    if (f->each == 1) return x;
    if (am_state(cg)->wmma) return am_unpack_part(cg, v->dtype, x);
    return am_unpack(cg, v->dtype, x, layout_number(&f->is, LAYOUT_REG, part) % 2);
}
