// service.js: the client of the language service. Messages are those of the Language Server Protocol, as `attnc lsp` speaks it; the service runs in a
// worker. Work that takes long is ended with its worker. The new one has no documents; the next setText opens them again.
export class Service {
    #worker = null;
    #waiting = new Map(); // id -> {resolve, reject, since}
    #nextId = 1;
    #makeWorker;
    #module = null; // compiled WebAssembly: a second worker starts at once
    #versions = new Map(); // uri -> version, of all workers
    #open = new Set(); // uris, of this worker

    // on(method, params) takes notifications; busy(since) is told the time of the oldest open request, or 0.
    constructor(makeWorker, { on, busy, failed }) {
        this.#makeWorker = makeWorker;
        this.on = on;
        this.busy = busy;
        this.failed = failed;
    }

    async start(initialize) {
        this.#initialize = initialize;
        const worker = (this.#worker = this.#makeWorker(this.#module));
        worker.onmessage = ({ data }) => this.#receive(worker, data);
        worker.onerror = (event) => this.failed(event.message || "the compiler's worker could not start");
        const result = await this.request("initialize", initialize);
        this.notify("initialized", {});
        return result;
    }
    #initialize = {};

    // Ends what runs. Its requests fail with {stopped: true}.
    restart() {
        this.#worker?.terminate();
        const waiting = [...this.#waiting.values()];
        this.#waiting.clear();
        this.#open.clear();
        this.#tell();
        for (const { reject } of waiting) reject(stopped());
        return this.start(this.#initialize);
    }

    #receive(worker, data) {
        if (worker !== this.#worker) return;
        if (data.module) {
            this.#module = data.module;
            return;
        }
        if (data.crashed) {
            this.failed(data.crashed);
            return;
        }
        const message = JSON.parse(data);
        if (message.method) {
            this.on(message.method, message.params);
            return;
        }
        const open = this.#waiting.get(message.id);
        if (!open) return;
        this.#waiting.delete(message.id);
        this.#tell();
        if (message.error) open.reject(Object.assign(new Error(message.error.message), { code: message.error.code, data: message.error.data }));
        else open.resolve(message.result);
    }

    #send(message) {
        this.#worker.postMessage(JSON.stringify({ jsonrpc: "2.0", ...message }));
    }
    #tell() {
        const oldest = this.#waiting.values().next().value;
        this.busy(oldest ? oldest.since : 0);
    }

    notify(method, params) {
        this.#send({ method, params });
    }
    request(method, params) {
        const id = this.#nextId++;
        return new Promise((resolve, reject) => {
            this.#waiting.set(id, { resolve, reject, since: performance.now(), method });
            this.#tell();
            this.#send({ id, method, params });
        });
    }

    // The text of a document, as of now.
    setText(uri, text) {
        const version = (this.#versions.get(uri) || 0) + 1;
        this.#versions.set(uri, version);
        if (this.#open.has(uri)) this.notify("textDocument/didChange", { textDocument: { uri, version }, contentChanges: [{ text }] });
        else this.notify("textDocument/didOpen", { textDocument: { uri, languageId: "attn", version, text } });
        this.#open.add(uri);
        return version;
    }
}

export const stopped = () => Object.assign(new Error("stopped"), { stopped: true });
