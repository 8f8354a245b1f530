// half.h: f16 as instructions round it.
#ifndef TESTS_GCN_HALF_H
#define TESTS_GCN_HALF_H

#include <stdint.h>

uint32_t gcn_f16_toward_zero(float x);

#endif
