// attnc.c: the command. Parses the options, calls the verb.
#include "cmd.h"
#include "options.h"
#include <stdio.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static Status (*const commands[])(const Options *) = {
#define VERB(e, name, fn, synopsis, what) fn,
#include "verbs.def"
#undef VERB
};

// A thread that compiles a kernel takes some 20 MB: in one step, not 128 KB at a time, and what it
// gives back is wanted again soon. 5% of a compilation.
static void keep_memory(void) {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

int main(int argc, char **argv) {
    keep_memory();
    Arena *a = arena_new();
    Options o;
    Status s = options_parse(&o, a, argc, argv);
    if (s == STATUS_DONE && o.help)
        options_help(o.verb);
    else if (s == STATUS_DONE && o.version)
        printf("attnc %s\n", attn_version());
    else if (s == STATUS_DONE)
        s = commands[o.verb](&o);
    if (fflush(stdout) != 0 && s == STATUS_DONE)
        s = cmd_fail(STATUS_SYSTEM, "cannot write to stdout");
    arena_free(a);
    return (int)s;
}
