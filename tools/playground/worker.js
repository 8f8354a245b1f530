// worker.js: runs the language service beside the page. First comes {packed} (the module, gzip in base64) or {module} (compiled by a worker before);
// {module} goes back. Then texts of JSON-RPC go in and out. {crashed: why}: the module trapped, and answers no more.
import { instantiate } from "./wasm.js";

let compiler = null;
let waiting = []; // what came while the module was compiled

async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return WebAssembly.compile(await new Response(plain).arrayBuffer());
}

async function start({ packed, module }) {
    if (!module) {
        module = await unpack(packed);
        postMessage({ module });
    }
    compiler = instantiate(module, (json) => postMessage(json));
    for (const json of waiting) handle(json);
    waiting = [];
}

function handle(json) {
    try {
        compiler.handle(json);
    } catch (trap) {
        postMessage({ crashed: trap.message });
        close();
    }
}

onmessage = ({ data }) => {
    if (typeof data !== "string") start(data).catch((error) => postMessage({ crashed: error.message }));
    else if (compiler) handle(data);
    else waiting.push(data);
};
