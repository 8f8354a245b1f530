// internal.h: what the parts of the language service share. Private to tools/service.
#ifndef SERVICE_INTERNAL_H
#define SERVICE_INTERNAL_H

#include "frontend/ast.h"
#include "frontend/uses.h"
#include "passes/passes.h"
#include "service.h"

#include <cjson/cJSON.h>

// --- messages (service.c) ---
enum { // of JSON-RPC and LSP
    RPC_PARSE_ERROR = -32700,
    RPC_INVALID_REQUEST = -32600,
    RPC_METHOD_NOT_FOUND = -32601,
    RPC_INVALID_PARAMS = -32602,
    RPC_NOT_INITIALIZED = -32002,
    RPC_REQUEST_FAILED = -32803,
    RPC_CANCELLED = -32800
};

typedef struct Message Message;
typedef struct Document Document;

typedef struct Client { // what it can do
    bool utf8;          // positions count bytes
    bool related, tags; // of diagnostics
    bool markdown, completion_markdown;
    bool snippets;
    bool hierarchical; // document symbols
    bool watches;      // files that change on disk, where it is asked to
    bool literals;     // code actions
    bool prepare;      // renames
} Client;

struct Service {
    ServiceHost host;
    Arena *arena;          // lives as long as the service
    Message *first, *last; // the queue
    Message *now;          // the request that is being answered, or NULL
    Message *unused;
    Document *documents;
    bool initialized, shut_down;
    int status; // see service_status
    Client client;
    int calls;    // requests to the client so far
    struct {      // of the request at hand
        int code; // 0: none
        char message[512];
        cJSON *data;
    } error;
};

// A handler gives a request's result, or NULL after service_fail; of a notification, NULL.
typedef cJSON *(*Handler)(Service *s, const cJSON *params);
#define REQUEST(method, function) cJSON *function(Service *s, const cJSON *params);
#define NOTIFICATION(method, function) cJSON *function(Service *s, const cJSON *params);
#include "methods.def"
#undef REQUEST
#undef NOTIFICATION

// The request at hand is answered by an error. data may be NULL, and belongs to the service then.
cJSON *service_fail(Service *s, int code, cJSON *data, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void service_notify(Service *s, const char *method, cJSON *params);
void service_request(Service *s, const char *method, cJSON *params); // to the client
// In long work, now and then: whether nobody waits for it any more, as the request was cancelled or,
// while diagnostics are computed, messages have come. A handler then gives NULL.
bool service_stopped(Service *s);

// --- JSON (json.c) ---
// A member of a member: json_get(params, "textDocument.uri"). NULL: there is none.
const cJSON *json_get(const cJSON *object, const char *path);
const char *json_string(const cJSON *object, const char *path); // NULL: none, or no string
bool json_true(const cJSON *object, const char *path);
bool json_lists(const cJSON *array, const char *word); // the string is in it
// An integer of at least 0; larger ones than fit are the largest. False: none, or another type.
bool json_index(const cJSON *object, const char *path, uint32_t *value);
cJSON *json_pair(const char *a, cJSON *x, const char *b, cJSON *y); // {a: x, b: y}
// What cJSON's strings cannot hold: \u0000 and halves of surrogate pairs become U+FFFD, in place.
void json_mend(char *json, size_t n);

// --- texts and positions (lines.c) ---
// Lines end with \n, \r\n or \r, as in LSP.
typedef struct Lines {
    const char *text;
    size_t n;
    VEC(uint32_t) starts;
} Lines;
void lines_init(Lines *l, Arena *a, const char *text, size_t n);
// The byte at a position; what is beyond a line's end is its end, beyond the text its end.
uint32_t lines_offset(const Lines *l, bool utf8, uint32_t line, uint32_t character);
void lines_position(const Lines *l, bool utf8, uint32_t offset, uint32_t *line,
                    uint32_t *character);
cJSON *lines_range(const Lines *l, bool utf8, uint32_t start, uint32_t end);

// --- documents (document.c) ---
typedef struct Analysis Analysis;
struct Document {
    Document *next;
    Arena *arena; // of uri and path
    const char *uri;
    const char *path; // of its file, the uri itself where it is no file, "<std>/..." of the library
    Arena *text_arena;
    const char *text;
    size_t n;
    Lines lines;
    bool has_version;
    double version;
    bool due;       // its diagnostics are not published
    Analysis *now;  // of the text as it is; NULL: not made yet
    Analysis *good; // the last one whose text had no syntax errors; NULL: none was
};
Document *document_find(const Service *s, const char *uri);
// Of params.textDocument.uri; fails the request where there is none.
Document *document_of(Service *s, const cJSON *params);
void document_forget(Document *d); // frees it
// All documents whose analyses have read this path (NULL: any) are analysed again.
void documents_touch(Service *s, const char *path);
// The path of a uri, and back: of a document that is open, its own uri.
const char *uri_to_path(const Service *s, Arena *a, const char *uri);
const char *uri_of_path(const Service *s, Arena *a, const char *path);
// How any source of the document is compiled: its text, and imports by way of open documents.
FeOptions document_options(Service *s, const Document *d);
// The byte at params.position.
bool document_offset(Service *s, const Document *d, const cJSON *position, uint32_t *offset);

// --- analyses (analysis.c) ---
// What the compiler knows of a document's text.
typedef struct Derived {
    Variant *variant;
    RowProgram *row;
    Stream *stream;
} Derived;

struct Analysis {
    Arena *arena;
    Diags diags;             // of the front end; the source itself is file 1
    Module *module;          // NULL: there are errors
    Uses uses;               // what names mean, as far as it could be read
    VEC(AstTokens *) tokens; // by file; NULL: not made yet
    VEC(Lines) lines;        // by file of diags; text NULL: not made yet
    int looked_at;           // variants that were derived so far
    VEC(Derived) attentions; // in the order of the source
};
// Of the text as it is. Lives until the document changes.
Analysis *document_analysis(Service *s, Document *d);
// With what is derived of its attentions, and what the derivation says in diags. False: stopped.
bool document_derive(Service *s, Document *d);
void analysis_free(Analysis *a);
// All there are, also of a text that does not parse.
const AstTokens *analysis_tokens(Analysis *a, uint16_t file);
// The token that the byte is in or just after, names before others; NULL: there is none.
const AstToken *analysis_token(Analysis *a, uint32_t at);
// The name that the byte is in or just after.
const Use *analysis_use(const Analysis *a, uint32_t at);
// Two analyses of one source speak of the same definition.
bool analysis_same(const Analysis *a, const Decl *x, const Analysis *b, const Decl *y);
// What the text of a span is, in the arena of the analysis.
const char *analysis_text(Analysis *a, Span span);
const Lines *analysis_lines(Analysis *a, uint16_t file);
cJSON *analysis_range(Service *s, Analysis *a, Span span);
cJSON *analysis_location(Service *s, Analysis *a, Span span); // {uri, range}; NULL: no place

cJSON *tokens_legend(void); // of semantic tokens (tokens.c)

// --- names (names.c) ---
typedef struct Named { // a name of a document
    Document *document;
    Analysis *analysis; // of which decl and span are
    const Decl *decl;
    Span span; // in the text as it is
} Named;
// What a name means at a byte of the document, by the scopes there. NULL: nothing.
const Decl *names_visible(const Analysis *a, const char *name, uint32_t at);
// The name at the position of a request. False, with the request failed where the position is wrong:
// there is no name, or nobody knows it.
bool name_at(Service *s, const cJSON *params, Named *out);

// --- words (hover.c) ---
void hover_put_type(Text *out, const Tx *v, bool varies);
// "window(q_idx: i32, kv_idx: i32, size: i32) -> bool", as far as calls tell.
void hover_put_signature(Text *out, const Analysis *a, const Decl *d);

// --- diagnostics (diagnostics.c) ---
cJSON *diagnostics_of(Service *s, Analysis *a); // an array, as LSP has them
// Where in the document something is said of any of its sources.
Span diagnostics_place(const Analysis *a, Span at);
void diagnostics_publish(Service *s, Document *d);

#endif
