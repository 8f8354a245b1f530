// tile_shared.h: how tiles lie in shared memory, and where.
//
// A matrix has rows, whose elements (along its columns) follow each other. Order of pieces of 16 bytes:
//
//     padded  rows are 16 bytes further apart than they are long: eight rows lie in different banks
//     panels  128 bytes of all rows, then the next 128 of all; a row's pieces are permuted by its number
//             modulo 8, as tensor copies leave them and warpgroups' products want them. In bands: so 8 rows, then the next 8
//     chunks  the columns are what products contract; pieces are permuted as codegen/amdgpu says
//     blocks  as a tensor that is `blocked`: 16 rows and 8 columns, then the next 8 columns (tile_blocks.h)
//
// A vector follows itself. Strips (HOME_STRIP) lie behind all else, those of different blocks in one
// place: numbers of a step that belong to keys or diagonals, once for each group of threads that shares
// rows.
#ifndef IR_TILE_SHARED_H
#define IR_TILE_SHARED_H

#include "tile.h"

enum {
    HOME_PIECE = 16,
    HOME_PANEL = 64,   // columns of a panel, of two bytes,
    HOME_PITCH = 128,  // bytes of its rows
    HOME_ROWS = 8,     // after which a panel's pattern repeats
    HOME_AHEAD = 2,    // tiles of the grid that a producer may be ahead,
    HOME_ANSWERS = 4,  // and a cluster's first block of the others
    HOME_HANDING = 40, // registers of the producer's warps with which one of them hands sums over
};

typedef enum TileOrder {
    ORDER_PADDED,
    ORDER_PANELS,
    ORDER_CHUNKS,
    ORDER_BLOCKS,
    ORDER_THREADS
} TileOrder;

typedef struct TileShared { // of a value in shared memory
    TileOrder order;
    int row_axis, col_axis; // -1: none
    int rows, cols;
    int elem;        // bytes of an element
    int pitch;       // from row to row, in a panel
    int band;        // panels: rows that follow each other in one, all of them or HOME_ROWS
    int bytes;       // of one stage
    bool paired;     // chunks: halves of one are columns that a lane of an MFMA multiplies together
    bool transposed; // chunks: columns are not what is contiguous in the tensor
} TileShared;

TileShared tile_shared(const TileProgram *p, const TileKernel *k, const TileValue *v);

// Panels: columns of one, bytes from a panel to the next, and from 8 rows to the next.
int tile_panel_columns(const TileShared *t);
int tile_panel_bytes(const TileShared *t);
int tile_rows_bytes(const TileShared *t);
// Of a pipe: whether each stage has a word, how many of its rows are the sequence's.
bool tile_tells_ends(const TileProgram *p, const TileKernel *k, const TileValue *pipe);

bool tile_has_roles(const TileKernel *k);
bool tile_by_groups(const TileKernel *k); // without roles, but products are those of warpgroups
// The bytes that a block needs. In a kernel of a chunk's gradients, which has no loop, what is made lies where a tile was that nothing reads
// behind the last barrier. offset: by TileValue.id, -1: not in shared memory; may be NULL. barriers:
// where those of a kernel in roles begin, behind all values; may be NULL. They are two for each stage of a
// pipe, two more, and those of the rings of tiles; what the rings hold comes behind, and what warps note of sums.
int tile_shared_layout(const TileProgram *p, const TileKernel *k, int *offset, int *barriers);

// Of a buffer that sums go through, whose parts are each a warp's own: panels of the warp's 16 rows for which such a part has
// room. 0: none, or it is no such buffer.
int tile_own_panels(const TileProgram *p, const TileKernel *k, const TileValue *buffer);
// Whether a warp of the producer hands over what is in such a buffer: it has registers for that, and nothing else to do, as where sequences are
// looked for.
bool tile_hands_over(const TileProgram *p, const TileKernel *k);
// Whether sums go through it.
bool tile_is_summed(const TileKernel *k, const TileValue *buffer);

// Reductions over an axis that warps share go through the end of a block's shared memory: its bytes, two halves that operations use
// by turns, each with a number for each row and each part of the warps. 0: there are none.
int tile_crossing_bytes(const TileKernel *k);

// ---- strips
bool tile_is_strip(const TileOp *op);                          // op may be NULL
int tile_strip_warps(const TileKernel *k);                     // that share one
int tile_strip_rows(const TileKernel *k, const TileValue *v);  // of theirs, where v is of diagonals
int tile_strip_count(const TileKernel *k, const TileValue *v); // numbers of a group's
int tile_strip_pitch(const TileKernel *k, const TileValue *v); // bytes of them

#endif
