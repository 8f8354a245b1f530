// rec.h: the recurrence program: a recurrence inlined to scalar mathematics, as row.h is for attentions. Made by
// frontend/lower.c from the typed AST, read by passes/derive/chunk.c. All functions, consts, lets and dims are gone;
// what is left are the clauses of a step, per batch entry b and head h of H:
//
//     S_t = decay_t * S_{t-1} + write_t (x) (erase_t . S_{t-1}) + key_t (x) value_t     (no erase and write: no middle term)
//     o_t = output(query_t . S_t)     with a bonus: output(query_t . (S_{t-1} + (bonus_t * key_t) (x) value_t))
//
// S is [D, Dv], 0 or state0 before the first step. A decay of 0 forgets all, also what is infinite. q, k and v have Hq,
// Hk and Hv heads; head h reads head h * Hx / H.
#ifndef IR_REC_H
#define IR_REC_H

#include "row.h"

enum { // the first entries of a recurrence's sizes; an attention's are SIZE_* of row.h
    RSIZE_B,
    RSIZE_H,
    RSIZE_HQ,
    RSIZE_HK,
    RSIZE_HV,
    RSIZE_S,
    RSIZE_FREE
};

void rec_sizes(Arena *a, SizeNames *s); // their names

// Clauses are f32 over B, H, T_IDX, sizes and inputs, and: query over Q, SQQ, D_IDX; key, erase and write over K, SQK, D_IDX;
// value over V, SQV, E_IDX; decay and bonus over D_IDX; output over O, SQO, E_IDX.
typedef struct RecProgram {
    Arena *arena;
    ExPool *pool;
    const char *name; // the recurrence's
    Span span;
    int D, Dv;
    SizeNames sizes;
    VEC(RowInput) inputs;
    const Ex *query, *key, *value, *decay, *output;
    const Ex *erase, *write, *bonus; // NULL: absent; erase and write both or neither
} RecProgram;

// The clauses that are there, in the order of the language's page, with their names; their number. Any may be NULL.
enum { REC_CLAUSES = 8 };
int rec_clauses(const RecProgram *p, const char *name[REC_CLAUSES], const Ex *clause[REC_CLAUSES]);

// The program as text (--emit=row), deterministic. Names for expressions of this program.
void rec_print(Text *out, const RecProgram *p);
ExNames rec_names(const RecProgram *p);

#endif
