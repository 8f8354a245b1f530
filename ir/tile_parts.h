// tile_parts.h: sums of rows that stay divided among the threads that share a row.
//
// Such are a map's row sums, and what is linear in them:
//
//     %lt parts = map .. rowsum of ..      %l1 parts = map (%l, %c, %lt) { fma(%l, %c, %lt) }
//
// so that a loop which only adds and scales sends nothing from thread to thread. A use that is not
// linear gets the whole sum. What is loaded, or the same as a
// whole number (`%l parts = map (%x) { %x }`), is the part of one thread, and those of the others are 0. A choice between two such sums by what is the same for the whole row
// (select(M.pos < Sq, %l, 0.0)) is as linear as they are. In the interpreter a number is a number: the mark changes nothing.
#ifndef IR_TILE_PARTS_H
#define IR_TILE_PARTS_H

#include "tile.h"

// Whether an op takes operands in parts as they are. A map: every result that depends on them is
// linear in them, and in parts itself; otherwise it takes whole sums. REDO does: of each part it is
// asked how large it is.
bool tile_takes_parts(const TileOp *op);
// Whether a map's result, if it is in parts, is a whole number again: the part of one thread.
bool tile_first_has_all(const TileOp *map, int result);
// Two values around an op (or one twice) whose marks do not go together: what a loop or a block
// carries on is in parts everywhere or nowhere, and a map's result where tile_parts.c says. False:
// there are none.
bool tile_parts_conflict(const TileOp *op, TileValue *out[2]);

#endif
