// chunk.h: a recurrence's chunked form.
#ifndef PASSES_CHUNK_H
#define PASSES_CHUNK_H

#include "ir/chunk.h"

// There is one of every recurrence. In the program's arena.
Chunk *pass_chunk(const RecProgram *rec);

// And of its backward. In the same arena. (chunk_back.c)
ChunkBack *pass_chunk_back(const Chunk *c);

// log2 of what is at least 0, to an error relative to itself; -inf of 0. Simplified without fma. (chunk_decay.c)
const Ex *pass_log2(ExPool *p, const Ex *e);

#endif
