// main.js: the page. It holds the state (source, pane, sizes), asks the service for what the pane in view needs, and shows it. At most one request of
// a pane is open: what changes meanwhile is asked once more when the answer is there, so that typing is never behind by more than one answer.
import { $, el, tabs, say } from "./ui.js";
import { Editor, kind } from "./editor.js";
import { Service, stopped } from "./service.js";
import { encode, decode } from "./share.js";
import { common, inputs } from "./controls.js";
import { chrome } from "./chrome.js";
import * as derived from "./panes/derived.js";
import * as mask from "./panes/mask.js";
import * as weights from "./panes/weights.js";
import * as steps from "./panes/steps.js";
import * as kernel from "./panes/kernel.js";

const URI = "file:///playground.attn";
const BUSY_AFTER = 300; // ms until work shows progress
const PROBLEM_AFTER = 500; // ms until a pane says that the source has a problem: while one writes, it often has
const OVERTAKEN_AFTER = 1000; // ms after which an edit ends the work on the text before it
const DATA = JSON.parse($("data").textContent); // {examples: [{name, title, source, pane, sizes}], licences: [...]}
const modules = { derived, mask, weights, steps, kernel };

const page = {
    uri: URI, list: null, variant: null, cursor: null, sizes: {}, pane: "derived",

    // ---- sizes: what the sliders say. setSize asks the service again, keepSize only keeps.
    size: (name, initial) => page.sizes[name] ?? initial,
    setSize(name, value) {
        page.keepSize(name, value);
        halted = false;
        if (name === "entry" || name.startsWith("const.")) lists();
        refresh();
    },
    keepSize(name, value) {
        page.sizes[name] = value;
        keep();
    },

    // ---- parameters that requests share
    common: (more) => ({ textDocument: { uri: URI }, ...(page.variant ? { entry: page.variant.name } : {}), ...common(page.sizes, page.list), ...more }),
    // `lengths`: Sq, Sk and what else the pane chooses.
    launch(lengths) {
        const free = (page.variant?.sizes || []).filter((s) => s.free).map((s) => [s.name, page.size(s.name, s.value)]);
        const sizes = { H: page.size("H", 2), ...Object.fromEntries(free), ...lengths };
        return page.common({ sizes, head: Math.min(page.size("head", 0), sizes.H - 1), seed: page.size("seed", 1), inputs: inputs(page.sizes, page.variant, sizes) });
    },
    ask: (method, params) => ask(method, params).catch((error) => fail(error)),
    light: (ranges) => editor.light(ranges, true),
    reveal(place) {
        if (place.uri === URI) editor.show(place.range);
        else peek(place).catch((error) => say(error.message));
    },
};

// ---- the service
const service = new Service(makeWorker, { on: notified, busy, failed });
const workerUrl = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
let legend = [];
let synced = true; // the service has the text of the editor
let answered = 0; // the version of the last diagnostics
let version = 0;
let halted = false; // the user has stopped the work on this text

function makeWorker(module) {
    const worker = new Worker(workerUrl);
    worker.postMessage(module ? { module } : { packed: $("wasm").textContent });
    return worker;
}
const capabilities = {
    general: { positionEncodings: ["utf-16"] },
    textDocument: {
        completion: { completionItem: { snippetSupport: true, documentationFormat: ["markdown", "plaintext"] } },
        hover: { contentFormat: ["markdown", "plaintext"] },
        semanticTokens: { requests: { full: true }, formats: ["relative"], tokenTypes: [], tokenModifiers: [] },
        publishDiagnostics: { versionSupport: true, relatedInformation: true },
    },
};

function sync() {
    if (synced || halted) return;
    synced = true;
    version = service.setText(URI, editor.text);
}
// Of the document, as it is now.
function ask(method, params) {
    if (halted) return Promise.reject(stopped());
    sync();
    return service.request(method, { textDocument: { uri: URI }, ...params });
}
function notified(method, params) {
    if (method !== "textDocument/publishDiagnostics" || params.uri !== URI) return;
    if (params.version && params.version < version) return;
    answered = version;
    noise();
    editor.setDiagnostics(params.diagnostics);
    problems(params.diagnostics);
}

// ---- the editor
const editor = new Editor($("editor"), {
    ask,
    changed: edited,
    moved(at) {
        page.cursor = at;
        $("position").textContent = `Line ${at.line + 1}, column ${at.ch + 1}`;
        panes[page.pane]?.cursor?.(at);
    },
    reveal: page.reveal,
});
let frame = 0;
function edited() {
    synced = halted = false;
    keep();
    noise();
    frame ||= requestAnimationFrame(() => {
        frame = 0;
        overtake();
        update();
    });
}
// Work on a text that is no longer there is ended once it has taken long.
function overtake() {
    if (since && performance.now() - since > OVERTAKEN_AFTER) restart();
}
function update() {
    sync();
    refresh(); // first what is looked at
    colors();
    lists();
}
const latest = (f) => {
    let open = false;
    let again = false;
    return async function run() {
        if (open) {
            again = true;
            return;
        }
        open = true;
        await f().catch((error) => error.stopped || error.code || console.error(error));
        open = false;
        if (again) {
            again = false;
            run();
        }
    };
};
const colors = latest(async () => {
    const answer = await ask("textDocument/semanticTokens/full", {});
    if (answer && synced) editor.setTokens(answer.data, legend);
});
// Names of variants, constants and inputs. While the source has errors, the last ones stay.
const lists = latest(async () => {
    const list = await ask("attn/list", {});
    const over = common(page.sizes, list).constants;
    const extents = Object.keys(over).length ? await ask("attn/list", { constants: over }).catch(() => list) : list;
    const before = JSON.stringify([page.list?.constants, page.variant]);
    page.list = list;
    const attentions = extents.variants.filter((v) => v.kind === "attention");
    page.variant = attentions.find((v) => v.name === page.size("entry", "")) || attentions[0] || null;
    status();
    if (JSON.stringify([page.list.constants, page.variant]) !== before) refresh();
});

// ---- panes
const panes = {};
const open = {}; // pane -> its request is open
const dirty = {};
const place = (name) => $(`pane-${name}`);
function pane(name) {
    return (panes[name] ||= modules[name].create(place(name), page));
}

function refresh() {
    const name = page.pane;
    const shown = pane(name);
    shown.controls?.();
    if (open[name]) {
        dirty[name] = true;
        return;
    }
    const request = shown.request();
    if (!request) {
        message(name, shown.missing);
        return;
    }
    open[name] = true;
    dirty[name] = false;
    ask(...request).then((result) => {
        message(name, "");
        shown.show(result);
        place(name).dataset.shows = "true";
        if (page.cursor) shown.cursor?.(page.cursor);
    }).catch((error) => fail(error, name)).finally(() => {
        open[name] = false;
        document.documentElement.dataset.shown = String(version); // of which text something is shown
        if (!performance.getEntriesByName("shown").length) performance.mark("shown");
        if (dirty[name] && page.pane === name) refresh();
    });
}
function fail(error, name = page.pane) {
    if (error.stopped) {
        message(name, "Stopped. A change of the source or of a slider starts again.");
        return;
    }
    if (!error.code) throw error;
    if (error.code !== -32803) message(name, error.message);
    else {
        clearTimeout(told);
        told = setTimeout(() => (nothing() ? message(name, page.list.variants.length ? `Nothing to show: ${error.message}.` : NOTHING, true) : message(name, `This cannot be shown: ${error.message}.`)), PROBLEM_AFTER);
    }
}
const NOTHING = "There is no attention here yet. Write one, or choose an example above.";
// The source is right, and holds nothing that the panes show.
const nothing = () => Boolean(page.list && !page.variant && !errors());
let told = 0; // the timer of a message that is to come
// What is below a message is of before: it is greyed and says so, or, where nothing is to be shown, it goes.
function message(name, text, blank = false) {
    clearTimeout(told);
    told = 0;
    noise();
    const root = place(name);
    const old = root.querySelector(":scope > .message");
    root.classList.toggle("stale", Boolean(text) && root.dataset.shows === "true");
    root.classList.toggle("blank", blank);
    if (old?.textContent === text) return;
    old?.remove();
    if (text) root.prepend(el("p", { class: "message", role: "status" }, text));
}
const showPane = tabs(document.querySelector(".tabs"), (name) => {
    page.pane = name;
    halted = false;
    editor.light([]);
    keep();
    if (!loading) refresh();
});

// ---- problems, and other files
const errors = () => editor.diagnostics.filter((d) => (d.severity || 1) === 1).length;
function status() {
    const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
    const empty = page.list && !page.list.variants.length;
    const text = errors() ? count(errors(), "error") : editor.diagnostics.length ? count(editor.diagnostics.length, "note") : empty ? "No attention yet" : "No problems";
    if ($("state").textContent !== text) $("state").textContent = text;
}
function problems(list) {
    const box = $("problems");
    box.hidden = list.length === 0;
    box.replaceChildren(...list.slice(0, 100).map((d) =>
        el("button", { class: kind(d.severity), onclick: () => editor.show(d.range) }, el("span", { class: "kind" }, kind(d.severity)), el("span", { class: "at" }, `${d.range.start.line + 1}:${d.range.start.character + 1}`), el("span", {}, d.message))));
    status();
    editor.refresh();
}
// A place in a module of the library, read only.
async function peek({ uri, range }) {
    const { text } = await service.request("attn/source", { uri });
    const file = decodeURIComponent(uri.replace(/^.*\//, ""));
    const lines = text.split("\n");
    const offset = ({ line, character }) => lines.slice(0, line).reduce((n, l) => n + l.length + 1, 0) + character;
    const mark = el("mark", {}, text.slice(offset(range.start), offset(range.end)));
    const close = () => {
        $("peek").hidden = true;
        editor.refresh();
    };
    $("peek").replaceChildren(el("header", {}, el("span", {}, `std/${file}, line ${range.start.line + 1} (the library, read only)`), el("button", { class: "quiet", onclick: close }, "Close")),
        el("pre", { tabindex: "0", role: "region", "aria-label": `std/${file}` }, text.slice(0, offset(range.start)), mark, text.slice(offset(range.end))));
    $("peek").hidden = false;
    editor.refresh();
    mark.scrollIntoView({ block: "center" });
}

// What the page asks for is answered, and shown: the tests wait for this.
let calm = 0;
function noise() {
    document.documentElement.dataset.quiet = "false";
    clearTimeout(calm);
    calm = setTimeout(() => {
        document.documentElement.dataset.quiet = String(!since && !frame && !loading && answered === version && !told);
    }, 20);
}

// ---- long work, and work that went wrong
let since = 0;
let timer = 0;
function busy(oldest) {
    since = oldest;
    noise();
    clearTimeout(timer);
    if (!oldest) $("progress").hidden = true;
    else timer = setTimeout(() => { $("progress").hidden = false; }, Math.max(0, oldest + BUSY_AFTER - performance.now()));
}
function restart() {
    synced = false;
    service.restart().catch((error) => error.stopped || message(page.pane, error.message));
}
$("stop").addEventListener("click", () => {
    halted = true;
    for (const name of Object.keys(dirty)) dirty[name] = false;
    restart();
});

const FAILING = 1000; // ms: a worker that lives no longer than that will not be better the next time
let failedAt = -FAILING;

// The compiler's memory or stack is too small for this text, or it has a fault. Another worker takes the next text.
function failed(why) {
    halted = true;
    for (const name of Object.keys(dirty)) dirty[name] = false;
    const now = performance.now();
    if (!loading && now - failedAt > FAILING) restart(); // else it would fail again and again
    failedAt = now;
    $("state").textContent = "The compiler has failed";
    setTimeout(() => message(page.pane, `The compiler has failed on this text (${why}). A change of the source starts it again.`));
}

// ---- the address
let keeping = 0;
const state = () => ({ source: editor.text, pane: page.pane, sizes: page.sizes });
function keep() {
    clearTimeout(keeping);
    if (!loading) keeping = setTimeout(async () => history.replaceState(null, "", await encode(state())), 400);
}
let loading = true;
function load({ source, pane: name, sizes }) {
    page.sizes = { ...sizes };
    page.list = page.variant = null;
    page.pane = name;
    editor.text = source;
    showPane(name);
}
async function fromAddress() {
    const found = await decode(location.hash);
    if (location.hash.length > 1 && !found) say("This link holds nothing that can be read. The first example is shown.");
    return found;
}
addEventListener("hashchange", async () => {
    const found = await decode(location.hash);
    if (found) load(found);
    else say("This link holds nothing that can be read.");
});

async function begin() {
    chrome({ page, editor, data: DATA, load, share: async () => location.href.replace(/#.*$/, "") + (await encode(state())), redraw: () => panes[page.pane]?.redraw?.() });
    const first = (await fromAddress()) || DATA.examples[0];
    load(first);
    const { capabilities: can } = await service.start({ processId: null, rootUri: null, clientInfo: { name: "attnc playground" }, capabilities });
    legend = can.semanticTokensProvider?.legend.tokenTypes || [];
    loading = false;
    update();
    document.documentElement.dataset.ready = "true";
}
begin();
