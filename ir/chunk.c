// chunk.c: the chunked form as text.
//
//     chunk merged
//       query = q, times (rsqrt((sqnorm_q + 1e-6)) * 0.088388346)
//       erase = k, times rsqrt((sqnorm_k + 1e-6)), of S before, decayed
//       write = k, v times .., u times ..
//       value = v
//       log2 decay = (log_decay![b, h, t] * 1.442695)
#include "ir/chunk.h"

static void put(Text *out, const char *what, const Ex *e, const ExNames *names) {
    if (!e) return;
    text_puts(out, what);
    ex_print(out, e, names);
}

static void print_read(Text *out, const char *what, const ChunkRead *r, const ExNames *names) {
    if (!r->elem) return;
    put(out, what, r->elem, names);
    put(out, ", times ", r->number, names);
    text_puts(out, !r->before ? "\n" : r->decayed ? ", of S before, decayed\n" : ", of S before\n");
}

void chunk_print(Text *out, const Chunk *c) {
    ExNames names = rec_names(c->rec);
    bool merged = c->erase.elem && c->nwrites == 1;
    text_puts(out, merged ? "chunk merged\n" : "chunk\n");
    print_read(out, "  query = ", &c->query, &names);
    print_read(out, "  erase = ", &c->erase, &names);
    for (int i = 0; i < c->nwrites; i++) {
        put(out, "  write = ", c->write[i].elem, &names);
        put(out, ", v times ", c->write[i].value, &names);
        put(out, ", u times ", c->write[i].erased, &names);
        text_puts(out, "\n");
    }
    put(out, "  value = ", c->value, &names);
    put(out, "\n  bonus = ", c->bonus, &names);
    put(out, c->channel ? "\n  log2 decay, of each channel = " : "\n  log2 decay = ", c->decay,
        &names);
    text_puts(out, c->fixed ? ", the same everywhere\n" : "\n");
}
