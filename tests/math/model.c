// model.c: the formulas once more, made for this machine: the library's, made for every one, call a
// function for each fused multiply-add.
#include "ir/math.c"
