// reference_batch.h: the reference over batches that are not dense: sequences of their own lengths, whose
// rows lie one behind another (ragged) or whose keys lie in pages (paged). What it means is one sentence:
// for each sequence gather its rows into dense arrays, and apply the variant to them.
#ifndef FRONTEND_REFERENCE_BATCH_H
#define FRONTEND_REFERENCE_BATCH_H

#include "frontend/reference.h"

typedef struct RefBatch {
    bool paged; // else ragged
    int32_t B;
    int64_t Tq, Tk, pages, page, table; // Tk: ragged; the others: paged
    // q_start [B+1] (paged: NULL: Tq / B each), kv_start [B+1]: ragged; kv_len [B], page_table [B, table]:
    // paged; q_offset [B], or NULL. Of any values: what lies outside is clamped.
    const int32_t *q_start, *kv_start, *kv_len, *page_table, *q_offset;
    // Of recurrences, ragged (q_start NULL: Tq / B each): state_index [B], or NULL: the slot of sequence b is b.
    const int32_t *state_index;
    int32_t slots;
    // Of each input, by its declared dimensions: the tensor's extent where it is Sq or Sk and there is
    // no B. NULL: no input has such.
    const int64_t (*extent)[EX_MAX_RANK];
} RefBatch;

struct RefSequence { // what RefRun.sequence points to
    const RefBatch *batch;
    int32_t b;
};

// How many queries and keys sequence b has, and its first query's row; its queries' first position.
int32_t ref_queries(const RefBatch *x, int32_t b, int64_t *first);
int32_t ref_keys(const RefBatch *x, int32_t b);
int32_t ref_first_position(const RefBatch *x, int32_t b);
// The row of k and v, or of the pool, that holds key j of the sequence. There is one.
int64_t ref_key_row(const RefBatch *x, int32_t b, int32_t j);

// How the layout changes an input's declared dimensions: `lost` is B's, `moved` that of Sq or Sk, which
// goes in front as Tq, as Tk, or as pages and page. -1: it stays as declared.
typedef struct RefMoved {
    int lost, moved;
} RefMoved;
RefMoved ref_moved(const TxInput *in, bool recurrence);
// The slot of a sequence's state.
int32_t ref_slot(const RefBatch *x, int32_t b);

// r: q [Tq,H,D], k [Tk,Hkv,D] or [pages,page,Hkv,D], v likewise, inputs in the layout's shapes, o [Tq,H,Dv],
// emits [Tq,H]; rows, open and what is written likewise. Sq, Sk and q_offset among its sizes are not
// read. owners [Tq], zero before: how many sequences have each row; nothing is written of rows of none.
// Of a recurrence q [Tq,Hq,D], k, v and o likewise, state0 and state [slots,H,D,Dv]; owners [Tq + slots], of slots the
// sequences that have positions: nothing is written of a slot of none.
void ref_batch_run(const RefBatch *x, const RefRun *r, int32_t *owners);
// The gradients of an attention's sequences, in the shapes of what they are of. What g gives is zero before: rows of no sequence
// stay so, and sequences add to gradients of inputs.
void ref_batch_grad(const RefBatch *x, const RefGrad *g);
// How many pairs the mask of head h lets through: by about `most` of the batch's, evenly chosen, where
// there are more.
double ref_batch_pairs(const RefBatch *x, const RefRun *r, int h, int64_t most);
// Row i of sequence b in a tensor that lies as q does, or as k.
int64_t ref_batch_row(const RefBatch *x, RowSide side, int32_t b, int32_t i);
// The share of all keys that some query sees, by about `most` pairs at the most.
double ref_batch_touched(const RefBatch *x, const RefRun *r, int h, int64_t most);

// The element of an input, as ref_place; and the extent of dimension d that its index is held against.
int64_t ref_batch_place(const RefRun *r, int input, const TxValue *index);
int64_t ref_batch_extent(const RefRun *r, int input, int d, const TxValue *index);

#endif
