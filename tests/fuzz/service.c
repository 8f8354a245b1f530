// service.c: any messages to the language service: no crash, no hang, one answer to each request, and
// every message that it sends is JSON.
//
//     service [FOLDER [SECONDS [SEED]]]    sessions on mutated sources of stdlib, tests/lang and the folder
//     clang -g -O1 -DLIBFUZZER -fsanitize=fuzzer,address,undefined ...    one message under libFuzzer
#include "tools/service/service.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST_SECONDS = 10 }; // of one step, under sanitizers on a busy machine

typedef struct Client {
    Service *service;
    int asked, answered, messages; // requests of ours, their answers; all that came
} Client;

static void check_message(void *ctx, const char *json, size_t n) {
    Client *c = ctx;
    cJSON *m = cJSON_ParseWithLength(json, n);
    if (!m) {
        fprintf(stderr, "not JSON: %.*s\n", (int)(n < 2000 ? n : 2000), json);
        abort();
    }
    bool result = cJSON_GetObjectItem(m, "result"), error = cJSON_GetObjectItem(m, "error");
    c->answered += (result || error) && cJSON_IsNumber(cJSON_GetObjectItem(m, "id"));
    c->messages++;
    cJSON_Delete(m);
}

static void begin(Client *c) {
    ServiceHost host = {
        .ctx = c, .send = check_message, .library = "attn-std:/", .version = "fuzz"};
    *c = (Client){.service = service_open(&host)};
}

static void run(Client *c, const char *what) {
    clock_t start = clock();
    while (service_step(c->service)) continue;
    if ((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS) return;
    fprintf(stderr, "this took %d seconds: %.3000s\n", (int)((clock() - start) / CLOCKS_PER_SEC),
            what);
    abort();
}

static void put(Client *c, const char *json) {
    char *exact = malloc(strlen(json) + 1); // so that a read past the end is seen
    if (!exact) abort();
    memcpy(exact, json, strlen(json));
    service_receive(c->service, exact, strlen(json));
    free(exact);
    run(c, json);
}

static const char hello[] =
    "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"capabilities\":{"
    "\"general\":{\"positionEncodings\":[\"%s\"]},\"textDocument\":{\"publishDiagnostics\":{"
    "\"relatedInformation\":true},\"completion\":{\"completionItem\":{\"snippetSupport\":true}},"
    "\"codeAction\":{\"codeActionLiteralSupport\":{}},"
    "\"documentSymbol\":{\"hierarchicalDocumentSymbolSupport\":true}}}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Client c;
    begin(&c);
    put(&c, hello);
    service_receive(c.service, (const char *)data, n);
    run(&c, "the input");
    service_close(c.service);
    return 0;
}

#ifndef LIBFUZZER
enum { MOST_SEEDS = 512, MOST_BYTES = 1 << 16, STEPS = 60 };

typedef struct Seeds {
    char *text[MOST_SEEDS];
    int count;
    uint64_t state;
} Seeds;

static void add_folder(Seeds *s, const char *folder) {
    char path[512];
    struct dirent *e;
    DIR *d = opendir(folder);
    while (d && (e = readdir(d))) {
        if (!strstr(e->d_name, ".attn") || s->count == MOST_SEEDS) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = fopen(path, "rb");
        char *text = calloc(1, MOST_BYTES + 1);
        if (f && text && fread(text, 1, MOST_BYTES, f))
            s->text[s->count++] = text;
        else
            free(text);
        if (f) fclose(f);
    }
    if (d) closedir(d);
}

static uint32_t next(Seeds *s, uint32_t below) {
    s->state ^= s->state << 13;
    s->state ^= s->state >> 7;
    s->state ^= s->state << 17;
    return (uint32_t)((s->state >> 16) % below);
}

static const char *const uris[] = {"file:///w/a.attn", "file:///w/b.attn", "attn-std:/mask.attn",
                                   "untitled:1", "file:///w/%20%zz%00.attn"};

// A piece of a text: of a seed, odd characters, much of the same, or nothing.
static cJSON *piece(Seeds *s) {
    static const char *const odd[] = {
        "\xf0\x9f\x98\x80",       "\xc3\xa9\r\n", "\r", "\n", "}",        "{",
        "import a;\nimport b;\n", "/*",           "*/", "\"", "\xff\xfe", "\xed\xa0\x80",
        "attention x {",          "9999999999",   ";"};
    static const char *const many[] = {
        "(", "-", "[", "{", "a+", "f(", "\n", "x ? ", "\xf0\x9f\x98\x80", "let a = 1;", "? :"};
    char text[4096] = "";
    uint32_t kind = next(s, 8);
    if (kind < 4) {
        const char *from = s->text[next(s, (uint32_t)s->count)];
        size_t n = strlen(from), at = next(s, (uint32_t)n + 1);
        size_t len = kind == 0 ? 4000 : next(s, 40);
        snprintf(text, sizeof text, "%.*s", (int)len, from + at);
    } else if (kind < 6) {
        snprintf(text, sizeof text, "%s", odd[next(s, sizeof odd / sizeof *odd)]);
    } else if (kind == 6) {
        const char *one = many[next(s, sizeof many / sizeof *many)];
        for (uint32_t k = next(s, 1000), n = 0; k && n + strlen(one) < sizeof text; k--)
            memcpy(text + n, one, strlen(one) + 1), n += (uint32_t)strlen(one);
    }
    return cJSON_CreateString(text);
}

static cJSON *number(Seeds *s, uint32_t most) {
    static const double odd[] = {-1, 1e10, 0.5, 4294967296.0, 1e300};
    if (next(s, 30) == 0) return cJSON_CreateNumber(odd[next(s, 5)]);
    if (next(s, 100) == 0) return next(s, 2) ? cJSON_CreateString("1") : cJSON_CreateNull();
    return cJSON_CreateNumber(next(s, most));
}

static cJSON *position(Seeds *s) {
    cJSON *p = cJSON_CreateObject();
    cJSON_AddItemToObject(p, "line", number(s, 40));
    cJSON_AddItemToObject(p, "character", number(s, 70));
    return p;
}

static cJSON *range(Seeds *s) {
    cJSON *r = cJSON_CreateObject();
    cJSON_AddItemToObject(r, "start", position(s));
    cJSON_AddItemToObject(r, "end",
                          next(s, 3) ? cJSON_Duplicate(cJSON_GetObjectItem(r, "start"), true)
                                     : position(s));
    return r;
}

static const struct {
    const char *name;
    bool request;
} methods[] = {
#define REQUEST(method, function) {method, true},
#define NOTIFICATION(method, function) {method, false},
#include "tools/service/methods.def"
#undef REQUEST
#undef NOTIFICATION
};

static cJSON *document(Seeds *s, bool text) {
    cJSON *d = cJSON_CreateObject();
    cJSON_AddStringToObject(d, "uri", uris[next(s, 12) ? next(s, 2) : next(s, 5)]);
    cJSON_AddItemToObject(d, "version", number(s, 100));
    if (text) cJSON_AddStringToObject(d, "text", s->text[next(s, (uint32_t)s->count)]);
    return d;
}

static void add_numbers(Seeds *s, cJSON *to, const char *member, const char *const *names, int n) {
    if (next(s, 2)) return;
    cJSON *o = cJSON_AddObjectToObject(to, member);
    for (int i = 0; i < n; i++)
        if (next(s, 2)) cJSON_AddNumberToObject(o, names[i], (double)next(s, 40) - (i == 4) * 20);
}

// Of the requests of docs/service.md.
static void add_launch(Seeds *s, cJSON *p) {
    static const char *const sizes[] = {"Sq", "Sk", "H", "Hkv", "q_offset"};
    static const char *const extents[] = {"queries", "keys"}, *const at[] = {"row", "column"};
    static const char *const constants[] = {"D", "Dv"}, *const inputs[] = {"doc", "bias"};
    static const char *const targets[] = {"host", "sm_80", "sm_90a", "gfx90a", "gfx942", "gfx1100"};
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f8"};
    add_numbers(s, p, "sizes", sizes, 5);
    add_numbers(s, p, "tile", extents, 2);
    add_numbers(s, p, "at", at, 2);
    if (next(s, 4) == 0) add_numbers(s, p, "constants", constants, 2);
    add_numbers(s, p, "inputs", inputs, 2);
    cJSON_AddStringToObject(p, "target", targets[next(s, 6)]);
    cJSON_AddStringToObject(p, "dtype", dtypes[next(s, 4)]);
    cJSON_AddNumberToObject(p, "keys", next(s, 9));
    cJSON_AddNumberToObject(p, "parts", next(s, 5));
    if (next(s, 2))
        cJSON_AddItemToObject(p, "tokens", cJSON_CreateStringArray(targets, (int)next(s, 6)));
}

static cJSON *params(Seeds *s, const char *method) {
    cJSON *p = cJSON_CreateObject();
    cJSON_AddItemToObject(p, "textDocument", document(s, strstr(method, "didOpen")));
    if (strstr(method, "didChange")) {
        cJSON *changes = cJSON_AddArrayToObject(p, "contentChanges");
        for (uint32_t k = next(s, 4); k; k--) {
            cJSON *change = cJSON_CreateObject();
            if (next(s, 10)) cJSON_AddItemToObject(change, "range", range(s));
            cJSON_AddItemToObject(change, "text", piece(s));
            cJSON_AddItemToArray(changes, change);
        }
        return p;
    }
    if (!strncmp(method, "attn/", 5)) add_launch(s, p);
    cJSON_AddItemToObject(p, "position", position(s));
    cJSON_AddItemToObject(p, "range", range(s));
    cJSON_AddStringToObject(p, "newName", next(s, 3) ? "fresh" : next(s, 2) ? "exp" : "1 x");
    cJSON_AddStringToObject(p, "uri", uris[next(s, 5)]);
    return p;
}

// A value of another type somewhere in it.
static void confuse(Seeds *s, cJSON *value) {
    int n = cJSON_GetArraySize(value);
    if (!n) return;
    cJSON *member = cJSON_GetArrayItem(value, (int)next(s, (uint32_t)n));
    if (next(s, 2) && cJSON_GetArraySize(member)) {
        confuse(s, member);
        return;
    }
    cJSON *other = next(s, 2)   ? cJSON_CreateArray()
                   : next(s, 2) ? cJSON_CreateNumber(7)
                                : cJSON_CreateNull();
    cJSON_ReplaceItemViaPointer(value, member, other);
}

// Sends one message; the text of a few is damaged.
static void send_random(Client *c, Seeds *s) {
    enum { COMMON = 3 }; // one message in so many is an edit
    size_t count = sizeof methods / sizeof *methods, i = next(s, (uint32_t)count);
    const char *method = next(s, COMMON) ? methods[i].name : "textDocument/didChange";
    if (!strcmp(method, "shutdown") || !strcmp(method, "exit")) return;
    bool request = method == methods[i].name && methods[i].request, whole = next(s, 12) != 0;
    cJSON *m = cJSON_CreateObject(), *p = params(s, method);
    if (next(s, 20) == 0) confuse(s, p);
    cJSON_AddStringToObject(m, "method", method);
    if (request) cJSON_AddNumberToObject(m, "id", c->asked + 1);
    cJSON_AddItemToObject(m, "params", p);
    char *text = cJSON_PrintUnformatted(m);
    size_t n = text ? strlen(text) : 0;
    for (uint32_t k = whole ? 0 : 1 + next(s, 4); k && n; k--)
        text[next(s, (uint32_t)n)] = "{}[]\",:0\\u\x01"[next(s, 11)];
    c->asked += whole && request;
    int answered = c->answered;
    if (text) put(c, text);
    if (whole && c->answered - answered != request) {
        fprintf(stderr, "%d answers to: %.3000s\n", c->answered - answered, text);
        abort();
    }
    free(text);
    cJSON_Delete(m);
}

static void session(Seeds *s) {
    Client c;
    char first[sizeof hello + 8];
    begin(&c);
    snprintf(first, sizeof first, hello, next(s, 2) ? "utf-8" : "utf-16");
    put(&c, first);
    for (int i = 0; i < 2; i++) {
        cJSON *m = cJSON_CreateObject(), *p = cJSON_AddObjectToObject(m, "params");
        cJSON *d = document(s, true);
        cJSON_ReplaceItemInObject(d, "uri", cJSON_CreateString(uris[i]));
        cJSON_AddStringToObject(m, "method", "textDocument/didOpen");
        cJSON_AddItemToObject(p, "textDocument", d);
        char *text = cJSON_PrintUnformatted(m);
        if (text) put(&c, text);
        free(text);
        cJSON_Delete(m);
    }
    for (int i = 0; i < STEPS; i++) send_random(&c, s);
    service_close(c.service);
}

int main(int argc, char **argv) {
    Seeds s = {.state = argc > 3 ? strtoull(argv[3], NULL, 10) * 2 + 1 : 88172645463325253u};
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
    uint64_t runs = 0;
    add_folder(&s, "stdlib");
    add_folder(&s, "tests/lang");
    if (argc > 1) add_folder(&s, argv[1]);
    for (; s.count && time(NULL) < end; runs++) session(&s);
    for (int i = 0; i < s.count; i++) free(s.text[i]);
    printf("service: %llu sessions of %d messages\n", (unsigned long long)runs, STEPS);
    return 0;
}
#endif
