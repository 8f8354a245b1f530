// tokens.js: the colours of the text. In: semantic tokens of the service, and the edits since. Out: the style of the next piece of a line, for
// CodeMirror. An edit moves what is behind it, so nothing flickers until the next tokens come. While the text does not parse, the service knows
// less of it: then lines that were not edited keep what they had.
export class Tokens {
    #lines = []; // of each line: [{from, to, type}], with .edited after an edit

    set(data, legend, broken) {
        const lines = [];
        let line = 0;
        let column = 0;
        for (let i = 0; i + 4 < data.length; i += 5) {
            column = data[i] ? data[i + 1] : column + data[i + 1];
            line += data[i];
            (lines[line] ||= []).push({ from: column, to: column + data[i + 2], type: legend[data[i + 3]] });
        }
        if (!broken) this.#lines = lines;
        else this.#lines.forEach((old, i) => old.edited && (this.#lines[i] = Object.assign(lines[i] || [], { edited: true })));
    }

    // from, to: what was replaced; text: the new lines.
    edit({ from, to, text }) {
        const end = text[text.length - 1].length + (text.length === 1 ? from.ch : 0);
        const first = (this.#lines[from.line] || []).filter((t) => t.from < from.ch).map((t) => ({ ...t, to: Math.min(t.to, from.ch) }));
        const rest = (this.#lines[to.line] || []).filter((t) => t.to > to.ch).map((t) => ({ ...t, from: Math.max(t.from, to.ch) - to.ch + end, to: t.to - to.ch + end }));
        const last = first[first.length - 1];
        if (text.length === 1 && last && last.to === from.ch && /^\w+$/.test(text[0])) last.to = end; // a word grows
        const lines = Array.from(text, () => Object.assign([], { edited: true }));
        lines[0].push(...first);
        lines[lines.length - 1].push(...rest);
        while (this.#lines.length < from.line) this.#lines.push([]);
        this.#lines.splice(from.line, to.line - from.line + 1, ...lines);
    }

    style(stream) {
        const tokens = this.#lines[stream.lineOracle.line] || [];
        const next = tokens.find((t) => t.to > stream.pos);
        if (!next) {
            stream.skipToEnd();
            return null;
        }
        if (next.from > stream.pos) {
            stream.pos = Math.min(next.from, stream.string.length);
            return null;
        }
        stream.pos = Math.min(next.to, stream.string.length);
        return `t-${next.type}`;
    }
}
