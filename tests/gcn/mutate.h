// mutate.h: kernels made wrong on purpose: what the interpreter must not let pass.
#ifndef TESTS_GCN_MUTATE_H
#define TESTS_GCN_MUTATE_H

// target: one of TargetId, or -1 for all AMD targets. Adds to the counts; prints what got through.
void mutate_check(int target, int *passed, int *failed);

#endif
