// service.c: messages: the queue, the table of methods, the life of a session.
//
// In: messages of a client. Out: answers, in the order of the requests. Holds: every request has
// exactly one answer, a notification has none, and what is no message is answered by an error and
// changes nothing.
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Message {
    Message *next;
    cJSON *json;
    bool cancelled;
};

static const struct {
    const char *name;
    Handler handler;
    bool request;
} methods[] = {
#define REQUEST(method, function) {method, function, true},
#define NOTIFICATION(method, function) {method, function, false},
#include "methods.def"
#undef REQUEST
#undef NOTIFICATION
};

// ---- to the client

static void send_message(Service *s, cJSON *message) {
    cJSON_AddStringToObject(message, "jsonrpc", "2.0");
    char *text = cJSON_PrintUnformatted(message);
    if (text) s->host.send(s->host.ctx, text, strlen(text));
    cJSON_free(text);
    cJSON_Delete(message);
}

static void answer(Service *s, const cJSON *id, const char *member, cJSON *value) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddItemToObject(message, "id", id ? cJSON_Duplicate(id, false) : cJSON_CreateNull());
    cJSON_AddItemToObject(message, member, value ? value : cJSON_CreateNull());
    send_message(s, message);
}

static void answer_error(Service *s, const cJSON *id, int code, const char *text, cJSON *data) {
    cJSON *error = cJSON_CreateObject();
    cJSON_AddNumberToObject(error, "code", code);
    cJSON_AddStringToObject(error, "message", text);
    if (data) cJSON_AddItemToObject(error, "data", data);
    answer(s, id, "error", error);
}

cJSON *service_fail(Service *s, int code, cJSON *data, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->error.message, sizeof s->error.message, fmt, ap);
    va_end(ap);
    cJSON_Delete(s->error.data);
    s->error.code = code;
    s->error.data = data;
    return NULL;
}

void service_notify(Service *s, const char *method, cJSON *params) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "method", method);
    if (params) cJSON_AddItemToObject(message, "params", params);
    send_message(s, message);
}

void service_request(Service *s, const char *method, cJSON *params) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddNumberToObject(message, "id", ++s->calls);
    cJSON_AddStringToObject(message, "method", method);
    if (params) cJSON_AddItemToObject(message, "params", params);
    send_message(s, message);
}

// ---- the queue

static Message *new_message(Service *s, cJSON *json) {
    Message *m = s->unused;
    if (m)
        s->unused = m->next;
    else
        m = ARENA_NEW(s->arena, Message);
    *m = (Message){.json = json};
    return m;
}

static void free_message(Service *s, Message *m) {
    cJSON_Delete(m->json);
    m->next = s->unused;
    s->unused = m;
}

// A request that waits or is being answered is marked; one that was answered is not there any more.
static void cancel(Service *s, const cJSON *id) {
    if (s->now && cJSON_Compare(json_get(s->now->json, "id"), id, true)) s->now->cancelled = true;
    for (Message *m = s->first; m; m = m->next)
        if (cJSON_Compare(json_get(m->json, "id"), id, true)) m->cancelled = true;
}

static bool is_id(const cJSON *id) { return cJSON_IsNumber(id) || cJSON_IsString(id); }

void service_receive(Service *s, const char *json, size_t n) {
    Arena *a = arena_new();
    char *copy = arena_strndup(a, json, n);
    json_mend(copy, n);
    cJSON *message = cJSON_ParseWithLength(copy, n);
    arena_free(a);
    if (!message) {
        answer_error(s, NULL, RPC_PARSE_ERROR, "this message is not JSON", NULL);
        return;
    }
    const char *method = json_string(message, "method");
    if (method && !strcmp(method, "$/cancelRequest")) {
        if (is_id(json_get(message, "params.id"))) cancel(s, json_get(message, "params.id"));
        cJSON_Delete(message);
        return;
    }
    Message *m = new_message(s, message);
    if (s->last)
        s->last->next = m;
    else
        s->first = m;
    s->last = m;
}

bool service_stopped(Service *s) {
    if (s->host.poll) s->host.poll(s->host.ctx);
    return s->now ? s->now->cancelled : s->first != NULL;
}

// ---- handling

static Handler find_method(const char *name, bool request) {
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(methods[i].name, name))
            return methods[i].request == request ? methods[i].handler : NULL;
    return NULL;
}

static void handle_request(Service *s, const cJSON *id, const char *method, const cJSON *params) {
    Handler handler = find_method(method, true);
    cJSON *result = NULL;
    if (s->now->cancelled)
        service_fail(s, RPC_CANCELLED, NULL, "cancelled");
    else if (s->shut_down)
        service_fail(s, RPC_INVALID_REQUEST, NULL, "the service was shut down");
    else if (!s->initialized && handler != service_initialize)
        service_fail(s, RPC_NOT_INITIALIZED, NULL, "the first request is 'initialize'");
    else if (!handler)
        service_fail(s, RPC_METHOD_NOT_FOUND, NULL, "there is no request '%.100s'", method);
    else
        result = handler(s, params);
    if (s->now->cancelled) { // also one that was answered by chance
        cJSON_Delete(result);
        result = service_fail(s, RPC_CANCELLED, NULL, "cancelled");
    }
    if (s->error.code)
        answer_error(s, id, s->error.code, s->error.message, s->error.data);
    else
        answer(s, id, "result", result);
    s->error.code = 0;
    s->error.data = NULL;
}

static void handle_notification(Service *s, const char *method, const cJSON *params) {
    Handler handler = find_method(method, false);
    bool ready = s->initialized && !s->shut_down;
    if (handler && (ready || handler == service_exit)) cJSON_Delete(handler(s, params));
    cJSON_Delete(s->error.data); // a notification has no answer
    s->error.code = 0;
    s->error.data = NULL;
}

static void handle(Service *s, const cJSON *message) {
    const cJSON *id = json_get(message, "id");
    const char *method = json_string(message, "method");
    const cJSON *params = json_get(message, "params");
    bool reply = json_get(message, "result") || json_get(message, "error");
    if (!method && cJSON_IsObject(message) && reply) return; // to a request of ours
    if (!method || (id && !is_id(id)))
        answer_error(s, is_id(id) ? id : NULL, RPC_INVALID_REQUEST, "this is no request", NULL);
    else if (id)
        handle_request(s, id, method, params);
    else
        handle_notification(s, method, params);
}

bool service_step(Service *s) {
    Message *m = s->first;
    if (m) {
        s->first = m->next;
        if (!s->first) s->last = NULL;
        s->now = m;
        handle(s, m->json);
        s->now = NULL;
        free_message(s, m);
        return true;
    }
    for (Document *d = s->documents; d && !s->shut_down; d = d->next)
        if (d->due) {
            diagnostics_publish(s, d);
            return true;
        }
    return false;
}

// ---- the life of a session

Service *service_open(const ServiceHost *host) {
    Arena *a = arena_new();
    Service *s = ARENA_NEW(a, Service);
    *s = (Service){.host = *host, .arena = a, .status = -1};
    return s;
}

int service_status(const Service *s) { return s->status; }

void service_close(Service *s) {
    while (s->first) {
        Message *m = s->first;
        s->first = m->next;
        free_message(s, m);
    }
    while (s->documents) {
        Document *d = s->documents;
        s->documents = d->next;
        document_forget(d);
    }
    arena_free(s->arena);
}

static Client read_client(const cJSON *c) {
    return (Client){
        .utf8 = json_lists(json_get(c, "general.positionEncodings"), "utf-8"),
        .related = json_true(c, "textDocument.publishDiagnostics.relatedInformation"),
        .tags = json_get(c, "textDocument.publishDiagnostics.tagSupport") != NULL,
        .markdown = json_lists(json_get(c, "textDocument.hover.contentFormat"), "markdown"),
        .completion_markdown = json_lists(
            json_get(c, "textDocument.completion.completionItem.documentationFormat"), "markdown"),
        .snippets = json_true(c, "textDocument.completion.completionItem.snippetSupport"),
        .hierarchical =
            json_true(c, "textDocument.documentSymbol.hierarchicalDocumentSymbolSupport"),
        .watches = json_true(c, "workspace.didChangeWatchedFiles.dynamicRegistration"),
        .literals = json_get(c, "textDocument.codeAction.codeActionLiteralSupport") != NULL,
        .prepare = json_true(c, "textDocument.rename.prepareSupport"),
    };
}

static cJSON *characters(const char *s) {
    cJSON *all = cJSON_CreateArray();
    for (; *s; s++) {
        const char one[] = {*s, '\0'};
        cJSON_AddItemToArray(all, cJSON_CreateString(one));
    }
    return all;
}

static cJSON *capabilities(const Service *s) {
    cJSON *c = cJSON_CreateObject(), *sync = cJSON_AddObjectToObject(c, "textDocumentSync");
    cJSON_AddStringToObject(c, "positionEncoding", s->client.utf8 ? "utf-8" : "utf-16");
    cJSON_AddTrueToObject(sync, "openClose");
    cJSON_AddNumberToObject(sync, "change", 2); // incremental
    cJSON_AddTrueToObject(sync, "save");
    cJSON_AddTrueToObject(c, "definitionProvider");
    cJSON_AddTrueToObject(c, "hoverProvider");
    cJSON_AddItemToObject(cJSON_AddObjectToObject(c, "completionProvider"), "triggerCharacters",
                          characters("."));
    cJSON_AddItemToObject(cJSON_AddObjectToObject(c, "signatureHelpProvider"), "triggerCharacters",
                          characters("(,"));
    cJSON_AddTrueToObject(c, "referencesProvider");
    cJSON_AddTrueToObject(c, "documentHighlightProvider");
    cJSON_AddTrueToObject(c, "documentSymbolProvider");
    cJSON_AddTrueToObject(c, "documentFormattingProvider");
    cJSON_AddTrueToObject(c, "foldingRangeProvider");
    cJSON_AddItemToObject(c, "semanticTokensProvider",
                          json_pair("legend", tokens_legend(), "full", cJSON_CreateTrue()));
    if (s->client.literals)
        cJSON_AddItemToArray(
            cJSON_AddArrayToObject(cJSON_AddObjectToObject(c, "codeActionProvider"),
                                   "codeActionKinds"),
            cJSON_CreateString("quickfix"));
    if (s->client.prepare)
        cJSON_AddTrueToObject(cJSON_AddObjectToObject(c, "renameProvider"), "prepareProvider");
    else
        cJSON_AddTrueToObject(c, "renameProvider");
    return c;
}

cJSON *service_initialize(Service *s, const cJSON *params) {
    if (s->initialized)
        return service_fail(s, RPC_INVALID_REQUEST, NULL, "the session is initialized already");
    s->initialized = true;
    s->client = read_client(json_get(params, "capabilities"));
    cJSON *result = json_pair("capabilities", capabilities(s), "serverInfo",
                              json_pair("name", cJSON_CreateString("attnc"), "version",
                                        cJSON_CreateString(s->host.version)));
    return result;
}

// The client is asked to tell of imported files that change under it.
cJSON *service_initialized(Service *s, const cJSON *params) {
    (void)params;
    if (!s->client.watches) return NULL;
    cJSON *watch = cJSON_CreateObject(), *watchers = cJSON_CreateArray(),
          *one = cJSON_CreateObject(), *all = cJSON_CreateArray();
    cJSON_AddStringToObject(watch, "globPattern", "**/*.attn");
    cJSON_AddItemToArray(watchers, watch);
    cJSON_AddStringToObject(one, "id", "files");
    cJSON_AddStringToObject(one, "method", "workspace/didChangeWatchedFiles");
    cJSON_AddItemToObject(cJSON_AddObjectToObject(one, "registerOptions"), "watchers", watchers);
    cJSON_AddItemToArray(all, one);
    cJSON *registration = cJSON_CreateObject();
    cJSON_AddItemToObject(registration, "registrations", all);
    service_request(s, "client/registerCapability", registration);
    return NULL;
}

cJSON *service_shutdown(Service *s, const cJSON *params) {
    (void)params;
    s->shut_down = true;
    return NULL;
}

cJSON *service_exit(Service *s, const cJSON *params) {
    (void)params;
    s->status = s->shut_down ? 0 : 1;
    return NULL;
}
