// sentence.js: what weights and steps have in common: a sentence that the user types, or random q and k of chosen lengths.
import { el, slider, select, freshId } from "../ui.js";

export const SENTENCE = "the cat sat on the mat because the cat was tired";
const LENGTHS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128];
const MOST = 128; // tokens that the service takes

export class Sentence {
    constructor(page) {
        this.page = page;
        const id = freshId("sentence");
        this.box = el("input", { type: "text", id, spellcheck: "false", autocomplete: "off", value: SENTENCE, oninput: () => page.setSize("text", this.box.value) });
        this.typed = el("div", { class: "field wide" }, el("label", { for: id, title: "Words, separated by spaces. The same word has the same vector." }, "Sentence"), this.box);
        this.kind = select({ label: "Rows of", options: [["words", "a sentence"], ["random", "random q and k"]], value: "words", change: (v) => page.setSize("of", v) });
        this.sq = slider({ label: "Sq", title: "How many queries", steps: LENGTHS, value: 16, change: (v) => page.setSize("queries", v) });
        this.sk = slider({ label: "Sk", title: "How many keys", steps: LENGTHS, value: 16, change: (v) => page.setSize("keys", v) });
        this.cut = el("p", { class: "note small wide", role: "status" });
        this.nodes = [this.typed, this.cut, this.kind.node, this.sq.node, this.sk.node];
    }
    get all() {
        return this.page.size("of", "words") === "words" ? String(this.page.size("text", SENTENCE)).split(/\s+/).filter(Boolean) : null;
    }
    get words() {
        return this.all?.slice(0, MOST) ?? null;
    }
    // The lengths as the service will have them.
    get lengths() {
        const words = this.words;
        return words ? { Sq: words.length, Sk: words.length } : { Sq: this.page.size("queries", 16), Sk: this.page.size("keys", 16) };
    }
    update() {
        const random = this.page.size("of", "words") === "random";
        this.kind.set(random ? "random" : "words");
        if (document.activeElement !== this.box) this.box.value = this.page.size("text", SENTENCE);
        this.sq.set(this.page.size("queries", 16));
        this.sk.set(this.page.size("keys", 16));
        this.typed.hidden = random;
        const said = this.all?.length > MOST ? `The first ${MOST} of ${this.all.length} words are shown.` : "";
        if (this.cut.textContent !== said) this.cut.textContent = said;
        this.cut.hidden = !said;
        this.sq.node.hidden = this.sk.node.hidden = !random;
    }
    // null while there is no word.
    parameters() {
        const words = this.words;
        if (words && !words.length) return null;
        const launch = this.page.launch(this.lengths);
        if (!words) return launch;
        delete launch.sizes.Sq;
        delete launch.sizes.Sk;
        return { ...launch, tokens: words };
    }
}
