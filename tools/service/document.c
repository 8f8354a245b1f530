// document.c: the open documents: their texts, edits, names.
//
// In: notifications of a client. Out: documents, whose text is the client's. Holds: an edit at any
// position at all gives a text (positions are moved to the nearest that there is), and analyses of an
// older text are not served as those of a newer.
#include "internal.h"
#include "tools/library.h"

#include <string.h>

// ---- names

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// %20 and its like; a %00 stays, as paths hold no zeros.
static const char *decode(Arena *a, const char *s) {
    char *out = arena_strdup(a, s), *to = out;
    for (; *s; s++) {
        int high = s[0] == '%' ? hex(s[1]) : -1, low = high >= 0 ? hex(s[2]) : -1;
        bool escaped = low >= 0 && high * 16 + low > 0;
        *to++ = escaped ? (char)(high * 16 + low) : *s;
        if (escaped) s += 2;
    }
    *to = '\0';
    return out;
}

// "file:///a/b" and "file://host/a/b" have the path /a/b; another uri is its own.
static const char *plain_path(Arena *a, const char *uri) {
    if (strncmp(uri, "file://", 7)) return decode(a, uri);
    const char *path = strchr(uri + 7, '/');
    return decode(a, path ? path : uri);
}

const char *uri_to_path(const Service *s, Arena *a, const char *uri) {
    const char *path = plain_path(a, uri), *library = plain_path(a, s->host.library);
    size_t n = strlen(library);
    if (!strncmp(path, library, n)) {
        const char *module = arena_printf(a, "%s/%s", library_folder, path + n);
        if (library_find(module)) return module;
    }
    return strncmp(uri, "file://", 7) ? arena_strdup(a, uri) : path;
}

const char *uri_of_path(const Service *s, Arena *a, const char *path) {
    for (const Document *d = s->documents; d; d = d->next)
        if (!strcmp(d->path, path)) return d->uri;
    if (library_find(path))
        return arena_printf(a, "%s%s", s->host.library, path + strlen(library_folder) + 1);
    if (path[0] != '/') return path;
    Text t = text_new(a);
    text_puts(&t, "file://");
    for (; *path; path++) {
        bool plain = (*path >= 'a' && *path <= 'z') || (*path >= 'A' && *path <= 'Z') ||
                     (*path >= '0' && *path <= '9') || strchr("/-_.~", *path);
        text_printf(&t, plain ? "%c" : "%%%02X", (unsigned char)*path);
    }
    return t.s;
}

// ---- the documents

Document *document_find(const Service *s, const char *uri) {
    for (Document *d = s->documents; d; d = d->next)
        if (!strcmp(d->uri, uri)) return d;
    return NULL;
}

Document *document_of(Service *s, const cJSON *params) {
    const char *uri = json_string(params, "textDocument.uri");
    Document *d = uri ? document_find(s, uri) : NULL;
    if (!uri)
        service_fail(s, RPC_INVALID_PARAMS, NULL, "'textDocument.uri' is missing");
    else if (!d)
        service_fail(s, RPC_INVALID_PARAMS, NULL, "'%.200s' is not an open document", uri);
    return d;
}

bool document_offset(Service *s, const Document *d, const cJSON *position, uint32_t *offset) {
    uint32_t line, character;
    if (!json_index(position, "line", &line) || !json_index(position, "character", &character)) {
        service_fail(s, RPC_INVALID_PARAMS, NULL, "a position has a line and a character, from 0");
        return false;
    }
    *offset = lines_offset(&d->lines, s->client.utf8, line, character);
    return true;
}

// The text belongs to the arena, which the document takes.
static void set_text(Document *d, Arena *a, const char *text, size_t n) {
    Arena *old = d->text_arena;
    if (d->now && d->now != d->good) analysis_free(d->now);
    d->now = NULL;
    d->due = true;
    d->text_arena = a;
    d->text = text;
    d->n = n;
    lines_init(&d->lines, a, text, n);
    arena_free(old);
}

void document_forget(Document *d) {
    if (d->now != d->good) analysis_free(d->now);
    analysis_free(d->good);
    arena_free(d->text_arena);
    arena_free(d->arena);
}

static bool reads(const Analysis *a, const char *path) {
    for (int i = 1; a && i < a->diags.files.n; i++)
        if (!strcmp(a->diags.files.data[i].name, path)) return true;
    return false;
}

void documents_touch(Service *s, const char *path) {
    for (Document *d = s->documents; d; d = d->next) {
        // What imports a file that was not there before has read nothing of it.
        bool failed = d->now && !d->now->module;
        if (path && strcmp(d->path, path) && !failed && !reads(d->now, path)) continue;
        if (d->now && d->now != d->good) analysis_free(d->now);
        d->now = NULL;
        d->due = true;
    }
}

// ---- edits

// One change: a range is replaced, or the whole text.
static void change(Service *s, Document *d, const cJSON *edit) {
    const char *text = json_string(edit, "text");
    uint32_t start = 0, end = (uint32_t)d->n;
    if (!text) return;
    if (json_get(edit, "range") && (!document_offset(s, d, json_get(edit, "range.start"), &start) ||
                                    !document_offset(s, d, json_get(edit, "range.end"), &end)))
        return;
    if (end < start) end = start;
    size_t n = strlen(text), all = start + n + (d->n - end);
    Arena *a = arena_new();
    char *joined = arena_alloc(a, all + 1);
    memcpy(joined, d->text, start);
    memcpy(joined + start, text, n);
    memcpy(joined + start + n, d->text + end, d->n - end);
    set_text(d, a, joined, all);
}

static void set_version(Document *d, const cJSON *params) {
    const cJSON *version = json_get(params, "textDocument.version");
    d->has_version = cJSON_IsNumber(version);
    d->version = d->has_version ? version->valuedouble : 0;
}

cJSON *document_did_open(Service *s, const cJSON *params) {
    const char *uri = json_string(params, "textDocument.uri"),
               *text = json_string(params, "textDocument.text");
    if (!uri || !text) return NULL;
    Document *d = document_find(s, uri);
    if (!d) {
        Arena *a = arena_new();
        d = ARENA_NEW(a, Document);
        *d = (Document){.arena = a, .uri = arena_strdup(a, uri), .path = uri_to_path(s, a, uri)};
        Document **last = &s->documents;
        while (*last) last = &(*last)->next;
        *last = d;
    }
    Arena *a = arena_new();
    size_t n = strlen(text);
    set_text(d, a, arena_strndup(a, text, n), n);
    set_version(d, params);
    documents_touch(s, d->path);
    return NULL;
}

cJSON *document_did_change(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    const cJSON *edit;
    if (!d) return NULL;
    cJSON_ArrayForEach(edit, json_get(params, "contentChanges")) change(s, d, edit);
    set_version(d, params);
    documents_touch(s, d->path);
    return NULL;
}

// What is imported is read anew: it may have changed on disk, too.
cJSON *document_did_save(Service *s, const cJSON *params) {
    (void)params;
    documents_touch(s, NULL);
    return NULL;
}

cJSON *document_files_changed(Service *s, const cJSON *params) {
    const cJSON *change;
    Arena *a = arena_new();
    cJSON_ArrayForEach(change, json_get(params, "changes")) {
        const char *uri = json_string(change, "uri");
        if (uri) documents_touch(s, uri_to_path(s, a, uri));
    }
    arena_free(a);
    return NULL;
}

cJSON *document_did_close(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    if (!d) return NULL;
    Document **at = &s->documents;
    while (*at != d) at = &(*at)->next;
    *at = d->next;
    service_notify(
        s, "textDocument/publishDiagnostics",
        json_pair("uri", cJSON_CreateString(d->uri), "diagnostics", cJSON_CreateArray()));
    documents_touch(s, d->path); // its file is read again
    document_forget(d);
    return NULL;
}

// The text of a document, of a module of the library, or of a file that can be imported: {uri} -> {text}.
cJSON *document_source(Service *s, const cJSON *params) {
    const char *uri = json_string(params, "uri"), *text, *why = "it is not open";
    if (!uri) return service_fail(s, RPC_INVALID_PARAMS, NULL, "'uri' is missing");
    Arena *a = arena_new();
    FeOptions o = document_options(s, NULL);
    size_t n;
    cJSON *result = NULL;
    if (o.read(o.read_ctx, a, uri_to_path(s, a, uri), &text, &n, &why)) {
        result = cJSON_CreateObject();
        cJSON_AddStringToObject(result, "text", arena_strndup(a, text, n));
    } else {
        service_fail(s, RPC_REQUEST_FAILED, NULL, "there is no '%.200s': %s", uri, why);
    }
    arena_free(a);
    return result;
}
