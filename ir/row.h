// row.h: the row program: an attention inlined to scalar mathematics. Made by frontend/lower.c from the typed AST, read by
// passes/derive/derive.c. All functions, consts, lets and dims are gone; what is left is, per query,
//
//     s_j  = score(dot, sqnorm_q, sqnorm_k, b, h, q_idx, kv_idx)         (modify folded in)
//     R_k  = reduce_k over keys j inside the mask, s_j > -inf, of f_k(s_j; R_0..R_{k-1}, b, h, q_idx)
//     w_j  = weight(s_j; R, b, h, q_idx)            o_d = output(sum_j w_j v_jd, b, h, q_idx, d)
//
// and a row without a key gives 0 before `output`, -inf for emits named lse as the arithmetic gives it (language.md).
#ifndef IR_ROW_H
#define IR_ROW_H

#include "expr.h"

typedef enum Dtype { // what tensors hold; also the artifact's numbering (runtime/abi.h asserts it)
#define DTYPE(e, name, bytes, reads) DT_##e,
#include "dtypes.def"
#undef DTYPE
    DT_COUNT
} Dtype;
const char *dtype_name(Dtype t);
int dtype_bytes(Dtype t);
bool dtype_half(Dtype t);    // f16 or bf16: what tensor cores multiply
bool dtype_byte(Dtype t);    // a number of 8 bits: f16, bf16 and f32 hold each
ExType dtype_reads(Dtype t); // the type that an element reads as in an expression

enum { // the first entries of every sizes table
    SIZE_B,
    SIZE_HQ,
    SIZE_HKV,
    SIZE_SQ,
    SIZE_SK,
    SIZE_Q_OFFSET,
    SIZE_FREE // free sizes from here on
};
// Every size of a launch and |q_offset|, at most: passes count on positions that f32 holds exactly and on products of them with small
// constants that do not wrap. The runtime refuses launches beyond (ABI_MAX_SIZE).
enum { SIZE_LIMIT = 1 << 24 };
// Where rows lie: [B, heads, rows, columns]; those of all sequences after each other; keys in pages of a pool.
typedef enum BatchLayout { BATCH_DENSE, BATCH_RAGGED, BATCH_PAGED, BATCH_COUNT } BatchLayout;
const char *batch_name(BatchLayout batch);
typedef VEC(const char *) SizeNames;
void sizes_init(Arena *a, SizeNames *s); // "B" "H" "Hkv" "Sq" "Sk" "q_offset"

typedef struct RowInput {
    const char *name;
    Dtype dtype;
    int rank;                      // 0: a scalar argument
    const Ex *extent[EX_MAX_RANK]; // i32 over SIZE symbols and constants
    bool grad;
    // An extent Sq is indexed by bare q_idx: right only where q_offset is 0; other launches are refused.
    bool bare_q;
    bool
        rows; // [B, heads, Sq or Sk, channels], of which dots are made: heads divide H, and lie as q's or k's do
    Span span;
} RowInput;

typedef enum RowSide { ROW_QUERIES, ROW_KEYS, ROW_SIDES } RowSide;
typedef struct RowOperand { // channels of the pair's query or key
    int input;              // a row input; -1: q or k
    int from, width;
} RowOperand;
typedef struct RowPair { // a query's row and a key's, of equal width
    int row[ROW_SIDES];  // index into the rows of each side
} RowPair;
typedef struct RowDot { // the sum of the products of some pairs
    VEC(RowPair) pairs;
} RowDot;

// Each is a number that a row carries, and an operand of what is made of the row at the end.
enum { ROW_MAX_REDUCES = 64 };

typedef struct RowReduce {
    ExOp op;     // EX_ROWMAX, EX_ROWMIN, EX_ROWSUM
    const Ex *f; // over SYM_S, earlier SYM_R, b, h, q_idx, kv_idx
    // `written` where that is free ("m", "l"), else "m_2", "r0"...; unique in the program.
    const char *name;
    Span span;
    const char *written; // the name of the `let` that is it and nothing else, or NULL
    // An extremum that is found again to the last bit; a sum of scores that scores are subtracted from (passes/derive/decide.c).
    bool exact;
    Span call; // of what holds it: nearest to it in another file, else in a clause
} RowReduce;

typedef struct RowEmit {
    const char *name;
    const Ex *value; // over SYM_R, b, h, q_idx: one f32 per row, shape [B, H, Sq]
    Span span;
} RowEmit;

typedef struct RowProgram {
    Arena *arena;
    ExPool *pool;
    const char *name; // the attention's
    Span span;
    int D, Dv;
    bool v_in_k; // v is the first Dv channels of k, and no tensor of its own
    bool bf16;   // weights become bf16 where they meet v
    // What the numbers of DOT, and of SQQ and SQK, mean. The first ones are all of q and k, and dot(q, k).
    VEC(RowOperand) rows[ROW_SIDES];
    VEC(RowDot) dots;
    // Clauses change the elements of q, k or v. Factors of whole rows are in the formulas; those of a
    // channel of q, and of k, are over b, h and d, the channel; NULL: none.
    bool changes;
    bool gates; // the weight holds a factor of v
    const Ex *channel[ROW_SIDES];
    SizeNames sizes;
    VEC(RowInput) inputs;
    const Ex *score;    // f32 over DOT, SQQ, SQK and indices: the raw relevance
    const Ex *modified; // modify(score): what the row reductions see as s
    const Ex *mask;     // bool over b, h, q_idx, kv_idx; constant true when absent
    VEC(RowReduce) reduces;
    const Ex *weight; // f32 over SYM_S, SYM_R, b, h, q_idx
    VEC(RowEmit) emits;
    const Ex *output; // f32 over SYM_O, SYM_SQO, b, h, q_idx, d
} RowProgram;

// The program as text (--emit=row), deterministic. Names for expressions of this program.
void row_print(Text *out, const RowProgram *p);
void row_print_input(Text *out, const RowInput *in, const ExNames *names);
ExNames row_names(const RowProgram *p);
// "dot(q, k)", "dot(q[0:64], k_pe) + ..."; "sqnorm(k)": of the program that the symbol is of. NULL: another symbol.
const char *row_product_name(const RowProgram *p, ExSym sym, int index);
const char *row_operand_name(const RowProgram *p, RowSide side, int row); // "q", "k[0:64]", "k_pe"
void row_whole(RowProgram *p); // gives it the first rows, of D, and dots: it has none yet
// What the elements of a pair's products are multiplied by, over b, h, and d, the column in the pair; NULL: 1.
const Ex *row_factor(const RowProgram *p, const int *row);
// Whether the products are dot(q, k), sqnorm(q) and sqnorm(k) alone, of q, k and v as they are.
bool row_is_plain(const RowProgram *p);

#endif
