// attnc.c: the command. Parses the options, calls the verb.
#include "cmd.h"
#include "options.h"
#include <stdio.h>

static Status (*const commands[])(const Options *) = {
#define VERB(e, name, fn, synopsis, what) fn,
#include "verbs.def"
#undef VERB
};

int main(int argc, char **argv) {
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
