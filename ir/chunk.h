// chunk.h: the chunked form of a recurrence, derived by passes/derive/chunk.c (docs/derivation.md).
//
// A step reads the state and writes to it. Reads are the query and what is erased, writes the key and `write`. With
// u_t = erase_t . S_{t-1}, w_i the writes (one or two) and G(p, j) the product of the decays behind j up to p:
//
//     x_i,t = value_i,t v_t + erased_i,t u_t                             S_t = decay_t S_{t-1} + sum_i w_i,t (x) x_i,t
//
// In a chunk of C positions with the state S0 before it, <r, w>(t, j) = sum over channels of r_t G(p_t, j) w_j:
//
//     u_t = E_t S0 + sum_i sum over j < t of <erase, w_i>(t, j) x_i,j    E, Q: reads times the decays from the chunk's start
//     o_t = Q_t S0 + sum_i sum over j <= t of <query, w_i>(t, j) x_i,j   with a bonus j < t, and + sum(query bonus key) v_t
//     S1  = G(C, 0) S0 + sum_i W~_i' x_i                                 W~: writes times the decays from behind them to the end
//
// p_t is t where a read is of S_t, t - 1 where it is of S_{t-1}. Merged: where `write` has the key's elements there is one
// write, x = value v + erased u. Every read and write is `elem` (what a tile holds: q or k as they are, where it can be) times
// a number of the row, which goes to the rows and columns of scores, to v and to u.
//
// Decays are exponents: the product of some is exp2 of a sum. One below CHUNK_ZERO is 0: it forgets all before, also what is
// infinite, so that what it decays is selected away and not multiplied.
//
// Combine: a part of the positions maps S to Phi S + Psi; two make Phi2 Phi1 and Phi2 Psi1 + Psi2. Without erase Phi is the
// product of the decays; with it, the state of the same recurrence with values 0 that began at the identity.
#ifndef IR_CHUNK_H
#define IR_CHUNK_H

#include "rec.h"

enum { CHUNK_ZERO = -126 }; // powers of two below are subnormal, and count as 0

typedef struct ChunkRead {
    const Ex *elem, *number; // NULL: there is none
    bool before;             // of S_{t-1}: writes j < t
    bool decayed;            // before: times the decay of t, p_t = t
} ChunkRead;

typedef struct ChunkWrite {
    const Ex *elem;
    const Ex *value, *erased; // numbers of the row: of v and of u; NULL: not in it
} ChunkWrite;

typedef struct Chunk {
    const RecProgram *rec; // with what decides under `rounded`
    ChunkRead query, erase;
    int nwrites;
    ChunkWrite write[2]; // the first has the key
    const Ex *value;     // elements of v
    const Ex *bonus;     // NULL: none
    const Ex *decay;     // log2 of it; NULL: it is 1
    bool channel;        // a decay for each channel
    bool fixed;          // the same at every position
} Chunk;

// As text for --emit=row (after the recurrence program).
void chunk_print(Text *out, const Chunk *c);

#endif
