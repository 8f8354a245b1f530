// backward.c: see backward.h.
#include "backward.h"

const Ex *back_product(const Backward *b, ExSym sym, int index) {
    for (int i = 0; i < b->products.n; i++)
        if (b->products.data[i].sym == sym && b->products.data[i].index == index)
            return b->products.data[i].d;
    return NULL;
}
