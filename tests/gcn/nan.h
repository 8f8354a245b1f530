// nan.h: NaN among the inputs: whose bits a device passes on, and which rows they reach.
#ifndef TESTS_GCN_NAN_H
#define TESTS_GCN_NAN_H

// target: one of TargetId, or -1 for all AMD targets. Adds to the counts; prints what is wrong.
void nan_check(int target, int *passed, int *failed);

#endif
