// sequences.h: layouts in which sequences have lengths of their own: what a program's sizes, tensors and loads are there.
#ifndef PASSES_SEQUENCES_H
#define PASSES_SEQUENCES_H

#include "ir/tile.h"

typedef struct Places { // of a program: sizes, then inputs
    TileProgram *p;
    int queries, keys; // the sizes that rows are of: Sq and Sk; S and -1
    int group;         // heads that the rows of a tile have; 0: one
    int Tq, max_q, Tk, pages, page, table, slots, starts, offsets, indices, q_first, k_first, slot;
    int q_start, kv_start, kv_len, page_table, q_offset, state_index;
} Places;

void places_sizes(Places *at, TileProgram *p, int page); // those of launches
// Behind the inputs: what says where rows lie, and the sequences' sizes.
void places_index_tensors(Places *at);
// Extents: of rows, in place of all that the tensor has so far; of an input.
void places_rows(Places *at, TileTensor *t, bool keys);
void places_input(Places *at, const RowInput *in, TileTensor *t);
// Indices of a row of the sequence at hand; how many they are.
int places_query(Places *at, const Ex *query, const Ex **index);
int places_key(Places *at, const Ex *key, const Ex **index);
// An input's element, where the layout has it. query, key: those of the element at hand, or NULL.
const Ex *places_load(Places *at, const RowInput *in, const Ex *e, const Ex *query, const Ex *key);

#endif
