// cmd_explain.c: `attnc explain`: what the compiler derived, as mathematics.
#include "cmd.h"
#include "files.h"

Status cmd_explain(const Options *o) {
    Compile c;
    Text t;
    Status s = cmd_open(&c, o, o->files.data[0], TARGET_HOST, DT_F32);
    if (s == STATUS_DONE) {
        bool good = compile_streams(&c);
        s = cmd_report(&c, good ? STATUS_DONE : STATUS_INPUT);
    }
    if (s == STATUS_DONE) {
        text_init(&t, c.arena);
        text_puts(&t, "");
        for (int i = 0; i < c.streams.n; i++) {
            if (i) text_puts(&t, "\n");
            pass_explain(&t, c.streams.data[i]);
        }
        s = file_write(o->output ? o->output : "-", t.s, t.n);
    }
    compile_close(&c);
    return s;
}
