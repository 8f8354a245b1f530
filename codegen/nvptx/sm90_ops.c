// sm90_ops.c: the instructions of sm_90a, most of which LLVM has no intrinsic for: barriers in
// shared memory, tensor copies, products of a warpgroup.
//
// In: scalars. Out: a value at the builder's place. Nothing here knows the tile IR. Whatever
// touches memory or must be run by all threads of a warp together is volatile and convergent.
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <stdarg.h>

static void statement(Cg *cg, const char *text, const char *constraints, Val *v, int n) {
    cg_asm(cg, cg->void_, v, n, text, constraints, true);
}

// Of values in registers of 32 bits.
enum { MOST = 6 };
static void say(Cg *cg, const char *text, int n, ...) {
    Val v[MOST];
    va_list list;
    assert(n <= MOST);
    va_start(list, n);
    for (int i = 0; i < n; i++) v[i] = va_arg(list, Val);
    va_end(list);
    statement(cg, text, &"r,r,r,r,r,r,~{memory}"[2 * (MOST - n)], v, n);
}

// An address in shared memory that is made of another and a constant, which an instruction adds for nothing: *address becomes the other one.
static int64_t constant_part(Val *address) {
    Val sum = LLVMIsAInstruction(*address);
    if (!sum || LLVMGetInstructionOpcode(sum) != LLVMAdd) return 0;
    Val by = LLVMGetOperand(sum, 1);
    if (!LLVMIsAConstantInt(by)) return 0;
    *address = LLVMGetOperand(sum, 0);
    return LLVMConstIntGetSExtValue(by);
}

// `text` of an operation at a barrier, whose address it has as [$0+%d].
static const char *at_barrier(Cg *cg, const char *text, Val *barrier) {
    return arena_printf(cg->arena, text, (int)constant_part(barrier));
}

#define WHERE(k, text) "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $" #k ", 0;\n\t@p " text ";\n\t}"
#define TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#define WAITED(text)                                                                               \
    "{\n\t.reg .pred p;\nWAIT:\n\t" text " p, [$0+%d], $1;\n\t@p bra DONE;\n\tbra "                \
    "WAIT;\nDONE:\n\t}"

Val nv90_if(Cg *cg, Val condition) { return cg_zext(cg, condition, cg->i32); }

// ---- barriers

void nv90_barrier_init(Cg *cg, Val barrier, int count) {
    say(cg, "mbarrier.init.shared::cta.b64 [$0], $1;", 2, barrier, cg_i32(cg, count));
}

void nv90_barrier_fence(Cg *cg) { say(cg, "fence.mbarrier_init.release.cluster;", 0); }

void nv90_barrier_wait(Cg *cg, Val barrier, Val parity) {
    const char *text = at_barrier(cg, WAITED(TRY_WAIT), &barrier);
    say(cg, text, 2, barrier, parity);
}

Val nv90_barrier_test(Cg *cg, Val barrier, Val parity) {
    Val v[] = {barrier, parity};
    Val done =
        cg_asm(cg, cg->i32, v, 2,
               "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2;\n\t"
               "selp.b32 $0, 1, 0, p;\n\t}",
               "=r,r,r,~{memory}", true);
    return cg_not(cg, cg_is(cg, done, 0));
}

void nv90_barrier_arrive(Cg *cg, Val barrier, Val when) {
    const char *text = when ? WHERE(1, "mbarrier.arrive.shared::cta.b64 _, [$0+%d]")
                            : "mbarrier.arrive.shared::cta.b64 _, [$0+%d];";
    text = at_barrier(cg, text, &barrier);
    say(cg, text, when ? 2 : 1, barrier, when ? nv90_if(cg, when) : NULL);
}

void nv90_barrier_arrive_for(Cg *cg, Val barrier, int n) {
    say(cg, "mbarrier.arrive.shared::cta.b64 _, [$0], $1;", 2, barrier, cg_i32(cg, n));
}

void nv90_wait_copied(Cg *cg) { say(cg, "cp.async.wait_all;", 0); }

void nv90_barrier_copied(Cg *cg, Val barrier) {
    say(cg, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", 1, barrier);
}

// ---- clusters

Val nv90_remote(Cg *cg, Val address, Val rank) {
    Val v[] = {address, rank};
    return cg_asm(cg, cg->i32, v, 2, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", false);
}

void nv90_remote_arrive(Cg *cg, Val barrier, Val when) {
    const char *text = WHERE(1, "mbarrier.arrive.shared::cluster.b64 _, [$0]");
    say(cg, text, 2, barrier, nv90_if(cg, when));
}

void nv90_remote_tell(Cg *cg, Val to, Val word, Val barrier) {
    say(cg,
        "st.shared::cluster.u32 [$0], $1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$2];",
        3, to, word, barrier);
}

void nv90_remote_wait(Cg *cg, Val barrier, Val parity) {
    const char *text = at_barrier(
        cg, WAITED("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"), &barrier);
    say(cg, text, 2, barrier, parity);
}

void nv90_cluster_sync(Cg *cg) { say(cg, "barrier.cluster.arrive;\n\tbarrier.cluster.wait;", 0); }

void nv90_barrier_expect(Cg *cg, Val barrier, Val bytes) {
    say(cg, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", 2, barrier, bytes);
}

void nv90_bar_sync(Cg *cg, Val id, int threads) {
    Val v[] = {id, cg_i32(cg, threads)};
    cg_intrinsic(cg, "llvm.nvvm.barrier", NULL, 0, v, 2);
}

void nv90_bar_arrive(Cg *cg, Val id, int threads) {
    say(cg, "bar.arrive $0, $1;", 2, id, cg_i32(cg, threads));
}

void nv90_warp_sync(Cg *cg) {
    Val all = cg_i32(cg, -1);
    cg_intrinsic(cg, "llvm.nvvm.bar.warp.sync", NULL, 0, &all, 1);
}

// ---- tensor copies. Coordinates come in the order of the tensor's dimensions; the hardware counts
// from the innermost.

static const char *coordinates(Cg *cg, int first, int rank) {
    const char *s = "";
    for (int i = rank - 1; i >= 0; i--)
        s = arena_printf(cg->arena, "%s$%d%s", s, first + i, i ? "," : "");
    return s;
}

static const char *registers(Cg *cg, const char *before, int n, const char *after) {
    const char *s = before;
    for (int i = 0; i < n; i++) s = arena_printf(cg->arena, "%s,r", s);
    return arena_printf(cg->arena, "%s%s", s, after);
}

void nv90_bulk_load(Cg *cg, Val to, Val map, Val barrier, const Val *at, int rank, Val when,
                    bool everywhere) {
    Val v[4 + 5] = {to, map, barrier, when ? nv90_if(cg, when) : cg_i32(cg, 1)};
    for (int i = 0; i < rank; i++) v[4 + i] = at[i];
    const char *text = arena_printf(
        cg->arena,
        WHERE(3, "cp.async.bulk.tensor.%dd"
                 ".shared::cluster.global.mbarrier::complete_tx::bytes%s [$0], [$1, {%s}], [$2]%s"),
        rank, everywhere ? ".multicast::cluster" : "", coordinates(cg, 4, rank),
        everywhere ? ", 3" : "");
    statement(cg, text, registers(cg, "r,l,r,r", rank, ",~{memory}"), v, 4 + rank);
}

void nv90_bulk_prefetch(Cg *cg, Val map, const Val *at, int rank) {
    Val v[1 + 5] = {map};
    for (int i = 0; i < rank; i++) v[1 + i] = at[i];
    const char *text =
        arena_printf(cg->arena, "cp.async.bulk.prefetch.tensor.%dd.L2.global [$0, {%s}];", rank,
                     coordinates(cg, 1, rank));
    statement(cg, text, registers(cg, "l", rank, ",~{memory}"), v, 1 + rank);
}

void nv90_bulk_store(Cg *cg, Val map, Val from, const Val *at, int rank, Val when) {
    Val v[3 + 5] = {from, map, nv90_if(cg, when)};
    for (int i = 0; i < rank; i++) v[3 + i] = at[i];
    const char *text = arena_printf(
        cg->arena,
        WHERE(2, "cp.async.bulk.tensor.%dd.global.shared::cta.bulk_group [$1, {%s}], [$0]"), rank,
        coordinates(cg, 3, rank));
    statement(cg, text, registers(cg, "r,l,r", rank, ",~{memory}"), v, 3 + rank);
}

void nv90_bulk_add(Cg *cg, Val to, Val from, Val bytes, Val when) {
    Val v[] = {to, from, bytes, nv90_if(cg, when)};
    statement(cg,
              WHERE(3, "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2"),
              "l,r,r,r,~{memory}", v, 4);
}

void nv90_add_words(Cg *cg, Val to, const Val x[4], Val when) {
    Val v[] = {to, x[0], x[1], x[2], x[3], nv90_if(cg, when)};
    statement(cg, WHERE(5, "red.relaxed.gpu.global.add.v4.f32 [$0], {$1,$2,$3,$4}"),
              "l,f,f,f,f,r,~{memory}", v, 6);
}

void nv90_bulk_commit(Cg *cg) {
    cg_intrinsic(cg, "llvm.nvvm.cp.async.bulk.commit.group", NULL, 0, NULL, 0);
}

void nv90_bulk_wait_read(Cg *cg, int but) {
    Val last = cg_i32(cg, but);
    cg_intrinsic(cg, "llvm.nvvm.cp.async.bulk.wait.group.read", NULL, 0, &last, 1);
}

void nv90_bulk_wait(Cg *cg, int but) {
    Val last = cg_i32(cg, but);
    cg_intrinsic(cg, "llvm.nvvm.cp.async.bulk.wait.group", NULL, 0, &last, 1);
}

void nv90_tell(Cg *cg, Val to) {
    statement(cg, "fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.f32 [$0], 0f3F800000;",
              "l,~{memory}", &to, 1);
}

Val nv90_hear(Cg *cg, Val from) {
    return cg_asm(cg, cg->f32, &from, 1, "ld.relaxed.gpu.global.f32 $0, [$1];", "=f,l,~{memory}",
                  true);
}

void nv90_heard(Cg *cg) { say(cg, "fence.acq_rel.gpu;", 0); }

void nv90_rest(Cg *cg, int ns) { say(cg, "nanosleep.u32 $0;", 1, cg_i32(cg, ns)); }

void nv90_prefetch_map(Cg *cg, Val map) {
    statement(cg, "prefetch.tensormap [$0];", "l,~{memory}", &map, 1);
}

void nv90_proxy_fence(Cg *cg) { say(cg, "fence.proxy.async.shared::cta;", 0); }

void nv90_stmatrix(Cg *cg, Val to, const Val x[4], bool transposed) {
    say(cg,
        transposed ? "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1,$2,$3,$4};"
                   : "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1,$2,$3,$4};",
        5, to, x[0], x[1], x[2], x[3]);
}

// ---- threads, words, the counter

void nv90_set_registers(Cg *cg, int count, bool more) {
    Val n = cg_i32(cg, count);
    cg_intrinsic(cg,
                 more ? "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"
                      : "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32",
                 NULL, 0, &n, 1);
}

Val nv90_elect(Cg *cg) {
    Val all = cg_i32(cg, -1);
    Val one = cg_asm(cg, cg->i32, &all, 1,
                     "{\n\t.reg .pred p;\n\telect.sync _|p, $1;\n\tselp.b32 $0, 1, 0, p;\n\t}",
                     "=r,r", true);
    return cg_icmp(cg, LLVMIntNE, one, cg_i32(cg, 0));
}

Blk nv90_one(Cg *cg) {
    Blk first = cg_block(cg, "warp"), one = cg_block(cg, "one"), rest = cg_block(cg, "rest");
    cg_branch(cg, cg_is(cg, nv_state(cg)->warp, 0), first, rest);
    cg_fork(cg, nv90_elect(cg), one, rest);
    cg_at(cg, one);
    return rest;
}

void nv90_load_words(Cg *cg, Val from, Val v[4]) {
    Ty types[] = {cg->i32, cg->i32, cg->i32, cg->i32};
    cg_struct_asm(cg, types, 4, &from, 1, "ld.shared.v4.u32 {$0,$1,$2,$3}, [$4];",
                  "=r,=r,=r,=r,r,~{memory}", v);
}

void nv90_store_words(Cg *cg, Val to, const Val v[4]) {
    say(cg, "st.shared.v4.u32 [$0], {$1,$2,$3,$4};", 5, to, v[0], v[1], v[2], v[3]);
}

void nv90_store_words_if(Cg *cg, Val to, const Val v[4], Val when) {
    say(cg, WHERE(5, "st.shared.v4.u32 [$0], {$1,$2,$3,$4}"), 6, to, v[0], v[1], v[2], v[3],
        nv90_if(cg, when));
}

Val nv90_count_up(Cg *cg, Val counter, Val last) {
    Val v[] = {counter, last};
    return cg_asm(cg, cg->i32, v, 2, "atom.global.inc.u32 $0, [$1], $2;", "=r,l,r,~{memory}", true);
}

// ---- products

Val nv90_place(Cg *cg, Val address) {
    Val at = cg_and(cg, cg_lshr(cg, address, cg_i32(cg, 4)), cg_i32(cg, 0x3fff));
    return cg_zext(cg, at, cg->i64);
}

enum { HIGH_WORD = 8 * HOME_PITCH >> 4 | 1 << 30 }; // of all descriptors that are words

Val nv90_descriptor(Cg *cg, Val place, int leading, int stride) {
    uint64_t rest =
        (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | UINT64_C(1) << 62;
    return cg_or(cg, place, LLVMConstInt(cg->i64, rest, false));
}

// "=f,=f,..": n results, each tied to an argument later.
static void results(Text *t, int n) {
    for (int i = 0; i < n; i++) text_puts(t, i ? ",=f" : "=f");
}

static Ty *floats(Cg *cg, int n) {
    Ty *t = ARENA_ARRAY(cg->arena, Ty, n);
    for (int i = 0; i < n; i++) t[i] = cg->f32;
    return t;
}

Val nv90_behind_landed(Cg *cg, Val x, Val landed, Val small) {
    Val v[] = {x, landed, small};
    return cg_asm(cg, cg->f32, v, 3,
                  "{\n\t.reg .b32 x, y, zero;\n\tshr.u32 zero, $3, 16;\n\tmov.b32 x, $1;\n\t"
                  "mov.b32 y, $2;\n\tlop3.b32 x, x, y, zero, 0xf8;\n\tmov.b32 $0, x;\n\t}",
                  "=f,f,f,r", false);
}

// The accumulators go through, so that nothing reads them earlier.
void nv90_wgmma_wait(Cg *cg, int pending, Val *tied, int n) {
    const char *code = arena_printf(cg->arena, "wgmma.wait_group.sync.aligned %d;", pending);
    if (n == 0) {
        statement(cg, code, "~{memory}", NULL, 0);
        return;
    }
    Text c = text_new(cg->arena);
    results(&c, n);
    for (int i = 0; i < n; i++) text_printf(&c, ",%d", i);
    text_puts(&c, ",~{memory}");
    cg_struct_asm(cg, floats(cg, n), n, tied, n, code, c.s, tied);
}

static void descriptor(Text *t, const Nv90Product *p, const char *name, int from, int64_t by) {
    if (p->words)
        text_printf(t, "\tadd.s32 word, $%d, %d;\n\tmov.b64 %s, {word, %d};\n", from, (int)by, name,
                    HIGH_WORD);
    else
        text_printf(t, "\tadd.s64 %s, $%d, %d;\n", name, from, (int)by);
}

// An instruction of columns [from, to). `$0..` are the accumulators; descriptors are moved along by what the step says.
static void instruction(Text *t, const Nv90Product *p, int k, int from, int to, int left,
                        int right) {
    const char *type = p->dtype == DT_BF16 ? "bf16" : "f16";
    int part = from ? from / p->most : 0, parts = p->middle ? part / 2 : part;
    bool middle = p->middle && part % 2;
    Val first = middle ? p->middle : p->right, other = p->left;
    int64_t by = p->right_step[k] + parts * p->beyond;
    if (p->words) by += constant_part(&first);
    descriptor(t, p, "db", right + middle, by);
    by = p->left ? p->left_step[k] + (p->words ? constant_part(&other) : 0) : 0;
    if (p->left) descriptor(t, p, "da", left, by);
    text_printf(t, "\twgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {", to - from, type, type);
    for (int i = from / 2; i < to / 2; i++) text_printf(t, i > from / 2 ? ",$%d" : "$%d", i);
    int a = left + 4 * k, keep = k > 0 || p->accumulate;
    if (p->left)
        text_printf(t, "}, da, db, %d, 1, 1, %d, %d;\n", keep, p->left_transposed, p->transposed);
    else
        text_printf(t, "}, {$%d,$%d,$%d,$%d}, db, %d, 1, 1, %d;\n", a, a + 1, a + 2, a + 3, keep,
                    p->transposed);
}

// One k-step.
static void product_step(Text *t, const Nv90Product *p, int k, int columns, int left, int right) {
    int most = p->most ? p->most : columns;
    for (int from = 0; from < columns; from += most)
        instruction(t, p, k, from, from + most < columns ? from + most : columns, left, right);
}

// A group, or the steps of it that are wanted. Columns that do not count are made by the first step
// all the same: registers that only one of two ways makes would be kept from the previous tile.
static void product_steps(Text *t, const Nv90Product *p, int from, int to, bool few, int left) {
    int right = left + (p->left ? 1 : 4 * p->steps);
    bool ends = to == p->steps;
    if (from == 0) text_puts(t, "\twgmma.fence.sync.aligned;\n");
    if (few && to > p->few_steps) to = p->few_steps;
    for (int k = from; k < to; k++) {
        bool makes = k == 0 && !p->accumulate;
        product_step(t, p, k, few && !makes ? p->few_columns : p->columns, left, right);
    }
    if (ends) text_puts(t, "\twgmma.commit_group.sync.aligned;\n");
}

static void product_in_two_ways(Text *t, const Nv90Product *p, int left, int few) {
    text_printf(t, "\t.reg .pred all;\n\tsetp.eq.b32 all, $%d, 0;\n\t@all bra ALL;\n", few);
    product_steps(t, p, 0, p->steps, true, left);
    text_puts(t, "\tbra DONE;\nALL:\n");
    product_steps(t, p, 0, p->steps, false, left);
    text_puts(t, "DONE:\n");
}

typedef struct Arguments {
    Val *v;
    int n;
    Text constraints;
} Arguments;

static void argument(Arguments *a, Val v, const char *constraint) {
    a->v[a->n++] = v;
    text_printf(&a->constraints, ",%s", constraint);
}

static void argument_descriptor(Arguments *a, const Nv90Product *p, Val v) {
    if (p->words) constant_part(&v);
    argument(a, v, p->words ? "r" : "l");
}

static int arguments_of(const Nv90Product *p) {
    int n = 6 + (p->left ? 1 : 4 * p->steps);
    return n + (p->before ? arguments_of(p->before) : 0);
}

// A product and those that it goes on with, which come first.
static void chain(Cg *cg, Text *t, Arguments *a, const Nv90Product *p, int from, int to) {
    int results = p->columns / 2;
    if (p->before) chain(cg, t, a, p->before, 0, p->before->steps);
    int left = results + a->n;
    for (int i = 0; !p->left && i < 4 * p->steps; i++) argument(a, p->registers[i], "r");
    if (p->left) argument_descriptor(a, p, p->left);
    argument_descriptor(a, p, p->right);
    if (p->middle) argument_descriptor(a, p, p->middle);
    if (p->full) {
        text_printf(t,
                    "\t{\n\t.reg .pred p;\nWAIT:\n\t" TRY_WAIT " p, [$%d], $%d;\n\t@p bra DONE;\n\t"
                    "bra WAIT;\nDONE:\n\t}\n",
                    results + a->n, results + a->n + 1);
        argument(a, p->full, "r"), argument(a, p->parity, "r");
    }
    int few = results + a->n;
    if (p->few) argument(a, nv90_if(cg, p->few), "r");
    if (p->few)
        product_in_two_ways(t, p, left, few);
    else
        product_steps(t, p, from, to, false, left);
}

void nv90_wgmma(Cg *cg, const Nv90Product *p, int from, int to) {
    int n = p->columns / 2;
    const Nv90Product *first = p;
    while (first->before) first = first->before;
    bool sums = first->accumulate || from > 0;
    assert(p->columns % 8 == 0 && p->columns <= 256);
    assert(!p->few || (from == 0 && to == p->steps));
    Text text = text_new(cg->arena), c = text_new(cg->arena);
    results(&c, n);
    Arguments a = {ARENA_ARRAY(cg->arena, Val, n + arguments_of(p)), 0, c};
    text_puts(&text, "{\n\t.reg .b64 da, db;\n\t.reg .b32 word;\n");
    chain(cg, &text, &a, p, from, to);
    text_puts(&text, "\t}");
    for (int i = 0; sums && i < n; i++) argument(&a, p->acc[i], arena_printf(cg->arena, "%d", i));
    text_puts(&a.constraints, ",~{memory}");
    cg_struct_asm(cg, floats(cg, n), n, a.v, a.n, text.s, a.constraints.s, p->acc);
}
