// share.js: the state of the page in the fragment of its address, so that a link shares it. `#s=` + base64url(deflate-raw(JSON)), where the JSON is
// {"source": text, "pane": name, "sizes": {name: number or text, ...}}. A fragment comes from anyone: what does not fit is left out.
const LONGEST = 400000; // characters of a source; a link of a browser is no longer than some megabytes
const PANES = ["derived", "mask", "weights", "steps", "kernel"];

async function pump(bytes, stream, longest) {
    const writer = stream.writable.getWriter();
    const written = writer.write(bytes).then(() => writer.close());
    written.catch(() => {}); // the reader says what is wrong
    const parts = [];
    let size = 0;
    for (const reader = stream.readable.getReader();;) {
        const { done, value } = await reader.read();
        if (done) break;
        size += value.length;
        if (size > longest) throw new Error("too long");
        parts.push(value);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function toBase64url(bytes) {
    let text = "";
    for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
    return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
const fromBase64url = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));

export async function encode(state) {
    const bytes = new TextEncoder().encode(JSON.stringify(state));
    return "#s=" + toBase64url(await pump(bytes, new CompressionStream("deflate-raw"), Infinity));
}

// The state of a fragment; null when it holds none that can be read.
export async function decode(fragment) {
    const match = /^#s=([A-Za-z0-9_-]+)=*$/.exec(fragment);
    if (!match) return null;
    try {
        const bytes = await pump(fromBase64url(match[1]), new DecompressionStream("deflate-raw"), 4 * LONGEST);
        return checked(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes)));
    } catch {
        return null;
    }
}

function checked(state) {
    if (typeof state?.source !== "string" || state.source.length > LONGEST) return null;
    const sizes = {};
    for (const [name, value] of Object.entries(state.sizes || {})) {
        const fits = typeof value === "number" ? Number.isFinite(value) : typeof value === "string" && value.length < 2000;
        if (fits && /^[A-Za-z_][\w.]{0,63}$/.test(name) && name !== "__proto__") sizes[name] = value;
    }
    return { source: state.source, pane: PANES.includes(state.pane) ? state.pane : PANES[0], sizes };
}
