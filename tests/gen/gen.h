// gen.h: random variants, each from one seed. A variant is kept as trees so that a failing one can
// be reduced.
#ifndef TESTS_GEN_H
#define TESTS_GEN_H

#include "ir/arena.h"
#include <stdbool.h>
#include <stdint.h>

enum { GEN_MAX_LETS = 6, GEN_MAX_KIDS = 4 };

typedef struct GenNode GenNode;
struct GenNode {
    char what;        // nonterminal
    const char *text; // template; '@' already replaced
    int nkids;
    GenNode *kid[GEN_MAX_KIDS];
};

typedef struct GenLet {
    const char *name;
    bool emit;
    GenNode *value; // NULL: taken out by the reducer
} GenLet;

typedef struct GenShape {
    int D, Dv, B, H, Hkv, Sq, Sk, NT, q_offset;
} GenShape;

typedef struct GenProgram {
    GenShape shape;
    GenNode *score, *modify, *mask, *result, *output; // modify, mask, output may be NULL
    GenNode *unless;   // modify gives `least` where this holds; may be NULL
    const char *least; // -inf, or what stands for it elsewhere
    bool added;        // and that is added to the score
    int nlets;
    GenLet let[GEN_MAX_LETS];
} GenProgram;

void gen_program(GenProgram *p, Arena *a, uint64_t seed);
// The variant as source; inputs that nothing reads are not declared.
void gen_print(Text *out, const GenProgram *p);
// Whether a word stands in a source.
bool gen_uses(const char *source, const char *word);
// Makes p smaller while fails(ctx, p) stays true, with at most `budget` calls of it.
void gen_reduce(GenProgram *p, Arena *a, bool (*fails)(void *ctx, const GenProgram *p), void *ctx,
                int budget);

#endif
