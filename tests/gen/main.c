// main.c: random variants (gen.h) through every stage (differ.h).
//
//     check_gen [FIRST-SEED [COUNT]]
//
// A failure prints its seed, the stage, and the variant after reduction; `check_gen SEED 1` runs it
// again.
#include "gen.h"
#include "tests/support/differ.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct Trial {
    uint64_t seed;
    Stage stage; // to be kept while reducing
    Arena *arena;
} Trial;

static const char *offset_text(Arena *a, const GenShape *s) {
    return arena_printf(a, "%d", s->q_offset);
}

static Stage stage_of(Arena *a, const GenProgram *p, uint64_t seed, FILE *log) {
    const GenShape *s = &p->shape;
    static const Dtype dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_F32, DT_F16, DT_F32};
    Text t;
    text_init(&t, a);
    gen_print(&t, p);
    char *shape = arena_printf(a, "B=%d,H=%d,Hkv=%d,Sq=%d,Sk=%d", s->B, s->H, s->Hkv, s->Sq, s->Sk);
    if (gen_uses(t.s, "NT")) shape = arena_printf(a, "%s,NT=%d", shape, s->NT);
    Differ d = {.source = t.s,
                .name = "random.attn",
                .shape = shape,
                .offset = offset_text(a, s),
                .dtype = dtypes[seed % 6],
                .level = (int)(seed % 4),
                .interpret = true,
                .log = log};
    return differ_run(&d);
}

static bool fails(void *ctx, const GenProgram *p) {
    const Trial *t = ctx;
    Arena *a = arena_new();
    Stage s = stage_of(a, p, t->seed, NULL);
    arena_free(a);
    return s == t->stage;
}

static bool one(uint64_t seed) {
    Arena *a = arena_new();
    GenProgram p;
    gen_program(&p, a, seed);
    Trial trial = {seed, stage_of(a, &p, seed, stdout), a};
    if (trial.stage != STAGE_NONE) {
        Text t;
        gen_reduce(&p, a, fails, &trial, 300);
        text_init(&t, a);
        gen_print(&t, &p);
        printf("FAILED: seed %llu, stage %s; B=%d,H=%d,Hkv=%d,Sq=%d,Sk=%d,NT=%d q_offset=%d\n%s",
               (unsigned long long)seed, stage_name(trial.stage), p.shape.B, p.shape.H, p.shape.Hkv,
               p.shape.Sq, p.shape.Sk, p.shape.NT, p.shape.q_offset, t.s);
        stage_of(a, &p, seed, stdout);
        fflush(stdout);
    }
    arena_free(a);
    return trial.stage == STAGE_NONE;
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             n = argc > 2 ? strtoull(argv[2], NULL, 10) : 200;
    int passed = 0, failed = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (one(seed))
            passed++;
        else
            failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
