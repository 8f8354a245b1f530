// wasm.c: the language service (tools/service) as a WebAssembly module, a "reactor" without main. wasm.js is its other side.
//
// A host calls init() once; then for each message it writes the bytes to alloc(n) and calls handle(session, that, n), which frees
// them. What the service says comes through the import env.emit, before handle returns. There are no files: modules that are
// imported are the library's, or open documents. A trap (the stack or the memory is too small) ends the instance.
#include "tools/service/service.h"

#include <stdlib.h>

#define EXPORT(name) __attribute__((export_name(#name))) name

__attribute__((import_module("env"), import_name("emit"))) void emit(const char *json, size_t n);

static void send_message(void *ctx, const char *json, size_t n) {
    (void)ctx;
    emit(json, n);
}

Service *EXPORT(init)(void) {
    static const ServiceHost host = {
        .send = send_message, .library = "attn-std:/", .version = VERSION};
    return service_open(&host);
}

// NULL: there is not as much memory.
char *EXPORT(alloc)(size_t n) { return malloc(n); }

void EXPORT(handle)(Service *session, char *message, size_t n) {
    service_receive(session, message, n);
    free(message);
    while (service_step(session)) continue;
}
