// sequences.h: layouts in which sequences have lengths of their own: what a program's sizes, tensors and loads are there.
#ifndef PASSES_SEQUENCES_H
#define PASSES_SEQUENCES_H

#include "ir/tile.h"

// Of a part: how many rows of the whole sequence come before, and how many the whole has.
typedef enum PlaceOfPart {
    PART_Q_FIRST,
    PART_KV_FIRST,
    PART_SQ_ALL,
    PART_SK_ALL,
    PLACES_OF_PARTS
} PlaceOfPart;

typedef struct Places { // of a program: sizes, then inputs
    TileProgram *p;
    int queries, keys; // the sizes that rows are of: Sq and Sk; S and -1
    int group;         // heads that the rows of a tile have; 0: one
    int Tq, max_q, Tk, pages, page, table, slots, starts, offsets, indices, q_first, k_first, slot;
    int q_start, kv_start, kv_len, page_table, q_offset, state_index;
    int given[PLACES_OF_PARTS],
        open[PLACES_OF_PARTS];  // of parts: inputs, and the sizes that tell whether they are there
    int whole[PLACES_OF_PARTS]; // and the sizes of a sequence that come of them
    int run,
        gap; // of paged parts: keys whose positions follow each other, and the positions between them that others have
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
// Of a part: the position of a key at hand.
const Ex *places_position(Places *at, const Ex *key);
// An input's element, where the layout has it. query, key: those of the element at hand, or NULL.
const Ex *places_load(Places *at, const RowInput *in, const Ex *e, const Ex *query, const Ex *key);

#endif
