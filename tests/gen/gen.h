// gen.h: random variants, each from one seed. A variant is kept as trees so that a failing one can
// be reduced.
#ifndef TESTS_GEN_H
#define TESTS_GEN_H

#include "tools/options.h"

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

typedef enum GenScale {
    GEN_SMALL,  // for the interpreters, which are slow
    GEN_DEVICE, // around tiles; of a third several tiles of keys, many tiles of queries, few queries
} GenScale;

typedef struct GenProgram {
    GenShape shape;
    GenNode *score, *modify, *mask, *result, *output; // modify, mask, output may be NULL
    GenNode *unless;   // modify gives `least` where this holds; may be NULL
    const char *least; // -inf, or what stands for it elsewhere
    bool added;        // and that is added to the score
    bool whole;        // q and k hold small whole numbers: dots are exact in every order of adding
    int nlets;
    GenLet let[GEN_MAX_LETS];
} GenProgram;

// One variant with all that the command needs to run it.
typedef struct GenCase {
    const char *source, *shape;
    Options options; // in, seed
    Dtype dtype;
    TargetId target;
    int level;
    bool by_rows; // q, k, v and o as [B, S, H, D] in memory
} GenCase;

void gen_program(GenProgram *p, Arena *a, uint64_t seed, GenScale scale);
// targets: of which the seed chooses.
void gen_case(GenCase *c, Arena *a, const GenProgram *p, uint64_t seed, const TargetId *targets,
              int ntargets);
// The variant as source; inputs that nothing reads are not declared.
void gen_print(Text *out, const GenProgram *p);
// As a .attn file whose first line is the command that shows the failure.
void gen_print_case(Text *out, const GenCase *c);
// Whether a word stands in a source.
bool gen_uses(const char *source, const char *word);
// Makes p smaller while fails(ctx, p) stays true, with at most `budget` calls of it.
void gen_reduce(GenProgram *p, Arena *a, bool (*fails)(void *ctx, const GenProgram *p), void *ctx,
                int budget);

#endif
