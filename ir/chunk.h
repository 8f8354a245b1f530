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

// The backward of a chunk (passes/derive/chunk_back.c). The gradient of the state goes from a chunk to the one before, by the same
// recurrence in reverse time: what wrote reads, what read writes. With F1 the gradient of the state behind the chunk, dO that of o
// before `output` times query.number, s the write that has u, c = erase.number erased_s, ' a transpose:
//
//     dx_i = sum over reads of <read, w_i>' (what comes there) + W~_i F1         what comes: dO for the query, c dx_s for erase
//     dx_s = (I - N')^-1 (the same without erase), N = c <erase, w_s>            F0 = G(C, 0) F1 + Q' dO + E' (c dx_s)
//     z_q, z_e = gradients of elements of reads, of dO without its number and of dx_s:
//         z_t = sum_i sum over j of (g_t . x_i,j) G(p_t, j) w_i,j + G(p_t, 0) S0 g_t
//     dw_i,j = sum over reads (number_t g_t . x_i,j) G(p_t, j) r_t + G(C, j) F1 x_i,j
//     dl_s   = sum over reads with p_t >= s of r z - sum over writes j >= s of w dw (within the chunk)
//              + sum over writes j < s of w dw (of F1) + G(C, 0) <F1, S0>         by channel, or summed over channels
//
// The pieces of the clauses then take their gradients on to q, k, v and inputs.
typedef enum ChunkPieceId {
    PIECE_QUERY,   // elements, [T, D]
    PIECE_QUERY_N, // numbers, [T]
    PIECE_ERASE,
    PIECE_ERASE_N,
    PIECE_WRITE,
    PIECE_WRITE2,
    PIECE_VALUE_N,
    PIECE_ERASED_N,
    PIECE_VALUE, // [T, E]
    PIECE_BONUS, // [T, D]
    PIECE_DECAY, // [T], or [T, D] of channels
    PIECE_OUTPUT,
    PIECE_COUNT
} ChunkPieceId;

typedef struct ChunkSlope { // the derivative of a piece
    const Ex *of; // by SYM_Q, SYM_SQQ, .., SYM_O, SYM_SQO, or by the LOAD or SCALAR of an input
    int input;    // -1: none
    const Ex *by;
} ChunkSlope;

typedef VEC(ChunkSlope) ChunkSlopes;

typedef struct ChunkBack {
    const Chunk *c;
    ChunkSlopes piece[PIECE_COUNT];
    // The decay's slopes are of its exponent: where it is 0, so is its gradient. Otherwise of the decay itself.
    bool by_exponent;
    bool at_zero; // a decay of 0 has a gradient: that of the number, <F_t, S_{t-1}>
} ChunkBack;

// As text for --emit=row (after the recurrence program).
void chunk_print(Text *out, const Chunk *c);

#endif
