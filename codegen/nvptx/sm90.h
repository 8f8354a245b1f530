// sm90.h: what the sm_90a lowering shares between its files: pipes in shared memory and their
// barriers, the state of the current role, and the instructions of that device.
//
// A block is one warpgroup for the producer, of which a single thread runs, and some of consumers. A consumer's fragments are nvptx.h's with one m16 tile a warp: wgmma leaves its
// result so. Operands of wgmma lie in shared memory as the tensor copies leave them: panels of 128
// bytes a row, one after the other, the 16-byte pieces of a row permuted by its number modulo 8.
#ifndef CODEGEN_NVPTX90_H
#define CODEGEN_NVPTX90_H

#include "codegen/nvptx/nvptx.h"

enum {
    NV90_GROUP = 128, // threads of a warpgroup
    NV90_CLUSTER = 2, // blocks, at most: who tells and copies to "the other" knows one
};

typedef struct Nv90Product Nv90Product;

// Allocas of a role: the stage that comes next, and the parity of its barrier.
typedef struct Nv90Walk {
    Val stage, parity;
} Nv90Walk;

typedef struct Nv90Pipe {
    const TileValue *ring;
    TileShared tile;
    int data, full, empty; // bytes from the start of shared memory
    int readers;           // warpgroups that drop a stage
    const TileOp *giver;   // the role that computes what fills it; NULL: copies do
    bool by_threads;       // the producer's threads copy what fills it, piece by piece
    bool boxes;            // or box by box, where all of it is in pages
    int leader;            // which pipe's stages and barriers a vector has; -1: its own
    int ends;  // words of its stages, which say how many rows are the sequence's; 0: none
    int bytes; // that fill a stage, with those of vectors
    Nv90Walk fills, takes; // of the current role, which may take what it gives;
    int with; // the pipe that the role takes from before each of these: its stages and parities are the same; -1: none
    Nv90Walk last; // allocas: of the stage taken last
    Val place;     // i64: of the ring, as descriptors want it
} Nv90Pipe;

typedef struct Nv90Map { // a tensor map among the kernel's arguments
    int tensor, rows;    // of its box
} Nv90Map;

typedef struct Nv90Wide { // a narrow fragment whose pairs are still two f32 each
    CgValue *value;
    Dtype dtype;
    Val *elements;
    bool sigmoids; // pairs are begun, not two f32
} Nv90Wide;

typedef struct Nv90Two { // neighbours of a vector that came through a pipe
    const TileValue *v;
    int first;
    Val both;
    Blk in; // where they were read
} Nv90Two;

typedef struct Nv90Asked { // a part of a condition
    const Ex *e;
    Val v;
} Nv90Asked;

typedef struct Nv90Point { // of the grid
    Val at[TILE_MAX_GRID], valid;
} Nv90Point;

typedef struct Nv90 { // of a kernel with roles
    VEC(Nv90Pipe) pipes;
    VEC(Nv90Map) maps;
    VEC(CgValue *) flight;    // what products make that have not landed
    int done;                 // a barrier that reads as complete at parity 1, always
    int nobody;               // one that nobody waits for
    int over;                 // one that is complete once the block has no more tiles
    int notes;                // what warps say of sums (sm90_add.c)
    int numbers, told, heard; // tiles in shared memory and their barriers, HOME_AHEAD of each
    int asked, answers;       // clusters: barriers and numbers, HOME_ANSWERS of each (sm90_tiles.c)
    int blocks;               // of a cluster
    Val rank;                 // i32: which of them this is; NULL: there is one
    int warpgroups;           // of all roles
    bool all_produce;         // all threads of the producer run; otherwise one does
    // of the role at hand
    const TileOp *role;
    int first_group;
    Val group, lead;              // warpgroup within the role; i1: its first thread
    Val note;                     // alloca: which of a warp's notes comes next; NULL: none does
    const TileOp *announced;      // what the last one is of
    Val turn;                     // alloca: how many tiles were begun
    Val shared;                   // alloca: which of two stages of what maps share is made next
    Val ahead;                    // alloca, producer: the number of the tile after the current one
    Val total;                    // i32, of the producer: points of the grid
    Val takers;                   // blocks that take tiles; NULL: all of the grid
    Nv90Point now;                // allocas: what the symbols mean
    Nv90Point behind;             // before the last `next`
    const Nv90Product *chain;     // products that the next one goes on with
    Val chain_full, chain_parity; // and what was taken behind them
    bool unseen; // what the role's warps share was written, and no barrier stands behind that yet
    Val *stage;  // of views, by TileValue.id: i32
    Val *rows;   // i64, likewise: the warpgroup's rows of one that holds rows
    VEC(Nv90Wide) wide;        // what is not packed yet
    VEC(Nv90Two) two;          // that the map at hand has read
    int counted, counted_axis; // elements along that axis that maps make; 0: all
    const TileOp *known_in;    // the loop before which was asked
    VEC(Nv90Asked) known;      // what does not differ from step to step
} Nv90;

static inline Nv90 *nv90_state(Cg *cg) { return nv_state(cg)->roles; }

// ---- what operations ask (sm90_state.c)
Nv90Pipe *nv90_pipe(Cg *cg, const TileValue *v); // of a ring or a view
Val nv90_shared(Cg *cg, int offset);             // address
Val nv90_map_param(Cg *cg, int tensor, int rows);
// Whether each block of a cluster copies a part to all, and so many rows.
bool nv90_goes_everywhere(Cg *cg, const TileShared *t);
int nv90_copied_rows(Cg *cg, const TileShared *t);
// Of what the producer's threads fill: the rows of a box; 0: there are no boxes.
int nv90_box_rows(const Cg *cg, const TileOp *op);
void nv90_group_sync(Cg *cg);                       // the warpgroup
void nv90_role_sync(Cg *cg);                        // all of the role
Val nv90_has_elements(Cg *cg, const TileTensor *t); // i1

// ---- the frame (sm90_frame.c)
// Before the function is made: adds arguments. barriers: where they begin in shared memory.
void nv90_prepare(Cg *cg, int barriers);
void nv90_enter(Cg *cg); // at the function's beginning: barriers

// ---- operations; the dispatcher is on top (sm90.c)
void nv90_op(Cg *cg, const TileOp *op);
void nv90_fill(Cg *cg, const TileOp *op); // sm90_pipes.c
// Rows that follow each other, of which those behind the sequence's last are outside (runtime/abi.h): the first coordinate along d; *end:
// which row is behind the last, where the map has to know it (nv90_cut puts it before the others; the rank then).
Val nv90_run(Cg *cg, const TileOp *op, int d, Val *end);
int nv90_cut(Cg *cg, Val *at, int rank, Val end);
int nv90_ends(const Cg *cg,
              const TileOp *op); // 1 + the dimension whose rows end with their sequence; 0: none
void nv90_give(Cg *cg, const TileOp *op);
void nv90_write_threads(Cg *cg, const TileValue *v, Val stage); // sm90_threads.c
void nv90_write_rows(Cg *cg, const TileValue *v, Val stage);    // numbers of rows
// An element of a matrix that came through a pipe from the same thread of another role, which a map has in such a layout.
Val nv90_given(Cg *cg, const TileValue *v, int layout, const int *part);
void nv90_take(Cg *cg, const TileOp *op);
void nv90_drop(Cg *cg, const TileOp *op);
void nv90_view(Cg *cg, const TileOp *op);
void nv90_beside(Cg *cg, const TileOp *op); // some columns of a tile of a pipe
void nv90_tiles_begin(Cg *cg);              // sm90_tiles.c: a role begins
void nv90_next(Cg *cg, const TileOp *op);
void nv90_tiles(Cg *cg, const TileOp *op);
void nv90_behind(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op));
void nv90_at(Cg *cg, const TileOp *op);   // sm90_first.c
void nv90_redo(Cg *cg, const TileOp *op); // sm90_redo.c
void nv90_ask_before(Cg *cg, const TileOp *loop);
Val nv90_few(Cg *cg, const TileOp *op); // i1: only the first elements count (ir/tile.h)
void nv90_map_walk(Cg *cg, CgWalk *m);  // sm90_map.c: all elements
// A number of a vector that came through a pipe, of an element of the map at hand.
Val nv90_number(Cg *cg, const TileValue *v, int layout, int column);
void nv90_keep_pair(Cg *cg, const CgWalk *m, int result, Val low, Val high);
void nv90_mma(Cg *cg, const TileOp *op);       // sm90_mma.c
void nv90_group_mma(Cg *cg, const TileOp *op); // sm90_group.c: of a kernel without roles
void nv90_group_wait(Cg *cg);                  // for the one that is asynchronous
void nv90_mma_wait(Cg *cg, int pending);
void nv90_do_within(Cg *cg, const TileOp *map, TileKind kind); // behind its wait
void nv90_pack(Cg *cg);                                        // all that is wide
// Nothing moves across it; held: numbers of rows that what comes behind it is made of.
void nv90_pinned_wait(Cg *cg, const TileOp *map, Val *held, int n);
bool nv90_is_left(Cg *cg, const TileValue *v);     // the left one of some product
Val nv90_left(Cg *cg, const TileValue *v);         // of the warpgroup's rows of a left one
void nv90_store_through(Cg *cg, const TileOp *op); // sm90_store.c
void nv90_add_through(Cg *cg, const TileOp *op);
void nv90_add_blocks(Cg *cg, const TileOp *op); // without a buffer
// A narrow matrix in registers, to panels; its rows are the tile's, or the tile's columns.
void nv90_write_matrix(Cg *cg, const TileValue *v, const TileShared *tile, Val base);
// A map's elements to its place in shared memory, for products of the warpgroup or the role.
void nv90_share(Cg *cg, const TileOp *map);
void nv90_stores_end(Cg *cg);
// Sums through a buffer (sm90_add.c). Where the next ones go to; at the end of a tile, and of all; what a warp of the producer does. The
// buffer for other stores at the end of a tile.
void nv90_begin_notes(Cg *cg);
void nv90_announce(Cg *cg, const TileOp *store);
void nv90_tile_is_summed(Cg *cg);
void nv90_sums_end(Cg *cg);
void nv90_hand_over(Cg *cg);
void nv90_own_buffer(Cg *cg);
// Sums that are converted while the nest runs (sm90_finish.c). Where a tile's are told of. What the producer's idle
// warps do. Of the kernel behind: whether its tile is not converted yet.
Val nv90_told(Cg *cg);
void nv90_finish(Cg *cg);
Val nv90_is_left_over(Cg *cg);

// ---- instructions (sm90_ops.c). Addresses are i32 in shared memory.
Val nv90_if(Cg *cg, Val condition); // i1 -> i32, for the asm forms with a predicate
void nv90_barrier_init(Cg *cg, Val barrier, int count);
void nv90_barrier_fence(Cg *cg); // initialised barriers are seen by the copy engine
void nv90_barrier_wait(Cg *cg, Val barrier, Val parity);
Val nv90_barrier_test(Cg *cg, Val barrier, Val parity);  // i1: whether the wait would be over
void nv90_barrier_arrive(Cg *cg, Val barrier, Val when); // when: i1 or NULL
Val nv90_remote(Cg *cg, Val address, Val rank); // the same place in another block of the cluster
void nv90_remote_arrive(Cg *cg, Val barrier, Val when);   // barrier: remote
void nv90_barrier_arrive_for(Cg *cg, Val barrier, int n); // n threads
void nv90_barrier_copied(Cg *cg, Val barrier);            // arrives once this thread's copies have
void nv90_wait_copied(Cg *cg);                            // until this thread's pieces are there
void nv90_remote_tell(Cg *cg, Val to, Val word, Val barrier); // stores, and arrives behind it
void nv90_remote_wait(Cg *cg, Val barrier, Val parity);       // own; for what others tell
void nv90_cluster_sync(Cg *cg);
void nv90_barrier_expect(Cg *cg, Val barrier, Val bytes); // arrives and announces the bytes
void nv90_bar_sync(Cg *cg, Val id, int threads);          // named barriers
void nv90_bar_arrive(Cg *cg, Val id, int threads);
// everywhere: to all blocks of a cluster of two, the same place and barrier in each.
void nv90_bulk_load(Cg *cg, Val to, Val map, Val barrier, const Val *at, int rank, Val when,
                    bool everywhere);
void nv90_bulk_prefetch(Cg *cg, Val map, const Val *at, int rank); // into the L2 cache
void nv90_bulk_store(Cg *cg, Val map, Val from, const Val *at, int rank, Val when);
void nv90_bulk_commit(Cg *cg);
// All of this thread's stores but the last ones have read their source.
void nv90_bulk_wait_read(Cg *cg, int but);
void nv90_bulk_wait(Cg *cg, int but); // and have written what they write
void nv90_add_words(Cg *cg, Val to, const Val x[4],
                    Val when); // f32 to global memory, at a multiple of 16 bytes; when: i1
// Adds f32 to global memory, at a multiple of 16 bytes; when: i1.
void nv90_bulk_add(Cg *cg, Val to, Val from, Val bytes, Val when);
void nv90_prefetch_map(Cg *cg, Val map);
void nv90_stmatrix(Cg *cg, Val to, const Val x[4], bool transposed);
void nv90_proxy_fence(Cg *cg); // what was stored to shared memory is seen by the copy engine
void nv90_set_registers(Cg *cg, int count, bool more);
void nv90_warp_sync(Cg *cg);
Val nv90_elect(Cg *cg); // i1: one thread of the warp
// On for one thread of the role's first warp; where the others go. ptxas then knows that it is one, and issues copies without a loop around each.
Blk nv90_one(Cg *cg);
void nv90_load_words(Cg *cg, Val from, Val v[4]); // i32, at a multiple of 16 bytes
void nv90_store_words(Cg *cg, Val to, const Val v[4]);
void nv90_store_words_if(Cg *cg, Val to, const Val v[4], Val when);
// Behind all that the thread knows to be written, 1 is added to an f32; who hears the sum, and then says so, sees that. Addresses are global.
void nv90_tell(Cg *cg, Val to);
Val nv90_hear(Cg *cg, Val from);
void nv90_heard(Cg *cg);
void nv90_rest(Cg *cg, int ns);
Val nv90_count_up(Cg *cg, Val counter, Val last); // the old value; wraps to 0 after `last`
// A shared operand: leading and stride byte offsets as wgmma's descriptors want them.
Val nv90_place(Cg *cg, Val address); // i64, of a descriptor
Val nv90_descriptor(Cg *cg, Val place, int leading, int stride);
void nv90_wgmma_wait(Cg *cg, int pending, Val *tied, int n);
// x (f32), which the assembler takes to be made of what a product has left; small: i32, below 2^16,
// which it cannot know.
Val nv90_behind_landed(Cg *cg, Val x, Val landed, Val small);

struct Nv90Product { // one group of wgmmas over the contracted axis, 16 at a step
    Dtype dtype;
    int columns, steps;                // of the result; k-steps
    Val left, right;                   // descriptors; left NULL: from registers
    const Val *registers;              // 4 for each step
    const int *left_step, *right_step; // what to add to a descriptor at each step
    bool words;           // descriptors are their lower words, i32; the upper ones are alike
    bool transposed;      // the contracted axis runs along the right operand's rows
    bool left_transposed; // along the left one's, in shared memory
    bool accumulate;      // acc holds what to add to
    int most; // columns of an instruction; those of the next ones lie `beyond`, in a descriptor's units
    int beyond;
    Val middle; // i64: the right operand from its second instruction on, in every second one; NULL: as the first
    Val *acc; // columns / 2, in and out
    Val few;  // i1, the same in the warpgroup: only so many columns and steps count; NULL: all do
    int few_columns, few_steps;
    const Nv90Product
        *before;      // whose sum it goes on with, in the same registers; NULL: there is none
    Val full, parity; // what it waits for behind that; NULL: for nothing
};
// Steps [from, to) in one block of assembly: the first begins with a fence, the last ends the group.
void nv90_wgmma(Cg *cg, const Nv90Product *p, int from, int to);

#endif
