// decay.h: what the inputs of a recurrence are like where its state stays small, for tensors that are drawn.
#ifndef TOOLS_DECAY_H
#define TOOLS_DECAY_H

#include "frontend/typed.h"

// sign: of each input, 1 or -1, or 0 where it may have both. With as few signs as can be, no decay is above 1; all are 0
// where there is no decay, or where no signs do. For example of exp(log_decay[b, h, t]) it is -1.
void decay_signs(Arena *a, const Variant *v, int *sign);

// Whether rows of an input, or of k (input -1), are drawn with a norm of about 1, so that what a step erases and writes makes the state
// no larger: `erase` or `write` reads their elements as they are. For example a and b of erase = a[b, h, t, d], write = b[b, h, t, d].
bool decay_takes_unit(Arena *a, const Variant *v, int input);

#endif
