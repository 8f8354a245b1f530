// layout.h: which register of which thread holds which element of a tile.
//
// A layout lists digits for four places: the register of a thread, the lane of a warp, the warp of a
// role (or block), the block of a cluster. The digit `N/8%4` is n / 8 % 4, where n is an element's
// number along axis N. A place's number is written in its digits, the fast one first:
//
//     reg(N%2, M/8%2, N/8%4) lane(N/2%4, M%8) warp(M/16%8)
//
//     register  n % 2 + 2 (m / 8 % 2) + 4 (n / 8 % 4)
//     lane      n / 2 % 4 + 4 (m % 8)          warp  m / 16 % 8
//
// A bare number means copies: in lane(4, M%8) four lanes side by side have the same elements.
// Registers are counted by element; a narrow value has several elements in a register of 32 bits.
//
// A value takes the digits of its own axes (layout_restrict): where it lacks an axis there are copies
// in lanes, warps and blocks, and nothing in registers. So numbers of rows lie beside any tile that
// has these rows. Equal layouts are equal bytes.
#ifndef IR_LAYOUT_H
#define IR_LAYOUT_H

#include "arena.h"

#include <stdbool.h>
#include <stdint.h>

enum { LAYOUT_DIGITS = 24, LAYOUT_COPIES = -1, LAYOUT_MAX_COUNT = 1 << 15 };

typedef enum LayoutPlace {
    LAYOUT_REG,
    LAYOUT_LANE,
    LAYOUT_WARP,
    LAYOUT_BLOCK,
    LAYOUT_PLACES
} LayoutPlace;

typedef struct LayoutDigit {
    uint8_t place;
    int8_t axis; // LAYOUT_COPIES: none
    uint16_t step, count;
} LayoutDigit;

typedef struct Layout {
    uint16_t n;
    LayoutDigit digit[LAYOUT_DIGITS]; // by place, the fast one first; unused ones are 0
} Layout;

// Adds a digit as the slowest of its place. What continues the one before joins it; a count of 1 is
// nothing. False: there is no room.
bool layout_add(Layout *l, LayoutPlace place, int axis, int step, int count);
Layout layout_restrict(const Layout *l, const uint8_t *axis, int rank);
// Puts axis[i] where axis i stands.
Layout layout_rename(const Layout *l, const int *axis);
bool layout_equal(const Layout *a, const Layout *b);
int layout_count(const Layout *l, LayoutPlace place);           // numbers of the place
int layout_covers(const Layout *l, int axis);                   // elements along an axis
int layout_share(const Layout *l, LayoutPlace place, int axis); // of them at a place
bool layout_copies(const Layout *l);                            // some element has several owners
// What a place's number says of the element's number along an axis: the sum over all places is it.
int layout_part(const Layout *l, LayoutPlace place, int axis, int number);
// The number at a place (of the first copy) that has an element; index by axis.
int layout_number(const Layout *l, LayoutPlace place, const int *index);
// Whether the digits of an axis are all of its elements': steps 1, c1, c1 c2, .. up to its extent, of
// which only the last count may be no power of two, or that of registers before warps.
bool layout_complete(const Layout *l, int axis, int extent);
// Whether at every place the digits of `first` are the fast ones, and no lane has others.
bool layout_begins(const Layout *l, const Layout *first);

// What it takes to go from one layout of a tile to another. Each class can do what those before it
// can.
typedef enum LayoutMove {
    MOVE_NOTHING, // every element is in its register
    MOVE_RENAME,  // it is in another register, the same in all threads
    MOVE_HALVES,  // or in another part of one
    MOVE_SELECT,  // the thread has it, in a register that depends on the thread
    MOVE_SHUFFLE, // another lane of the warp has it
    MOVE_SHARED,  // another warp has it
    MOVE_CLUSTER  // another block has it
} LayoutMove;
LayoutMove layout_move(const Layout *from, const Layout *to, int bits); // of an element

// Text, as above; `names` by axis. The reader gives NULL and the text's end, or what is wrong there.
void layout_print(Text *out, const Layout *l, const char *const *names, int n);
const char *layout_parse(const char **text, const char *const *names, int n, Layout *out);

// ---- instructions (mma.def): axes M, N, K are 0, 1, 2
typedef enum MmaKind {
#define MMA(e, ...) MMA_##e,
#include "mma.def"
#undef MMA
    MMA_KIND_COUNT
} MmaKind;
typedef enum MmaPart { MMA_A, MMA_B, MMA_C } MmaPart;
const char *mma_name(MmaKind kind);
// Whether the part may lie in registers, and how; false: it lies in shared memory.
bool mma_fragment(MmaKind kind, MmaPart part, Layout *out);

#endif
