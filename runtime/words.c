// words.c: words of a module's own memory for launches that leave them as they find them, 0.
//
// In: a module whose code has the variable ABI_WORDS, zeros when it is loaded. Out: a word for a
// launch on a stream, so that nothing need be zeroed before it. Two launches that may run at the
// same time never get the same word: those on one stream run one after the other, and each stream
// has a word; a launch that is captured runs whenever its graph does, and has one for good. Where
// there is none left, or the driver does not say what a stream is, the caller's workspace serves.
#include "gpu.h"
#include <stdlib.h>

enum { OF_STREAMS = 256, CAPTURING_NOT = 0 };
#define STREAM_PER_THREAD ((void *)2) // another stream in each thread

struct GpuWords {
    pthread_mutex_t lock; // of what follows
    uint64_t at;          // the address of all
    uint32_t n, captured; // how many there are, and those behind streams' that were given
    uint32_t nstreams;
    uint64_t stream[OF_STREAMS]; // their numbers, which are never used again
};

GpuWords *rt_words(const GpuDriver *g, void *module) {
    uint64_t at;
    size_t bytes;
    if (!g->module_global || !g->stream_number || !g->stream_capturing) return NULL;
    if (g->module_global(&at, &bytes, module, ABI_WORDS) || bytes / 4 < OF_STREAMS) return NULL;
    GpuWords *w = calloc(1, sizeof *w);
    if (!w || pthread_mutex_init(&w->lock, NULL)) {
        free(w);
        return NULL;
    }
    w->at = at;
    w->n = (uint32_t)(bytes / 4);
    return w;
}

void rt_words_free(GpuWords *w) {
    if (!w) return;
    pthread_mutex_destroy(&w->lock);
    free(w);
}

// The number of the stream's word; n: there is none.
static uint32_t of_stream(GpuWords *w, uint64_t stream) {
    uint32_t i = 0;
    while (i < w->nstreams && w->stream[i] != stream) i++;
    if (i < w->nstreams) return i;
    if (i == OF_STREAMS) return w->n;
    w->stream[w->nstreams++] = stream;
    return i;
}

static uint32_t of_capture(GpuWords *w) {
    return OF_STREAMS + w->captured < w->n ? OF_STREAMS + w->captured++ : w->n;
}

uint64_t rt_word(const GpuDriver *g, GpuWords *w, void *stream) {
    int capturing;
    uint64_t number = 0;
    if (!w || stream == STREAM_PER_THREAD || g->stream_capturing(stream, &capturing)) return 0;
    if (capturing == CAPTURING_NOT && g->stream_number(stream, &number)) return 0;
    pthread_mutex_lock(&w->lock);
    uint32_t i = capturing == CAPTURING_NOT ? of_stream(w, number) : of_capture(w);
    pthread_mutex_unlock(&w->lock);
    return i < w->n ? w->at + 4 * (uint64_t)i : 0;
}
