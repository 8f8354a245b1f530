// gradients.h: what the files that build backward programs share: the kernel under construction, its loads and stores, gradients of
// inputs (gradients.c), and those of the rows that products are made of (gradient_rows.c).
#ifndef PASSES_GRADIENTS_H
#define PASSES_GRADIENTS_H

#include "passes/derive/backward.h"
#include "passes/tile/build.h"

// A row of the queries as products see it, where its channels have a factor: the kernel `delta` leaves it for the others.
typedef struct Seen {
    int row;
    const Ex *factor;
    int tensor;
} Seen;

// What is summed up for the gradient of a row: products of the gradients of dots with the rows that it meets, or the gradient of its
// squared norm, a number.
typedef struct Part {
    int row, seen; // -1: it is met as it is
    bool norm;
} Part;
typedef VEC(Part) Parts;

typedef struct Nest {
    Build b;
    const Backward *back;
    Dtype dtype;
    int tensor_do, tensor_dq, tensor_dk, tensor_dv;
    int sums[ROW_SIDES]; // what is added to for dq and dk
    VEC(Seen) seen;
    Parts parts[ROW_SIDES];
    bool pieces[ROW_SIDES]; // dq or dk is added up of several tensors' columns
    int tensor_doa; // the gradient of what is aggregated, where it is made of that; -1: kernels make it of do
    int tensor_wild; // how many rows are not tame; -1: nobody asks
    int *row;        // by row scalar: its tensor, -1: it stays in the kernel `delta`
    int *near;       // the same as the nest of a GPU loads it: rows begin at a multiple of 16 bytes
    int *demit;      // by emit
    int *grad;       // by input; -1
    int *adds; // where kernels add it up: the same, or exact sums, of which a last kernel makes it
    const Ex *head;  // of the queries; NULL: h
    const Ex *takes; // bool: the pair takes part
    bool exact;      // gradients of inputs have the same bits in every run
    bool by_keys;    // rows of the kernel are keys: what is of a query is read at the pair
    // A tile may be added to one element: each block adds up the rows that are its own.
    bool by_element;
} Nest;

typedef struct Pair {         // of the pairs of a tile
    TileValue *w, **products; // as Backward.products
} Pair;

const Ex *grad_head(Nest *n); // of the queries
// With the heads of the kernel, and numbers of queries where they are read.
const Ex *grad_placed(Nest *n, const Ex *e);
TileValue *grad_map(Nest *n, const char *name, Dtype t, int x, int y, const Ex *e);
TileValue *grad_load(Nest *n, const char *name, int tensor, const Ex *head, AxisRole rows,
                     int columns);
TileOp *grad_store(Nest *n, int tensor, const Ex *head, AxisRole rows, int columns, TileValue *v,
                   bool add);
TileValue *grad_mma(Nest *n, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                    AxisRole rows, AxisRole columns);
TileValue *grad_sum_over(Nest *n, const char *name, int x, int y, AxisRole over, const Ex *e);
TileValue *grad_zeros(Nest *n, const char *name, int x, int y);
// x + y, of tiles with these axes.
TileValue *grad_plus(Nest *n, const char *name, TileValue *x, TileValue *y, AxisRole rows,
                     int columns);

// ---- of inputs
// Where the layout has what they add to; a sequence that has no such row gets nothing.
void grad_places(Nest *n, Backward *back);
bool grad_goes_along(Nest *n, const BackGrad *g, AxisRole axis, AxisRole other);
bool grad_scatters(Nest *n, const BackGrad *g, AxisRole other);
// Adds a tile. `rides`: an axis of the tile that no index goes along, of which all places are added to one; or AX_NONE.
void grad_store_input(Nest *n, const BackGrad *g, AxisRole other, int rides, TileValue *v);
// Adds a value of a tile of queries and of keys or columns, summed over the axes that the index does not go along.
void grad_add(Nest *n, const BackGrad *g, AxisRole other, const Ex *value);

// ---- of rows
void grad_find_rows(Nest *n);                           // seen, parts
bool grad_is_own(const Nest *n, RowSide side, int row); // of q or k
// Those of q or k, and row inputs; they are what SYM_Q and SYM_K stand for.
void grad_load_rows(Nest *n, RowSide side, const Ex *head, bool own, bool inputs);
TileValue *grad_dot(Nest *n, int dot);
TileValue *grad_squares(Nest *n, RowSide side, int row);
// What a tile adds to a part: to `sum` (NULL: to nothing). NULL: it adds nothing.
TileValue *grad_part(Nest *n, RowSide side, const Part *part, const Pair *p, TileValue *sum);
TileValue *grad_start(Nest *n, RowSide side, const Part *part);
// The gradients of the rows of q or k, or of inputs, of what their parts came to (by part; NULL: nothing): stored, or added.
void grad_give_rows(Nest *n, RowSide side, TileValue *const *sum, bool own, bool inputs, bool add);
void grad_give_values(Nest *n, const Ex *head, TileValue *dv);
void grad_leave_seen(Nest *n); // in the kernel `delta`

#endif
