// service.h: the language service: what an editor and the playground ask about sources. It speaks
// JSON-RPC as the Language Server Protocol 3.17 does (docs/lsp.md), and the requests of
// docs/service.md.
//
//     Service *s = service_open(&host);
//     service_receive(s, json, n);                 // a message of the client
//     while (service_step(s)) continue;            // answers go to host.send
//     service_close(s);
//
// It does no input or output by itself, starts no thread and keeps no global: `attnc lsp`
// (cmd_lsp.c), the playground's WebAssembly and the fuzzer are three hosts of it.
#ifndef SERVICE_SERVICE_H
#define SERVICE_SERVICE_H

#include "frontend/frontend.h"

typedef struct Service Service;

typedef struct ServiceHost {
    void *ctx; // of all functions below
    // A message to the client.
    void (*send)(void *ctx, const char *json, size_t n);
    // Sources that are imported and are not open documents. NULL: there are none.
    FeRead read;
    // Called now and then during long work: calls service_receive with what came in the meantime, so
    // that cancelled requests end and newer edits are seen. NULL: nothing comes.
    void (*poll)(void *ctx);
    const char *const *dirs; // -I, in order
    int ndirs;
    // Where a client finds the library's modules: "file:///usr/share/attnc/std/" if they are files,
    // else a scheme of its own ("attn-std:/"), whose documents `attn/source` gives.
    const char *library;
    const char *version; // of the compiler
} ServiceHost;

Service *service_open(const ServiceHost *host);
// Takes one message into the queue. Any bytes are allowed.
void service_receive(Service *s, const char *json, size_t n);
// Does the next thing that is due: the oldest message, else the diagnostics of one document that
// has changed. False: there is nothing to do.
bool service_step(Service *s);
// -1 until the client has said `exit`; then the status to end with.
int service_status(const Service *s);
void service_close(Service *s);

#endif
