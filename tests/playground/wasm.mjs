// wasm.mjs BUILD: the compiler as WebAssembly answers as `attnc lsp` does, request by request, over the whole library; and programs
// as deep and as long as the language allows fit its stack and memory.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { instantiate } from "../../tools/playground/wasm.js";

const build = process.argv[2] || "build";
const top = fileURLToPath(new URL("../..", import.meta.url));
const module = new WebAssembly.Module(fs.readFileSync(`${build}/playground/attnc.wasm`));
let passed = 0, failed = 0;

function check(what, good, detail = "") {
    if (good) passed++;
    else failed++, console.log(`FAILED: ${what} ${detail}`);
}

// A conversation: messages without ids; requests get theirs here.
const numbered = (messages) =>
    messages.map((m, i) => ({ jsonrpc: "2.0", ...(m.method.startsWith("textDocument/did") || m.method === "initialized" ? {} : { id: i }), ...m }));

function inWasm(messages) {
    const out = [];
    const compiler = instantiate(module, (json) => out.push(JSON.parse(json)));
    for (const m of numbered(messages)) compiler.handle(JSON.stringify(m));
    return out;
}

function natively(messages) {
    const cache = fs.mkdtempSync(path.join(os.tmpdir(), "attnc-"));
    const all = [...numbered(messages), { jsonrpc: "2.0", id: "end", method: "shutdown" }, { jsonrpc: "2.0", method: "exit" }];
    const input = Buffer.concat(
        all.map((m) => {
            const body = Buffer.from(JSON.stringify(m));
            return Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]);
        })
    );
    let bytes = execFileSync(`${build}/attnc`, ["lsp"], { input, maxBuffer: 1 << 28, env: { ...process.env, ATTNC_CACHE: cache } });
    const out = [];
    while (bytes.length) {
        const start = bytes.indexOf("\r\n\r\n") + 4;
        const end = start + Number(/Content-Length: (\d+)/.exec(bytes.subarray(0, start).toString())[1]);
        // the library's modules are files there
        const text = bytes.subarray(start, end).toString().replace(/file:[^"\\]*\/std[^\/"]*\//g, "attn-std:/");
        out.push(JSON.parse(text));
        bytes = bytes.subarray(end);
    }
    fs.rmSync(cache, { recursive: true });
    return out.filter((m) => m.id !== "end");
}

const answers = (messages) => messages.filter((m) => "id" in m).sort((a, b) => a.id - b.id);
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const textDocument = (uri) => ({ textDocument: { uri } });
const requests = (uri) => [
    { method: "attn/list", params: { ...textDocument(uri), sizes: { Sq: 5 } } },
    { method: "attn/derived", params: { ...textDocument(uri), formats: ["mathml", "text", "tex"] } },
    { method: "attn/mask", params: { ...textDocument(uri), sizes: { Sq: 100, Sk: 100 }, inputs: { doc: "0..3" }, at: { row: 0, column: 0 } } },
    { method: "attn/mask", params: { ...textDocument(uri), sizes: { Sq: 30, Sk: 40, q_offset: 10 }, tile: { queries: 4, keys: 8 }, at: { row: 1, column: 4 } } },
    { method: "attn/mask", params: { ...textDocument(uri), target: "sm_90a" } },
    { method: "attn/weights", params: { ...textDocument(uri), tokens: ["a", "row", "of", "a", "sentence"], inputs: { doc: "0..1" } } },
    { method: "attn/weights", params: { ...textDocument(uri), sizes: { Sq: 3, Sk: 7, H: 4, Hkv: 2 }, head: 3, seed: 5 } },
    { method: "attn/steps", params: { ...textDocument(uri), sizes: { Sq: 9, Sk: 21 }, keys: 5, parts: 3, row: 6 } },
    { method: "attn/kernel", params: { ...textDocument(uri) } },
    { method: "attn/kernel", params: { ...textDocument(uri), target: "sm_80" } },
    { method: "attn/weights", params: { ...textDocument(uri), sizes: { Sq: 100000 } } },
    { method: "attn/kernel", params: { ...textDocument(uri), target: "gfx1" } },
];

const initialize = { method: "initialize", params: { capabilities: {} } };
const open = (uri, text) => ({ method: "textDocument/didOpen", params: { textDocument: { uri, languageId: "attn", version: 1, text } } });

for (const name of fs.readdirSync(`${top}stdlib`).sort()) {
    const uri = pathToFileURL(`/somewhere/${name}`).href;
    const talk = [initialize, open(uri, fs.readFileSync(`${top}stdlib/${name}`, "utf8")), ...requests(uri)];
    const a = answers(inWasm(talk)), b = answers(natively(talk));
    for (let i = 0; i < b.length; i++)
        check(`${name}: ${talk[b[i].id].method}`, same(a[i], b[i]), `\n  wasm   ${JSON.stringify(a[i])}\n  native ${JSON.stringify(b[i])}`.slice(0, 2000));
    check(`${name}: as many answers`, a.length === b.length && b.length === 1 + requests(uri).length);
}

// Nesting as deep as the language allows, and far beyond.
for (const depth of [200, 100000]) {
    const out = [];
    const compiler = instantiate(module, (json) => out.push(JSON.parse(json)));
    const text = `attention deep { dim D = 1; score(q, k) = ${"(".repeat(depth)}dot(q, k)${")".repeat(depth)}; normalize(s) = s; }`;
    for (const m of numbered([initialize, open("file:///deep.attn", text)])) compiler.handle(JSON.stringify(m));
    const { diagnostics } = out.find((m) => m.method === "textDocument/publishDiagnostics").params;
    check(`${depth} parentheses`, (diagnostics.some((d) => d.severity === 1)) === depth > 256, JSON.stringify(diagnostics).slice(0, 300));
}

// Calls as deep as they may be, and formulas as long, through all panes.
const calls = (n) => Array.from({ length: n }, (_, i) => `fn step_${i}(x) = ${i ? `step_${i - 1}(x) + 1.0` : "x"};\n`).join("");
const sum = (n) => Array(n).fill("dot(q, k)").join(" + ");
const variant = (score, more = "") => `${more}attention long { dim D = 4; score(q, k) = ${score}; mask(b, h, i, j) = j <= i; normalize(s) = s; }`;
const long = { calls: variant("step_253(dot(q, k))", calls(254)), "too many calls": variant("step_299(dot(q, k))", calls(300)), sum: variant(sum(1000)), product: variant(sum(1000).replaceAll("+", "*")) };
for (const [name, text] of Object.entries(long)) {
    const out = [];
    const compiler = instantiate(module, (json) => out.push(JSON.parse(json)));
    for (const m of numbered([initialize, open("file:///long.attn", text), ...requests("file:///long.attn")])) compiler.handle(JSON.stringify(m));
    const refused = answers(out).filter((m) => m.error?.code === -32803).length;
    check(name, answers(out).length === 1 + requests("").length && refused > 0 === (name === "too many calls"), `${refused} are refused`);
}

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
