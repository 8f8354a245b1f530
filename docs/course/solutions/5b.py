# 256 threads share the scores and the accumulator, one block has all the shared memory, and tiles of 64 keys fit it.
SCHEDULE = "rows=128,keys=64,warps=8,blocks=1"
