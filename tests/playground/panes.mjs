// panes.mjs BUILD: what the requests of docs/service.md answer is right: tiles are what their pairs are, weights add up, the online loop ends where the
// full row does, lines have places, mistakes are named, limits hold. Run on the WebAssembly, which wasm.mjs holds against `attnc lsp`.
import fs from "node:fs";
import { fileURLToPath } from "node:url";
import { instantiate } from "../../tools/playground/wasm.js";

const build = process.argv[2] || "build";
const top = fileURLToPath(new URL("../..", import.meta.url));
const module = new WebAssembly.Module(fs.readFileSync(`${build}/playground/attnc.wasm`));
let passed = 0, failed = 0;

function check(what, good, detail = "") {
    if (good) passed++;
    else failed++, console.log(`FAILED: ${what} ${typeof detail === "string" ? detail : JSON.stringify(detail)}`.slice(0, 600));
}
const same = (what, got, wanted) => check(what, JSON.stringify(got) === JSON.stringify(wanted), `is ${JSON.stringify(got)}, not ${JSON.stringify(wanted)}`);

class Session {
    constructor(text) {
        this.uri = "file:///document.attn";
        this.next = 1;
        this.compiler = instantiate(module, (json) => (this.said = [...(this.said || []), JSON.parse(json)]));
        this.send({ id: 0, method: "initialize", params: { capabilities: {} } });
        this.send({ method: "textDocument/didOpen", params: { textDocument: { uri: this.uri, languageId: "attn", version: 1, text } } });
    }
    send(message) {
        this.said = [];
        this.compiler.handle(JSON.stringify({ jsonrpc: "2.0", ...message }));
    }
    ask(method, params = {}) {
        const id = this.next++;
        this.send({ id, method, params: { textDocument: { uri: this.uri }, ...params } });
        return this.said.find((m) => m.id === id);
    }
    result(method, params) {
        const { result, error } = this.ask(method, params);
        if (error) check(`${method} ${JSON.stringify(params)}`, false, error);
        return result;
    }
}
const library = fs.readdirSync(`${top}stdlib`).sort().map((name) => ({ name, text: fs.readFileSync(`${top}stdlib/${name}`, "utf8") }));
const source = (name) => library.find((f) => f.name === `${name}.attn`).text;

// Tags are closed in their order, and attributes are quoted.
function wellFormed(xml) {
    const open = [];
    const rest = xml.replace(/<(\/?)([a-z]+)((?: [a-z-]+="[^"<]*")*)(\/?)>/g, (_, end, tag, attributes, empty) => {
        if (end && open.pop() !== tag) open.push("wrong");
        if (!end && !empty) open.push(tag);
        return "";
    });
    return !open.length && !/[<>]/.test(rest.replace(/&[a-z#A-Z0-9]+;/g, ""));
}
// Places are in the text.
function inText(text, range) {
    const lines = text.split("\n");
    const { start, end } = range;
    return start.line <= end.line && end.line < lines.length && start.character <= lines[start.line].length && end.character <= lines[end.line].length;
}

// ---- all of the library
for (const { name, text } of library) {
    const session = new Session(text);
    const { variants } = session.result("attn/list");
    for (const { name: entry, kind } of variants) {
        if (kind === "recurrence") {
            same(`${name}: a recurrence`, session.ask("attn/steps", { entry }).error.code, -32803);
            continue;
        }
        const { sections } = session.result("attn/derived", { entry });
        same(`${name}: sections`, sections.filter((s) => ["row", "sweep", "end", "combine"].includes(s.id)).map((s) => s.id).join(" "), "row sweep end combine");
        for (const line of sections.flatMap((s) => s.lines)) {
            const here = line.place?.uri === session.uri;
            check(`${name}: ${line.text}`, line.parts.every((p) => !p.mathml || wellFormed(p.mathml)) && (!here || inText(text, line.place.range)), line);
        }
        const mask = session.result("attn/mask", { entry, sizes: { Sq: 40, Sk: 52 }, tile: { queries: 8, keys: 8 }, inputs: { doc: "0..2" } });
        let wrong = 0, pairs = 0;
        mask.classes.forEach((row, r) =>
            [...row].forEach((digit, c) => {
                const tile = mask.pairs.slice(8 * r, 8 * r + 8).map((bits) => bits.slice(8 * c, 8 * c + 8)).join("");
                wrong += (digit === "0" && tile.includes("1")) || (digit === "2" && tile.includes("0"));
                pairs += tile.split("1").length - 1;
            })
        );
        check(`${name}: tiles are what their pairs are`, !wrong && Math.abs(pairs / (40 * 52) - mask.inside) < 1e-6, mask.classes);
        const steps = session.result("attn/steps", { entry, sizes: { Sq: 9, Sk: 23 }, keys: 5, parts: 3, inputs: { doc: "0..1" } });
        same(`${name}: steps`, steps.steps.length, 5 * steps.sweeps);
        check(`${name}: the loop ends where the row does`, steps.end.error < 1e-5 && steps.merged.error < 1e-5, steps.end);
        steps.end.emits.forEach((e, i) => check(`${name}: ${e.name}`, Math.abs(e.value - steps.full.emits[i]) < 1e-5, [e, steps.full]));
        const kernel = session.result("attn/kernel", { entry });
        same(`${name}: the last pass`, kernel.stages.at(-1).name, "meanwhile");
        for (const s of kernel.stages) same(`${name}: lines after ${s.name}`, s.lines.length, s.text.split("\n").length - 1);
        const here = kernel.places.filter((p) => p && p.uri === session.uri);
        check(`${name}: lines have places`, here.length > 1 && here.every((p) => inText(text, p.range)), kernel.places);
    }
}

// ---- each line of a formula is found again in the program of every pass, also where derived exponents have taken its place
{
    const text = `attention halves {
    dim D = 64;
    score(q, k) = dot(q, k) / 8.0;
    normalize(s) {
        let m = rowmax(s);
        let e = exp((s - m) / 2);
        return e / sqrt(rowsum(e * e) + 0.1);
    }
}
`;
    const session = new Session(text);
    const { places, stages } = session.result("attn/kernel", { target: "sm_90a" });
    for (const s of stages) {
        const met = new Set(s.lines.flatMap((l) => l.places.map((i) => places[i].range.start.line)));
        check(`the formula's lines after ${s.name}`, [2, 4, 5, 6].every((line) => met.has(line)), [...met]);
    }
}

// ---- softmax and what is not
{
    const session = new Session(source("causal"));
    const w = session.result("attn/weights", { tokens: ["the", "cat", "saw", "the", "dog"] });
    same("a word's scores", w.scores[0], w.scores[3]);
    same("a word's keys", w.scores.map((row) => row[0]), w.scores.map((row) => row[3]));
    same("which pairs take part", w.mask, ["10000", "11000", "11100", "11110", "11111"]);
    check("rows add up to 1", w.sums.every((x) => Math.abs(x - 1) < 1e-6), w.sums);
    check("softmax is softmax", w.weights.every((row, i) => row.every((x, j) => Math.abs(x - w.softmax[i][j]) < 1e-6)), w.softmax);
    same("nothing of masked keys", w.weights[0].slice(1), [0, 0, 0, 0]);
    const nan = session.result("attn/weights", { sizes: { Sq: 2, Sk: 2, H: 1 }, constants: { D: 1 }, inputs: { q: [1, "nan"], k: [2, "-inf"] } });
    same("what is no number", [nan.scores[0], nan.scores[1][0]], [[2, "-inf"], "nan"]);
    const at = (row, column) => session.result("attn/mask", { tile: { queries: 16, keys: 16 }, at: { row, column } }).at;
    same("a skipped tile", [at(0, 1).class, at(0, 1).pairs, at(0, 1).text], ["skipped", 0, "kv_idx <= q_idx holds for no pair"]);
    same("a partial tile", [at(2, 2).class, at(2, 2).pairs, at(2, 2).terms[0].decides], ["partial", 136, true]);
    same("a full tile", [at(2, 1).class, at(2, 1).pairs, at(2, 1).text], ["full", 256, "kv_idx <= q_idx holds for every pair"]);
    const last = session.result("attn/steps", {}).steps.at(-1);
    same("a finished row", session.result("attn/steps", {}).end.o, last.o);
}
{
    const session = new Session(source("relu"));
    const w = session.result("attn/weights", {});
    check("relu is not softmax", w.weights.flat().some((x) => x === 0) && w.sums.some((x) => Math.abs(x - 1) > 0.01), w.sums);
}
{
    const two = "import std.mask;\nimport std.normalization;\nattention w { dim D = 8; score(q, k) = dot(q, k); mask(b, h, i, j) = causal(i, j) && i - j < 9; normalize(s) = softmax(s); }";
    const session = new Session(two);
    const rangeOf = (words) => {
        const character = two.split("\n")[2].indexOf(words);
        return { start: { line: 2, character }, end: { line: 2, character: character + words.length } };
    };
    const at = (row, column) => session.result("attn/mask", { tile: { queries: 8, keys: 8 }, at: { row, column } });
    same("which term decides", [at(0, 3), at(9, 2)].map((m) => m.at.terms.map((t) => t.decides)), [[true, false], [false, true]]);
    same("its place", at(9, 2).terms[1].place.range, rangeOf("i - j < 9"));
    same("the clause's place", at(0, 0).mask.place.range, rangeOf("causal(i, j) && i - j < 9"));
    const l = session.result("attn/derived", {}).sections[0].lines.find((x) => x.defines === "l");
    same("a reduction of the library stands at its call", l.place, { uri: session.uri, range: rangeOf("softmax(s)") });
    const tex = session.result("attn/derived", { formats: ["tex"] }).sections[0].lines.find((x) => x.defines === "l").parts[0];
    same("one form alone", tex, { tex: "l = \\sum_j e^{s - m}" });
}
{
    const norm = "attention n { dim D = 4; score(q, k) = dot(q, k); normalize(s) { let n = rowsum(1.0); let t = rowsum(s) / n; return exp(s - t) / rowsum(exp(s - t)); } }";
    const session = new Session(norm);
    const steps = session.result("attn/steps", { sizes: { Sk: 12 } });
    same("several sweeps", [steps.sweeps > 1, steps.parts, steps.merged, steps.steps[0].o, steps.steps[0].elements], [true, [], null, null, null]);
    check("they end where the row does", steps.end.error < 1e-5, steps.end);
    check("why", session.result("attn/derived", {}).blocking !== null);
}

// ---- the request's constants
{
    const session = new Session(source("sliding_window"));
    const list = session.result("attn/list", { constants: { WINDOW: 5, D: 16 }, sizes: { Sk: 99 } });
    same("constants", list.constants.map((c) => [c.name, c.value, c.of]), [["WINDOW", 5, null], ["D", 16, "sliding_window"], ["Dv", 16, "sliding_window"]]);
    same("sizes", list.variants[0].sizes.map((s) => s.value), [1, 2, 2, 16, 99, 0]);
    const w = session.result("attn/weights", { constants: { WINDOW: 2 }, sizes: { Sq: 4, Sk: 4 } });
    same("a window of two", w.mask, ["1000", "1100", "0110", "0011"]);
    const drawn = new Session(source("relative_bias")).result("attn/weights", { inputs: { bias: 0.5 }, sizes: { H: 1 } }).drawn;
    same("what was given", [drawn[0].name, drawn[0].from, drawn[0].shape, drawn[0].values[31]], ["bias", "given", [1, 32], 0.5]);
}

// ---- mistakes and limits
const text = source("document");
const session = new Session(text);
const refused = (what, method, params, message) => {
    const { error } = session.ask(method, params);
    check(what, error && error.code === -32602 && error.message.includes(message), error);
};
refused("a document that is not open", "attn/list", { textDocument: { uri: "file:///no.attn" } }, "no.attn");
refused("another entry", "attn/derived", { entry: "no_such" }, "no_such");
refused("another target", "attn/kernel", { target: "sm_1" }, "sm_1");
refused("another dtype", "attn/kernel", { dtype: "f8" }, "dtype");
refused("another shape", "attn/kernel", { shape: "wide" }, "wide");
refused("another schedule", "attn/kernel", { schedule: "rows" }, "schedule");
refused("a size below 0", "attn/mask", { sizes: { Sq: -1 } }, "Sq");
refused("a size that is no number", "attn/mask", { sizes: { Sk: "8" } }, "Sk");
refused("heads that do not divide", "attn/mask", { sizes: { H: 3, Hkv: 2 } }, "multiple");
refused("another head", "attn/weights", { head: 2 }, "head");
refused("another batch", "attn/weights", { batch: 1 }, "batch");
refused("another row", "attn/steps", { row: 16 }, "row");
refused("another tile", "attn/mask", { at: { row: 1000, column: 0 } }, "at.row");
refused("too few numbers", "attn/weights", { inputs: { doc: [1, 2] } }, "doc");
refused("another kind of input", "attn/weights", { inputs: { doc: {} } }, "doc");
refused("an empty range", "attn/weights", { inputs: { doc: "3..1" } }, "doc");
refused("constants without names", "attn/list", { constants: [1] }, "constants");
refused("tiles", "attn/mask", { sizes: { Sq: 4096, Sk: 4096 }, tile: { queries: 1, keys: 1 } }, "tiles");
refused("pairs", "attn/weights", { sizes: { Sq: 129, Sk: 128 } }, "16384");
refused("tokens", "attn/weights", { tokens: Array(129).fill("a") }, "128");
refused("tokens that are no words", "attn/weights", { tokens: [1] }, "strings");
refused("keys of a row", "attn/steps", { sizes: { Sk: 4097 }, keys: 1024 }, "4096");
refused("steps", "attn/steps", { sizes: { Sk: 257 }, keys: 1 }, "257 steps");
refused("parts", "attn/steps", { parts: 17 }, "parts");
refused("elements", "attn/weights", { sizes: { B: 4096, Sq: 16, Sk: 16 } }, "elements");
refused("columns", "attn/weights", { constants: { D: 513 } }, "513");
check("as many pairs as may be", session.result("attn/weights", { sizes: { Sq: 128, Sk: 128 } }).weights.length === 128);
check("as many tokens as may be", session.result("attn/weights", { tokens: Array(128).fill("a") }).weights.length === 128);
check("as many steps as may be", session.result("attn/steps", { sizes: { Sk: 256 }, keys: 1 }).steps.length === 256);
same("pairs that are too many for bits", session.result("attn/mask", { sizes: { Sq: 257, Sk: 256 } }).pairs, null);
check("as many pairs as have bits", session.result("attn/mask", { sizes: { Sq: 256, Sk: 256 } }).pairs.length === 256);
check("no queries", session.ask("attn/steps", { sizes: { Sq: 0 } }).error.message.includes("Sq is 0"));
same("no keys", session.result("attn/weights", { sizes: { Sq: 2, Sk: 0 } }).weights, [[], []]);
for (const bad of [null, 5, "x", [], true])
    for (const name of ["sizes", "inputs", "tile", "at", "formats", "seed", "entry"])
        for (const method of ["attn/list", "attn/derived", "attn/mask", "attn/weights", "attn/steps", "attn/kernel"]) {
            const { result, error } = session.ask(method, { [name]: bad });
            check(`${method} with ${name}: ${JSON.stringify(bad)}`, result || error.code === -32602, error);
        }

const broken = new Session("attention x { dim D = 4; score(q, k) = dit(q, k); normalize(s) = s; }").ask("attn/derived").error;
same("a source with a mistake", [broken.code, broken.data.diagnostics.length, broken.data.diagnostics[0].range.start], [-32803, 1, { line: 0, character: 39 }]);
same("no attention", new Session("const A = 1;").ask("attn/derived").error.code, -32803);
same("its list", new Session("const A = 1.5;").result("attn/list").constants[0].value, 1.5);

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
