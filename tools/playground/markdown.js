// markdown.js: what the service says in hovers: paragraphs, lists, `code`, fenced code, **strong**. Text is never parsed as HTML.
import { el } from "./ui.js";

export function markdown(contents) {
    const text = typeof contents === "string" ? contents : contents.value ?? [contents].flat().map((c) => c.value ?? c).join("\n\n");
    if (contents.kind === "plaintext") return [el("p", {}, text)];
    return text.split(/^(```\w*\n[^]*?^```)$/m).flatMap((piece) => {
        const fenced = /^```\w*\n([^]*?)\n?```$/.exec(piece);
        if (fenced) return [el("pre", {}, fenced[1])];
        return piece.split(/\n\s*\n|\n---\n/).filter((p) => p.trim() && p.trim() !== "---").map((p) => block(p.trim()));
    });
}

function block(text) {
    const items = text.split(/^[*-] /m).slice(1);
    return /^[*-] /.test(text) ? el("ul", {}, items.map((item) => el("li", {}, inline(item.trim())))) : el("p", {}, inline(text));
}

function inline(text) {
    return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((piece) => {
        if (/^`.+`$/.test(piece)) return el("code", {}, piece.slice(1, -1));
        if (/^\*\*.+\*\*$/.test(piece)) return el("strong", {}, piece.slice(2, -2));
        return piece.replace(/\\([\\`*_{}[\]()#+\-.!<>|])/g, "$1");
    });
}
