// bounds.c: which elements of a row lie between two bounds, one bit each.
//
// In: an element of a map, and the least and the greatest offset along its columns that are in, the same for its row. Out: i1, a bit of
// a word that is made once for 32 elements of the row: the assembler brings seven bits to predicates with one instruction.
// A thread has two columns side by side of each eight, as fragments of matrix instructions have them.
#include "codegen/nvptx/sm90.h"

enum { BLOCK = 8, EACH = 2, BITS = 32, SPAN = BITS / EACH * BLOCK }; // columns that a word spans
// Elements of a row: a bound takes some nine instructions, and each element one less.
enum { WORTH = 16 };

static int bit_of(int column) { return column / BLOCK * EACH + column % BLOCK; }

static bool has_words(const CgSpace *s) {
    int last = 0;
    for (int r = 0; r < s->n; r++) {
        int column = layout_part(&s->is, LAYOUT_REG, s->columns, r);
        if (column % BLOCK >= EACH) return false;
        if (column > last) last = column;
    }
    return bit_of(last) + 1 >= WORTH;
}

// Words live as long as the row does. A backward of 64 columns has no registers for them: 48 bytes spilled otherwise.
static bool has_registers(const TileKernel *k) {
    return k->purpose == PURPOSE_ATTENTION || k->purpose == PURPOSE_PART;
}

static Val clamp(Cg *cg, Val v, int low, int high) {
    Val most[] = {v, cg_i32(cg, high)}, least[] = {NULL, cg_i32(cg, low)};
    least[0] = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, most, 2);
    return cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, least, 2);
}

// Ones for the columns of a word behind `last`, which is -1 or one of them. A shift by 32 leaves 0.
static Val behind(Cg *cg, Val last) {
    Val blocks = LLVMBuildAShr(cg->b, last, cg_i32(cg, 3), "");
    Val in[] = {cg_and(cg, last, cg_i32(cg, BLOCK - 1)), cg_i32(cg, EACH - 1)};
    Val more = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, in, 2);
    Val n = cg_plus(cg, cg_add(cg, cg_times(cg, blocks, EACH), more), 1);
    return cg_asm(cg, cg->i32, &n, 1, "shl.b32 $0, -1, $1;", "=r,r", false);
}

static Val word_of(Cg *cg, Val low, Val high, int first) {
    Val in = cg_i32(cg, -1);
    if (low) in = behind(cg, cg_plus(cg, clamp(cg, low, first, first + SPAN), -first - 1));
    if (!high) return in;
    Val out = behind(cg, cg_plus(cg, clamp(cg, high, first - 1, first + SPAN - 1), -first));
    return cg_and(cg, in, cg_not(cg, out));
}

Val nv_between(Cg *cg, CgElem *at, const Ex *e, int offset, Val low, Val high, Val when) {
    const CgWalk *m = at->ctx;
    const CgSpace *s = &m->space;
    NvMap *own = m->own;
    if (!own->asked) own->asked = true, own->in_words = has_words(s) && has_registers(cg->k);
    if (!own->in_words) return NULL;
    NvBounds b = {e, s->rows < 0 ? 0 : s->part[s->rows], offset / SPAN, NULL};
    for (int i = own->bounds.n - 1; i >= 0 && !b.bits; i--) {
        const NvBounds *had = &own->bounds.data[i];
        if (had->of == e && had->row == b.row && had->word == b.word) b.bits = had->bits;
    }
    if (!b.bits) {
        b.bits = word_of(cg, low, high, b.word * SPAN);
        if (when) b.bits = cg_select(cg, when, b.bits, cg_i32(cg, 0));
        VEC_PUSH(cg->arena, &own->bounds, b);
    }
    Val bit = cg_i32(cg, (int64_t)(int32_t)(1u << bit_of(offset % SPAN)));
    return cg_icmp(cg, LLVMIntNE, cg_and(cg, b.bits, bit), cg_i32(cg, 0));
}
