// reformat.h: what must hold of every text that the formatter takes, and texts to hold it against.
#ifndef TESTS_SUPPORT_REFORMAT_H
#define TESTS_SUPPORT_REFORMAT_H

#include "ir/arena.h"
#include <stdint.h>

// What is wrong with the formatted text; NULL: nothing. A text that does not parse gives none. Else
// it has the same tokens, tree and comments, and formatted again it stays as it is.
const char *reformat_wrong(Arena *a, const char *text, size_t n);

// The text's tokens with other blanks, line ends and comments between them, and here and there a
// longer name or a parenthesis more. *state is of the random numbers, not 0.
Text reformat_shake(Arena *a, const char *text, size_t n, uint64_t *state);

#endif
