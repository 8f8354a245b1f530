// decay.h: which signs the inputs of a recurrence have where its state decays, for tensors that are drawn.
#ifndef TOOLS_DECAY_H
#define TOOLS_DECAY_H

#include "frontend/typed.h"

// sign: of each input, 1 or -1, or 0 where it may have both. With as few signs as can be, no decay is above 1; all are 0
// where there is no decay, or where no signs do. For example of exp(log_decay[b, h, t]) it is -1.
void decay_signs(Arena *a, const Variant *v, int *sign);

#endif
