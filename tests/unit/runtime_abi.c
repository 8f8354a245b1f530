// runtime_abi.c: metadata: round trip, damage, launch expressions, containers.
#include "runtime_fixture.h"
#include "tests/unit/test.h"
#include <elf.h>

// ---- bytes

TEST(round_trip) {
    size_t n, n2;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n), *again;
    AbiMeta m;
    ck_assert_ptr_null(abi_read(&m, bytes, n));
    ck_assert_uint_eq(m.nvariants, 2);
    ck_assert_str_eq(m.variants[0].name, "sum");
    ck_assert_str_eq(m.variants[0].tensors[6].name, "rows");
    ck_assert_uint_eq(m.variants[0].tensors[6].flags, ABI_OPTIONAL);
    ck_assert_uint_eq(m.variants[0].kernels[0].nargs, 24);
    ck_assert_ptr_null(abi_write(&m, &again, &n2));
    ck_assert_uint_eq(n, n2);
    ck_assert_mem_eq(bytes, again, n);
    ck_assert_uint_eq(abi_bytes(bytes), n);
    abi_free(&m);
    free(bytes);
    free(again);
}

TEST(every_length_is_refused) {
    size_t n;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n);
    for (size_t i = 0; i < n; i++) {
        AbiMeta m;
        uint8_t *cut = malloc(i ? i : 1); // its own allocation: a sanitizer sees any read past it
        memcpy(cut, bytes, i);
        ck_assert_ptr_nonnull(abi_read(&m, cut, i));
        free(cut);
    }
    uint8_t *more = calloc(1, n + 1);
    AbiMeta m;
    memcpy(more, bytes, n);
    ck_assert_ptr_nonnull(abi_read(&m, more, n + 1));
    free(more);
    free(bytes);
}

TEST(every_flipped_byte_is_refused) {
    size_t n;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            AbiMeta m;
            bytes[i] ^= (uint8_t)(1 << bit);
            ck_assert_msg(abi_read(&m, bytes, n) != NULL, "byte %zu bit %d", i, bit);
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    free(bytes);
}

// The sum does not protect against intent: with it made right again a flip may give other metadata,
// but never a bad read.
static void fix_sum(uint8_t *bytes, size_t n) {
    uint64_t sum = abi_fnv(bytes, 16) * 1099511628211u + abi_fnv(bytes + 24, n - 24);
    for (int i = 0; i < 8; i++) bytes[16 + i] = (uint8_t)(sum >> (8 * i));
}

TEST(flips_with_a_right_sum_are_harmless) {
    static const uint8_t with[] = {0x01, 0x80, 0xff};
    size_t n;
    int accepted = 0;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n);
    for (size_t i = 24; i < n; i++)
        for (int k = 0; k < 3; k++) {
            AbiMeta m;
            bytes[i] ^= with[k];
            fix_sum(bytes, n);
            const char *why = abi_read(&m, bytes, n);
            bytes[i] ^= with[k];
            if (why) continue;
            ck_assert_ptr_null(abi_verify(&m));
            accepted++;
            abi_free(&m);
        }
    ck_assert_int_gt(accepted, 0); // a changed constant, say
    free(bytes);
}

TEST(another_version_says_so) {
    size_t n;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n);
    AbiMeta m;
    bytes[8]++;
    ck_assert_ptr_nonnull(strstr(abi_read(&m, bytes, n), "version"));
    free(bytes);
}

TEST(writer_verifies) {
    AbiMeta m;
    AbiVariant v;
    uint8_t *out;
    size_t n;
    fixture_fill(&m, ABI_CODE_HOST, false);
    v = m.variants[0];
    m.variants = &v;
    v.name = "no space";
    ck_assert_ptr_nonnull(abi_write(&m, &out, &n));
    v.name = "sum";
    v.nplans = 1; // the last one left has a condition
    ck_assert_str_eq(abi_write(&m, &out, &n), "the last plan has a condition");
    v.nplans = 2;
    v.nkernels = 2; // a plan names the third
    ck_assert_ptr_nonnull(abi_write(&m, &out, &n));
    v.nkernels = 3;
    v.nsizes = 5;
    ck_assert_ptr_nonnull(abi_write(&m, &out, &n));
}

// Sizes and tensors are those of the layout; recurrences and the backward have none.
TEST(layouts_have_their_sizes) {
    static AbiSize own[ABI_MOST_FIXED + 2];
    AbiTensor starts = {"q_start", ABI_ROLE_Q_START, ABI_I32, 0, 1, 0, {{0, NULL}}};
    AbiInsn batch[] = {{ABI_OP_SIZE, ABI_SIZE_B}};
    AbiMeta m;
    fixture_fill(&m, ABI_CODE_HOST, false);
    AbiVariant v = m.variants[0];
    m.variants = &v;
    starts.extent[0] = (AbiExpr){1, batch};
    v.ntensors = 1, v.nkernels = 0, v.nplans = 1, v.tensors = &starts;
    v.plans = &(AbiPlan){{0, NULL}, 0, NULL};
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "layout")); // dense
    ck_assert_int_eq(abi_fixed_count(ABI_ATTENTION, ABI_LAYOUT_RAGGED), 6);
    ck_assert_int_eq(abi_fixed_count(ABI_ATTENTION, ABI_LAYOUT_PAGED), ABI_MOST_FIXED);
    v.layout = ABI_LAYOUT_PAGED, v.page = 16, v.sizes = own, v.nsizes = ABI_MOST_FIXED;
    abi_fixed_sizes(ABI_ATTENTION, ABI_LAYOUT_PAGED, own);
    ck_assert_ptr_null(abi_verify(&m));
    uint8_t *bytes;
    size_t n;
    AbiMeta read;
    ck_assert_ptr_null(abi_write(&m, &bytes, &n));
    ck_assert_ptr_null(abi_read(&read, bytes, n));
    ck_assert_int_eq(read.variants[0].layout, ABI_LAYOUT_PAGED);
    ck_assert_int_eq(read.variants[0].page, 16);
    abi_free(&read);
    free(bytes);
    v.layout = ABI_LAYOUT_RAGGED; // has no pages, and other sizes
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "layout"));
    v.page = 0;
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "order"));
    abi_fixed_sizes(ABI_ATTENTION, ABI_LAYOUT_RAGGED, own);
    v.nsizes = 6;
    ck_assert_ptr_null(abi_verify(&m));
    starts.dtype = ABI_F32;
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "layout"));
    starts.dtype = ABI_I32, v.phase = ABI_PIECE;
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "layout"));
    v.phase = ABI_PART_BWD;
    ck_assert_ptr_null(abi_verify(&m));
    v.phase = ABI_COMBINE;
    ck_assert_ptr_null(abi_verify(&m));
    v.phase = ABI_BWD;
    ck_assert_ptr_null(abi_verify(&m));
    v.phase = ABI_FWD, v.family = ABI_RECURRENCE;
    ck_assert_ptr_nonnull(strstr(abi_verify(&m), "layout"));
}

TEST(only_attentions_have_q_offset) {
    AbiMeta m;
    fixture_fill(&m, ABI_CODE_HOST, false);
    AbiVariant v = m.variants[0];
    m.variants = &v;
    ck_assert_ptr_null(abi_verify(&m));
    v.family = ABI_RECURRENCE;
    ck_assert_str_eq(abi_verify(&m),
                     "a tensor speaks of q_offset, which the variant does not have");
}

TEST(maps_are_verified) {
    AbiMeta m, back;
    AbiMap map = {V, 3, 0, {1, 1, 64, 2}};
    uint8_t *out;
    size_t n;
    fixture_fill(&m, ABI_CODE_PTX, false);
    AbiVariant v = m.variants[0];
    AbiKernel k[3];
    memcpy(k, v.kernels, sizeof k);
    v.kernels = k;
    m.variants = &v;
    k[2].nmaps = 1;
    k[2].maps = &map;
    ck_assert_ptr_null(abi_write(&m, &out, &n));
    ck_assert_ptr_null(abi_read(&back, out, n));
    ck_assert_uint_eq(back.variants[0].kernels[2].maps[0].box[2], 64);
    ck_assert_uint_eq(back.variants[0].kernels[2].maps[0].swizzle, 3);
    abi_free(&back);
    free(out);
    map.box[3] = 0;
    ck_assert_str_eq(abi_verify(&m), "a tensor map has an impossible box");
    map.box[3] = 2;
    map.swizzle = 4;
    ck_assert_ptr_nonnull(abi_verify(&m));
    map.swizzle = 0;
    map.tensor = ROWS; // optional
    ck_assert_ptr_nonnull(abi_verify(&m));
    map.tensor = 99;
    ck_assert_ptr_nonnull(abi_verify(&m));
    map.tensor = V;
    m.code = ABI_CODE_HOST;
    ck_assert_str_eq(abi_verify(&m), "a kernel has a tensor map, which only PTX can have");
}

// ---- launch expressions

static bool eval(AbiInsn *code, uint32_t n, int64_t *out) {
    static const int64_t sizes[] = {7, -7, 3};
    AbiExpr e = {n, code};
    return abi_eval(&e, sizes, 132, out);
}

static int64_t binary(AbiOp op, int64_t a, int64_t b) {
    AbiInsn code[] = {{ABI_OP_CONST, a}, {ABI_OP_CONST, b}, {(uint8_t)op, 0}};
    int64_t r = -99;
    ck_assert(eval(code, 3, &r));
    return r;
}

TEST(expressions) {
    ck_assert_int_eq(binary(ABI_OP_DIV, 7, 2), 3);
    ck_assert_int_eq(binary(ABI_OP_DIV, -7, 2), -4);
    ck_assert_int_eq(binary(ABI_OP_DIV, 7, -2), -4);
    ck_assert_int_eq(binary(ABI_OP_DIV, -8, 2), -4);
    ck_assert_int_eq(binary(ABI_OP_DIV, 1, 0), 0);
    ck_assert_int_eq(binary(ABI_OP_MOD, 7, 3), 1);
    ck_assert_int_eq(binary(ABI_OP_MOD, -7, 3), 2);
    ck_assert_int_eq(binary(ABI_OP_MOD, 7, -3), -2);
    ck_assert_int_eq(binary(ABI_OP_MOD, 7, 0), 0);
    ck_assert_int_eq(binary(ABI_OP_MOD, INT64_MIN, -1), 0);
    ck_assert_int_eq(binary(ABI_OP_MOD, INT64_MAX - 1, INT64_MAX), INT64_MAX - 1);
    ck_assert_int_eq(binary(ABI_OP_MIN, 2, -3), -3);
    ck_assert_int_eq(binary(ABI_OP_MAX, 2, -3), 2);
    ck_assert_int_eq(binary(ABI_OP_LT, 2, 3), 1);
    ck_assert_int_eq(binary(ABI_OP_LE, 3, 3), 1);
    ck_assert_int_eq(binary(ABI_OP_EQ, 3, 4), 0);
    ck_assert_int_eq(binary(ABI_OP_NE, 3, 4), 1);
    ck_assert_int_eq(binary(ABI_OP_AND, 3, 0), 0);
    ck_assert_int_eq(binary(ABI_OP_OR, 3, 0), 1);
    AbiInsn select[] = {{ABI_OP_SIZE, 0},
                        {ABI_OP_WORKERS, 0},
                        {ABI_OP_CONST, 5},
                        {ABI_OP_SELECT, 0},
                        {ABI_OP_NEG, 0}};
    int64_t r;
    ck_assert(eval(select, 5, &r));
    ck_assert_int_eq(r, -132);
    select[0] = (AbiInsn){ABI_OP_CONST, 0};
    ck_assert(eval(select, 5, &r));
    ck_assert_int_eq(r, -5);
}

TEST(overflow_is_an_error) {
    static const struct {
        AbiOp op;
        int64_t a, b;
    } bad[] = {{ABI_OP_ADD, INT64_MAX, 1},
               {ABI_OP_SUB, INT64_MIN, 1},
               {ABI_OP_MUL, INT64_MAX, 2},
               {ABI_OP_DIV, INT64_MIN, -1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        AbiInsn code[] = {
            {ABI_OP_CONST, bad[i].a}, {ABI_OP_CONST, bad[i].b}, {(uint8_t)bad[i].op, 0}};
        int64_t r;
        ck_assert(!eval(code, 3, &r));
    }
}

TEST(malformed_expressions_are_refused) {
    static AbiInsn under[] = {{ABI_OP_CONST, 1}, {ABI_OP_ADD, 0}},
                   two[] = {{ABI_OP_CONST, 1}, {ABI_OP_CONST, 1}}, size[] = {{ABI_OP_SIZE, 99}},
                   later[] = {{ABI_OP_SIZE, 7}}, unknown[] = {{ABI_OP_COUNT, 0}};
    static AbiInsn deep[2 * ABI_MAX_STACK + 1];
    for (int i = 0; i <= ABI_MAX_STACK; i++) deep[i] = (AbiInsn){ABI_OP_CONST, 1};
    for (int i = 0; i < ABI_MAX_STACK; i++) deep[ABI_MAX_STACK + 1 + i] = (AbiInsn){ABI_OP_ADD, 0};
    AbiExpr bad[] = {{2, under}, {2, two},     {1, size},
                     {1, later}, {1, unknown}, {2 * ABI_MAX_STACK + 1, deep}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        AbiMeta m;
        fixture_fill(&m, ABI_CODE_HOST, false);
        AbiVariant v = m.variants[0];
        AbiSize sizes[8];
        memcpy(sizes, v.sizes, sizeof sizes);
        v.sizes = sizes;
        m.variants = &v;
        ck_assert_ptr_null(abi_verify(&m));
        sizes[7].def = bad[i];
        ck_assert_msg(abi_verify(&m) != NULL, "expression %zu", i);
    }
}

// ---- containers

static const char PTX[] = "//\n// made by hand\n.version 8.0\n.target sm_80\n";

static char *ptx_file(size_t *n) {
    AbiMeta m;
    char *out;
    fixture_fill(&m, ABI_CODE_PTX, true);
    ck_assert_ptr_null(abi_ptx(PTX, sizeof PTX - 1, &m, &out, n));
    return out;
}

static const char *find(const void *file, size_t n) { // tries, gives back what it found
    AbiMeta m;
    const void *code;
    size_t code_n;
    const char *why = abi_find(&m, file, n, &code, &code_n);
    if (!why) abi_free(&m);
    return why;
}

TEST(ptx_round_trip) {
    size_t n, code_n;
    char *file = ptx_file(&n);
    const void *code;
    AbiMeta m;
    ck_assert_uint_eq(strlen(file), n);
    ck_assert_ptr_null(abi_find(&m, file, n, &code, &code_n));
    ck_assert_uint_eq(code_n, sizeof PTX - 1);
    ck_assert_mem_eq(code, PTX, code_n);
    ck_assert_str_eq(m.target, "sm_80");
    abi_free(&m);
    ck_assert_ptr_nonnull(find(PTX, sizeof PTX - 1));
    free(file);
}

TEST(ptx_damage_is_refused) {
    size_t n;
    char *file = ptx_file(&n);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 8; k++) {
            file[i] ^= (char)(1 << k);
            ck_assert_msg(find(file, n) != NULL, "byte %zu bit %d", i, k);
            file[i] ^= (char)(1 << k);
        }
    for (size_t i = 0; i < n; i++) {
        char *cut = malloc(i ? i : 1);
        memcpy(cut, file, i);
        ck_assert_msg(find(cut, i) != NULL, "length %zu", i);
        free(cut);
    }
    free(file);
}

TEST(ptx_of_every_length_reads_back) { // base64's three endings
    char name[40] = "";
    for (int i = 0; i < 30; i++) {
        AbiMeta m;
        char *out;
        size_t n;
        strcat(name, "x");
        fixture_fill(&m, ABI_CODE_PTX, false);
        AbiVariant v = m.variants[0];
        v.name = name;
        m.variants = &v;
        ck_assert_ptr_null(abi_ptx("a", 1, &m, &out, &n));
        ck_assert_ptr_null(find(out, n));
        free(out);
    }
}

// An ELF file with nothing but a string table and .attn.
static uint8_t *elf_of(AbiCode code, uint16_t type, bool seal, size_t *n) {
    static const char names[] = "\0.attn\0.names";
    size_t meta_n;
    uint8_t *meta = fixture_meta(code, &meta_n);
    size_t pad = meta_n + 5, at = sizeof(Elf64_Ehdr), names_at = at + pad,
           table = (names_at + sizeof names + 7) / 8 * 8;
    *n = table + 3 * sizeof(Elf64_Shdr);
    uint8_t *f = calloc(1, *n);
    Elf64_Ehdr e = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB},
                    .e_type = type,
                    .e_shoff = table,
                    .e_shentsize = sizeof(Elf64_Shdr),
                    .e_shnum = 3,
                    .e_shstrndx = 2};
    Elf64_Shdr s[3] = {
        {0},
        {.sh_name = 1, .sh_type = SHT_PROGBITS, .sh_offset = at, .sh_size = pad},
        {.sh_name = 7, .sh_type = SHT_STRTAB, .sh_offset = names_at, .sh_size = sizeof names}};
    memcpy(f, &e, sizeof e);
    memcpy(f + at, meta, meta_n);
    memcpy(f + names_at, names, sizeof names);
    memcpy(f + table, s, sizeof s);
    free(meta);
    if (seal) ck_assert_ptr_null(abi_seal(f, *n));
    return f;
}

static uint8_t *elf_file(bool seal, size_t *n) { return elf_of(ABI_CODE_HOST, ET_REL, seal, n); }

// No length but its own, and no bit of it another.
static void is_sealed(uint8_t *f, size_t n) {
    ck_assert_ptr_null(find(f, n));
    for (size_t i = 0; i < n; i++) {
        uint8_t *cut = malloc(i ? i : 1);
        memcpy(cut, f, i);
        ck_assert_ptr_nonnull(find(cut, i));
        free(cut);
    }
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 8; k++) {
            f[i] ^= (uint8_t)(1 << k);
            ck_assert_ptr_nonnull(find(f, n));
            f[i] ^= (uint8_t)(1 << k);
        }
}

TEST(elf) {
    size_t n;
    uint8_t *f = elf_file(true, &n);
    is_sealed(f, n);
    f[offsetof(Elf64_Ehdr, e_type)] = ET_DYN; // without segments: no linker made it
    ck_assert_ptr_nonnull(find(f, n));
    free(f);
}

// What linking gave was sealed after it; nothing may come behind it either.
TEST(code_object) {
    size_t n;
    uint8_t *f = elf_of(ABI_CODE_HSACO, ET_DYN, true, &n), *longer = calloc(1, n + 8);
    is_sealed(f, n);
    memcpy(longer, f, n);
    ck_assert_ptr_nonnull(find(longer, n + 8));
    free(longer);
    free(f);
}

// A linker rewrites everything but the metadata.
TEST(linked_elf) {
    size_t n;
    uint8_t *f = elf_file(true, &n), *longer = calloc(1, n + 8);
    memcpy(longer, f, n);
    ck_assert_ptr_nonnull(find(longer, n + 8));
    longer[offsetof(Elf64_Ehdr, e_type)] = f[offsetof(Elf64_Ehdr, e_type)] = ET_DYN;
    longer[offsetof(Elf64_Ehdr, e_phnum)] = f[offsetof(Elf64_Ehdr, e_phnum)] = 4;
    ck_assert_ptr_null(find(longer, n + 8));
    ck_assert_ptr_null(find(f, n)); // its length may be the object's by chance
    free(longer);
    free(f);
    f = elf_file(false, &n); // of another maker: only metadata is vouched for
    ck_assert_ptr_null(find(f, n));
    for (size_t i = 0; i < n; i++) {
        f[i] ^= 4; // the rest must merely be safe to read
        (void)find(f, n);
        f[i] ^= 4;
    }
    free(f);
}
