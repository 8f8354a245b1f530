// explained.h: an explanation (passes/derive/explain.h) as JSON: the result of `attn/derived`, and `attnc explain --format=json`.
#ifndef SERVICE_EXPLAINED_H
#define SERVICE_EXPLAINED_H

#include "passes/derive/explain.h"

#include <cjson/cJSON.h>

typedef struct ExplainedAs {
    bool form[EX_FORM_COUNT];                            // which of them
    void (*attributes)(void *ctx, Text *out, Span span); // of MathML
    cJSON *(*place)(void *ctx, Span span);               // {uri, range}, or null
    void *ctx;
} ExplainedAs;

enum { EXPLAINED_MOST = 1 << 13 }; // names, numbers and signs of a formula, for a page

// Attributes of MathML: the lines and columns that it comes from, and the source, unless it is the main one (NULL).
void explained_range(Text *out, const uint32_t from[2], const uint32_t to[2], const char *uri);
cJSON *explained(const Explanation *x, const ExplainedAs *as);

#endif
