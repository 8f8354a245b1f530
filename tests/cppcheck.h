// cppcheck.h: macros of system headers that cppcheck must know to read our code (tests/lint.sh).
#define cJSON_ArrayForEach(item, array) for (item = array; item; item = item->next)
