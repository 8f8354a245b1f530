// Layouts: their text, what they say of every element, the instructions' fragments against the
// vendors' formulas, and the class of a conversion against a search over owners.
#include "ir/layout.h"
#include "tests/unit/test.h"

static const char *const names[] = {"M", "N", "K"};

static Layout read(const char *text) {
    Layout l;
    const char *wrong = layout_parse(&text, names, 3, &l);
    ck_assert_msg(!wrong && !*text, "%s at '%s'", wrong ? wrong : "more", text);
    return l;
}

static void check_text(const Layout *l, const char *want) {
    Arena *a = arena_new();
    Text t = text_new(a);
    text_puts(&t, "");
    layout_print(&t, l, names, 3);
    ck_assert_str_eq(t.s, want);
    arena_free(a);
}

TEST(text_reads_back) {
    static const char *const texts[] = {
        "reg(N%2, M/8%2, N/8%22) lane(N/2%4, M%8) warp(M/16%8)",
        "lane(4, M%8) warp(M/16%3)",
        "lane(32) warp(M%8) block(2)",
        "reg(K%4, M/8%2, K/16%2) lane(K/4%4, M%8)",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Layout l = read(texts[i]);
        check_text(&l, texts[i]);
    }
    // what continues a digit joins it, and a count of 1 is nothing
    Layout l = read(" reg ( N%2 , N / 2 % 4 )  lane(2, 2, M%8, M/8%1)");
    check_text(&l, "reg(N%8) lane(4, M%8)");
}

static const struct {
    const char *text, *wrong;
} refused[] = {
    {"", "expected reg, lane, warp or block"},
    {"thread(N%2)", "expected reg, lane, warp or block"},
    {"reg N%2", "expected '('"},
    {"reg(N)", "expected '%' and a digit's count"},
    {"reg(N/0%2)", "expected a digit's step"},
    {"reg(N%0)", "expected '%' and a digit's count"},
    {"reg(X%2)", "expected an axis, or how many copies there are"},
    {"reg(2)", "registers hold no copies"},
    {"reg(N%2", "expected ')'"},
    {"lane(N%2) reg(M%2)", "places come in the order reg, lane, warp, block"},
    {"reg(N/8%32768)", "a digit beyond 32768"},
    {"reg(N%99999)", "expected '%' and a digit's count"},
    {"reg(M%2,N%2,M/2%2,N/2%2,M/4%2,N/4%2,M/8%2,N/8%2,M/16%2,N/16%2,M/32%2,N/32%2,M/64%2,N/64%2,"
     "M/128%2,N/128%2,M/256%2,N/256%2,M/512%2,N/512%2,M/1024%2,N/1024%2,M/2048%2,N/2048%2,K%2)",
     "more than 24 digits"},
};

TEST_EACH(wrong_text_is_refused, 0, sizeof refused / sizeof *refused) {
    const char *text = refused[_i].text;
    Layout l;
    const char *wrong = layout_parse(&text, names, 3, &l);
    ck_assert_str_eq(wrong ? wrong : "nothing", refused[_i].wrong);
}

TEST(a_value_takes_the_digits_of_its_axes) {
    Layout s = read("reg(N%2, M/8%2, N/8%22) lane(N/2%4, M%8) warp(M/16%8)");
    uint8_t m = 0, n = 1, both[] = {0, 1};
    Layout rows = layout_restrict(&s, &m, 1), columns = layout_restrict(&s, &n, 1);
    Layout number = layout_restrict(&s, NULL, 0), all = layout_restrict(&s, both, 2);
    check_text(&rows, "reg(M/8%2) lane(4, M%8) warp(M/16%8)");
    check_text(&columns, "reg(N%2, N/8%22) lane(N/2%4, 8) warp(8)");
    check_text(&number, "lane(32) warp(8)");
    ck_assert(layout_equal(&all, &s) && !layout_equal(&rows, &columns));
    ck_assert(!layout_copies(&s) && layout_copies(&rows));
    Layout other = read("reg(K%2, M/8%2, K/8%16) lane(K/2%4, M%8) warp(M/16%8)");
    other = layout_restrict(&other, &m, 1);
    ck_assert(layout_equal(&rows, &other)); // so numbers of rows lie beside any tile of them
    Layout renamed = layout_rename(&s, (int[]){1, 0, 2});
    check_text(&renamed, "reg(M%2, N/8%2, M/8%22) lane(M/2%4, N%8) warp(N/16%8)");
}

TEST(an_axis_is_complete) {
    Layout l = read("reg(N%2, M/8%2, N/8%11) lane(N/2%4, M%8) warp(M/16%4, K%3, K/3%2)");
    ck_assert(layout_complete(&l, 0, 64) && layout_complete(&l, 1, 88));
    ck_assert(!layout_complete(&l, 0, 128) && !layout_complete(&l, 0, 32));
    Layout twice = read("reg(N%2, N%2)"), hole = read("reg(N%2, N/4%2)"),
           odd = read("reg(N%3) lane(N/3%2)");
    ck_assert(!layout_complete(&twice, 1, 2) && !layout_complete(&twice, 1, 4));
    ck_assert(!layout_complete(&hole, 1, 8) && !layout_complete(&hole, 1, 4));
    ck_assert(!layout_complete(&odd, 1, 6)); // only the last digit may be no power of two,
    Layout halves = read("reg(N%2, N/8%12) lane(N/2%4, 8) warp(4, N/96%2)"); // or one before warps
    ck_assert(layout_complete(&halves, 1, 192));
    ck_assert(layout_complete(&l, 2, 6) && layout_complete(&odd, 0, 1));
}

TEST(a_layout_begins_with_an_instruction) {
    Layout c = read("reg(N%2, M/8%2) lane(N/2%4, M%8)");
    static const char *const with[] = {"reg(N%2, M/8%2, N/8%22) lane(N/2%4, M%8) warp(M/16%8)",
                                       "reg(N%2, M/8%4) lane(N/2%4, M%8)",
                                       "reg(N%2, M/8%2, M/16%2, N/8%4) lane(N/2%4, M%8)"};
    static const char *const without[] = {
        "reg(N%4, M/8%2) lane(N/4%4, M%8)", "reg(M/8%2, N%2) lane(N/2%4, M%8)",
        "reg(N%2) lane(N/2%4, M%8)", "reg(N%2, M/8%2) lane(N/2%4, M%16)",
        "reg(N%2, M/8%2) lane(M%8, N/2%4)"};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        Layout l = read(with[i]);
        ck_assert_msg(layout_begins(&l, &c), "%s", with[i]);
    }
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        Layout l = read(without[i]);
        ck_assert_msg(!layout_begins(&l, &c), "%s", without[i]);
    }
}

// ---- instructions

// Element `i` of a lane (of warp w), by the vendors' documents.
typedef struct Element {
    int m, n, k;
} Element;
typedef Element (*Formula)(int w, int lane, int i);

static Element mma16_a(int w, int l, int i) {
    (void)w;
    return (Element){l / 4 + (i / 2 % 2 ? 8 : 0), 0, l % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0)};
}
static Element mma16_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l / 4, l % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0)};
}
static Element mma_c(int w, int l, int i) {
    (void)w;
    return (Element){l / 4 + (i >= 2 ? 8 : 0), l % 4 * 2 + i % 2, 0};
}
static Element tf32_a(int w, int l, int i) {
    (void)w;
    return (Element){l / 4 + (i % 2 ? 8 : 0), 0, l % 4 + (i >= 2 ? 4 : 0)};
}
static Element tf32_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l / 4, l % 4 + 4 * i};
}
static Element mma32_a(int w, int l, int i) {
    (void)w;
    return (Element){l / 4 + (i / 4 % 2 ? 8 : 0), 0, l % 4 * 4 + i % 4 + (i >= 8 ? 16 : 0)};
}
static Element mma32_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l / 4, l % 4 * 4 + i % 4 + (i >= 4 ? 16 : 0)};
}
static Element wgmma_a(int w, int l, int i) {
    Element e = mma16_a(0, l, i);
    e.m += 16 * (w % 4);
    return e;
}
static Element wgmma_c(int w, int l, int i) {
    return (Element){16 * (w % 4) + l / 4 + 8 * (i / 2 % 2), i / 4 * 8 + l % 4 * 2 + i % 2, 0};
}
static Element mfma32_a(int w, int l, int i) {
    (void)w;
    return (Element){l % 32, 0, 4 * (l / 32) + i};
}
static Element mfma32_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l % 32, 4 * (l / 32) + i};
}
static Element mfma32_c(int w, int l, int i) {
    (void)w;
    return (Element){8 * (i / 4) + 4 * (l / 32) + i % 4, l % 32, 0};
}
static Element mfma16_a(int w, int l, int i) {
    (void)w;
    return (Element){l % 16, 0, 4 * (l / 16) + i};
}
static Element mfma16_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l % 16, 4 * (l / 16) + i};
}
static Element mfma16_c(int w, int l, int i) {
    (void)w;
    return (Element){4 * (l / 16) + i, l % 16, 0};
}
static Element mfma32f_a(int w, int l, int i) {
    (void)w, (void)i;
    return (Element){l % 32, 0, l / 32};
}
static Element mfma32f_b(int w, int l, int i) {
    (void)w, (void)i;
    return (Element){0, l % 32, l / 32};
}
static Element mfma16f_a(int w, int l, int i) {
    (void)w, (void)i;
    return (Element){l % 16, 0, l / 16};
}
static Element mfma16f_b(int w, int l, int i) {
    (void)w, (void)i;
    return (Element){0, l % 16, l / 16};
}
static Element wmma_a(int w, int l, int i) {
    (void)w;
    return (Element){l % 16, 0, i};
}
static Element wmma_b(int w, int l, int i) {
    (void)w;
    return (Element){0, l % 16, i};
}
static Element wmma_c(int w, int l, int i) {
    (void)w;
    return (Element){2 * i + l / 16, l % 16, 0};
}

// Extents of an instruction, and its lanes; wgmma with 8 columns.
static const struct {
    MmaKind kind;
    int m, n, k, lanes, warps;
    Formula part[3];
} shapes[] = {
    {MMA_MMA16, 16, 8, 16, 32, 1, {mma16_a, mma16_b, mma_c}},
    {MMA_TF32, 16, 8, 8, 32, 1, {tf32_a, tf32_b, mma_c}},
    {MMA_MMA32, 16, 8, 32, 32, 1, {mma32_a, mma32_b, mma_c}},
    {MMA_WGMMA, 64, 8, 16, 32, 4, {wgmma_a, NULL, wgmma_c}},
    {MMA_MFMA32, 32, 32, 8, 64, 1, {mfma32_a, mfma32_b, mfma32_c}},
    {MMA_MFMA16, 16, 16, 16, 64, 1, {mfma16_a, mfma16_b, mfma16_c}},
    {MMA_MFMA32F, 32, 32, 2, 64, 1, {mfma32f_a, mfma32f_b, mfma32_c}},
    {MMA_MFMA16F, 16, 16, 4, 64, 1, {mfma16f_a, mfma16f_b, mfma16_c}},
    {MMA_WMMA, 16, 16, 16, 32, 1, {wmma_a, wmma_b, wmma_c}},
};

static Element element_of(const Layout *l, int w, int lane, int i) {
    int e[3];
    for (int a = 0; a < 3; a++)
        e[a] = layout_part(l, LAYOUT_REG, a, i) + layout_part(l, LAYOUT_LANE, a, lane) +
               layout_part(l, LAYOUT_WARP, a, w);
    return (Element){e[0], e[1], e[2]};
}

TEST_EACH(fragments_are_the_vendors, 0, 3 * sizeof shapes / sizeof *shapes) {
    int s = _i / 3, part = _i % 3;
    Layout l;
    bool there = mma_fragment(shapes[s].kind, (MmaPart)part, &l);
    ck_assert_int_eq(there, shapes[s].part[part] != NULL);
    if (!there) return;
    int extent[] = {shapes[s].m, shapes[s].n, shapes[s].k}, missing = part == MMA_A   ? 1
                                                                      : part == MMA_B ? 0
                                                                                      : 2;
    for (int a = 0; a < 3; a++) ck_assert(layout_complete(&l, a, a == missing ? 1 : extent[a]));
    ck_assert_int_eq(layout_count(&l, LAYOUT_LANE), shapes[s].lanes);
    ck_assert_int_eq(layout_count(&l, LAYOUT_WARP), shapes[s].warps);
    int regs = layout_count(&l, LAYOUT_REG);
    static int owners[64][32][32];
    memset(owners, 0, sizeof owners);
    for (int w = 0; w < shapes[s].warps; w++)
        for (int lane = 0; lane < shapes[s].lanes; lane++)
            for (int i = 0; i < regs; i++) {
                Element e = element_of(&l, w, lane, i), want = shapes[s].part[part](w, lane, i);
                ck_assert_msg(e.m == want.m && e.n == want.n && e.k == want.k,
                              "%s: warp %d lane %d element %d: %d %d %d", mma_name(shapes[s].kind),
                              w, lane, i, e.m, e.n, e.k);
                int index[] = {e.m, e.n, e.k};
                ck_assert_int_eq(layout_number(&l, LAYOUT_REG, index), i);
                owners[e.m][e.n][e.k]++;
            }
    int copies = layout_covers(&l, LAYOUT_COPIES), seen = 0;
    for (int i = 0; i < 64 * 32 * 32; i++) {
        ck_assert(!(&owners[0][0][0])[i] || (&owners[0][0][0])[i] == copies);
        seen += (&owners[0][0][0])[i] > 0;
    }
    ck_assert_int_eq(seen, extent[0] * extent[1] * extent[2] / extent[missing]);
}

// ---- conversions

enum { LANES = 8, WARPS = 6, BLOCKS = 2, THREADS = LANES * WARPS * BLOCKS, SLOTS = 16, MOST = 512 };

typedef struct Slot { // of a layout under construction: its place, and a digit of an axis or copies
    LayoutPlace place;
    int axis, step, count;
} Slot;

static unsigned next(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 16; }

static Layout make(const Slot *slot, int n) {
    Layout l = {0};
    for (int p = 0; p < LAYOUT_PLACES; p++)
        for (int i = 0; i < n; i++)
            if (slot[i].place == (LayoutPlace)p && (p != LAYOUT_REG || slot[i].axis >= 0))
                ck_assert(layout_add(&l, slot[i].place, slot[i].axis, slot[i].step, slot[i].count));
    return l;
}

static void swap(Slot *x, Slot *y) {
    Slot t = *x;
    *x = (Slot){x->place, y->axis, y->step, y->count};
    *y = (Slot){y->place, t.axis, t.step, t.count};
}

// Digits of M = 8 and N = 24 over places of fixed sizes, the others copies.
static int begin(Slot *slot) {
    static const Slot all[] = {
        {LAYOUT_LANE, -1, 0, 2}, {LAYOUT_LANE, -1, 0, 2}, {LAYOUT_LANE, -1, 0, 2},
        {LAYOUT_WARP, -1, 0, 2}, {LAYOUT_WARP, -1, 0, 3}, {LAYOUT_BLOCK, -1, 0, 2},
        {LAYOUT_REG, 0, 1, 2},   {LAYOUT_REG, 0, 2, 2},   {LAYOUT_REG, 0, 4, 2},
        {LAYOUT_REG, 1, 1, 2},   {LAYOUT_REG, 1, 2, 2},   {LAYOUT_REG, 1, 4, 2},
        {LAYOUT_REG, 1, 8, 3},   {LAYOUT_REG, -1, 0, 2},  {LAYOUT_REG, -1, 0, 2},
        {LAYOUT_REG, -1, 0, 3}};
    memcpy(slot, all, sizeof all);
    return SLOTS;
}

static void shuffle(Slot *slot, int n, int swaps, unsigned *seed) {
    for (int i = 0; i < swaps; i++) {
        Slot *x = &slot[next(seed) % (unsigned)n], *y = &slot[next(seed) % (unsigned)n];
        if (x->count == y->count) swap(x, y);
    }
}

// By thread and element: its register, -1: none.
static void own(const Layout *l, int reg[THREADS][8 * 24]) {
    memset(reg, -1, sizeof(int) * THREADS * 8 * 24);
    for (int t = 0; t < THREADS; t++)
        for (int r = 0; r < layout_count(l, LAYOUT_REG); r++) {
            int e[2];
            for (int a = 0; a < 2; a++)
                e[a] = layout_part(l, LAYOUT_REG, a, r) +
                       layout_part(l, LAYOUT_LANE, a, t % LANES) +
                       layout_part(l, LAYOUT_WARP, a, t / LANES % WARPS) +
                       layout_part(l, LAYOUT_BLOCK, a, t / LANES / WARPS);
            ck_assert_int_eq(reg[t][e[0] * 24 + e[1]], -1);
            reg[t][e[0] * 24 + e[1]] = r;
        }
}

static int reg_from[THREADS][8 * 24], reg_to[THREADS][8 * 24];

static bool any_owner(int t, int e, int width) { // among the threads that share a warp, a block
    for (int u = t / width * width; u < t / width * width + width; u++)
        if (reg_from[u][e] >= 0) return true;
    return false;
}

static LayoutMove of_element(int t, int e) {
    if (reg_from[t][e] >= 0) return MOVE_NOTHING;
    if (any_owner(t, e, LANES)) return MOVE_SHUFFLE;
    return any_owner(t, e, LANES * WARPS) ? MOVE_SHARED : MOVE_CLUSTER;
}

// Where each thread has what it wants: which register goes where.
static LayoutMove by_register(int word) {
    LayoutMove m = MOVE_NOTHING;
    int goes[MOST];
    memset(goes, -1, sizeof goes);
    for (int t = 0; t < THREADS; t++)
        for (int e = 0; e < 8 * 24; e++) {
            int to = reg_to[t][e], from = reg_from[t][e];
            if (to < 0) continue;
            if (goes[to] >= 0 && goes[to] != from) return MOVE_SELECT;
            goes[to] = from;
        }
    for (int r = 0; r < MOST && goes[r] >= 0; r++) {
        if (goes[r] == r) continue;
        bool whole = goes[r] % word == r % word && goes[r / word * word] / word == goes[r] / word;
        if (m < MOVE_RENAME) m = MOVE_RENAME;
        if (!whole) m = MOVE_HALVES;
    }
    return m;
}

static LayoutMove search(int bits) {
    LayoutMove m = MOVE_NOTHING;
    for (int t = 0; t < THREADS; t++)
        for (int e = 0; e < 8 * 24; e++)
            if (reg_to[t][e] >= 0 && of_element(t, e) > m) m = of_element(t, e);
    return m == MOVE_NOTHING ? by_register(32 / bits) : m;
}

TEST(conversions_agree_with_a_search) {
    unsigned seed = 1;
    int of_class[MOVE_CLUSTER + 1] = {0};
    for (int i = 0; i < 400; i++) {
        Slot slot[SLOTS];
        int n = begin(slot), bits = next(&seed) % 2 ? 16 : 32;
        shuffle(slot, n, 40, &seed);
        Layout from = make(slot, n);
        // most pairs differ in little, and in registers more often than elsewhere
        bool registers = next(&seed) % 2;
        shuffle(registers ? slot + 6 : slot, registers ? n - 6 : n, (int)(next(&seed) % 4), &seed);
        Layout to = make(slot, n);
        own(&from, reg_from);
        own(&to, reg_to);
        LayoutMove want = search(bits), got = layout_move(&from, &to, bits);
        ck_assert_msg(got == want, "pair %d: %d, not %d", i, got, want);
        of_class[want]++;
    }
    for (int m = 0; m <= MOVE_CLUSTER; m++) ck_assert_int_ge(of_class[m], 5); // all are tried
}

TEST(conversions_without_common_cuts) {
    Layout x = read("reg(N%8) lane(N/8%3)"), y = read("reg(N%12) lane(2)");
    ck_assert_int_eq(layout_move(&x, &y, 32), MOVE_SHARED);
    x = read("reg(N%8) block(N/8%3)");
    y = read("reg(N%12) block(N/12%2)");
    ck_assert_int_eq(layout_move(&x, &y, 32), MOVE_CLUSTER);
}

static const struct {
    const char *from, *to;
    int bits;
    LayoutMove move;
} pairs[] = {
    // scores as weights: in place
    {"reg(N%2, M/8%2, N/8%8) lane(N/2%4, M%8) warp(M/16%4)",
     "reg(N%2, M/8%2, N/8%8) lane(N/2%4, M%8) warp(M/16%4)", 16, MOVE_NOTHING},
    // WMMA's scores as weights
    {"reg(N/2%16) lane(M%16, N%2)", "reg(N%32) lane(M%16, 2)", 16, MOVE_SHUFFLE},
    {"reg(N%32) lane(M%16, 2)", "reg(N/2%16) lane(M%16, N%2)", 16, MOVE_SELECT},
    // rows and columns change places in a warp, and among four
    {"reg(N%2, M/8%2, N/8%2) lane(N/2%4, M%8)", "reg(M%2, N/8%2, M/8%2) lane(M/2%4, N%8)", 16,
     MOVE_SHUFFLE},
    {"reg(N%2, M/8%2, N/8%8) lane(N/2%4, M%8) warp(M/16%4)",
     "reg(M%2, N/8%2, M/8%8) lane(M/2%4, N%8) warp(N/16%4)", 16, MOVE_SHARED},
    // a vector from rows to columns
    {"reg(M/8%2) lane(4, M%8)", "reg(M%2, M/8%2) lane(M/2%4, 8)", 32, MOVE_SHUFFLE},
    {"reg(N%2, N/2%2)", "reg(N/2%2, N%2)", 16, MOVE_HALVES},
    {"reg(N%2, N/2%2, M%2)", "reg(N%2, M%2, N/2%2)", 16, MOVE_RENAME},
};

TEST_EACH(conversions_of_attention, 0, sizeof pairs / sizeof *pairs) {
    Layout from = read(pairs[_i].from), to = read(pairs[_i].to);
    ck_assert_int_eq(layout_move(&from, &to, pairs[_i].bits), pairs[_i].move);
}
