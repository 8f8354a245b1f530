// wasm.js: runs attnc.wasm (wasm.c), in a browser's worker and in Node alike.
//
//     const compiler = instantiate(await WebAssembly.compile(bytes), (json) => ...);
//     compiler.handle('{"jsonrpc": "2.0", ...}');   // answers come before it returns
//
// handle throws a WebAssembly.RuntimeError where the module traps (a stack that is too small, no memory); the instance is of no
// use then, and another one takes its place.

// What wasi-libc asks for. There are no files; what the compiler writes to stderr on its way to a failed assertion is kept.
function wasi(memory, said) {
    const view = () => new DataView(memory().buffer);
    const NOT_SUPPORTED = 58, BAD_DESCRIPTOR = 8;
    const calls = {
        fd_write(fd, vectors, count, written) {
            let n = 0;
            for (let i = 0; i < count; i++) {
                const at = view().getUint32(vectors + 8 * i, true);
                const length = view().getUint32(vectors + 8 * i + 4, true);
                said.push(new TextDecoder().decode(new Uint8Array(memory().buffer, at, length)));
                n += length;
            }
            view().setUint32(written, n, true);
            return 0;
        },
        proc_exit(status) {
            throw new WebAssembly.RuntimeError(`the compiler ended with status ${status}`);
        },
        fd_close: () => BAD_DESCRIPTOR,
        fd_prestat_get: () => BAD_DESCRIPTOR, // no folder is given
    };
    return new Proxy(calls, { get: (all, name) => all[name] || (() => NOT_SUPPORTED) });
}

export function instantiate(module, emit) {
    let exports;
    const said = [];
    const memory = () => exports.memory;
    const text = (at, n) => new TextDecoder().decode(new Uint8Array(memory().buffer, at, n));
    const instance = new WebAssembly.Instance(module, {
        env: { emit: (at, n) => emit(text(at >>> 0, n >>> 0)) },
        wasi_snapshot_preview1: wasi(memory, said),
    });
    exports = instance.exports;
    exports._initialize?.();
    const session = exports.init();
    return {
        handle(json) {
            const bytes = new TextEncoder().encode(json);
            const at = exports.alloc(bytes.length + 1) >>> 0;
            if (!at) throw new WebAssembly.RuntimeError("out of memory");
            new Uint8Array(memory().buffer, at, bytes.length).set(bytes);
            try {
                exports.handle(session, at, bytes.length);
            } catch (trap) {
                if (said.length) trap.message += `: ${said.join("")}`;
                throw trap;
            }
        },
    };
}
