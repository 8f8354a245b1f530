// chrome.js: what stands around editor and panes: examples, files, the link, colours, help, and the divider.
import { $, el, say } from "./ui.js";

export function chrome({ page, editor, data, load, share, redraw }) {
    examples(data.examples, load, editor);
    files(page, editor, load);
    $("share").addEventListener("click", async () => {
        const link = await share();
        history.replaceState(null, "", link.slice(link.indexOf("#")));
        try {
            await navigator.clipboard.writeText(link);
            say("The link is copied. It holds the source, the sizes and the pane.");
        } catch {
            say("The link is in the address bar.");
        }
    });
    scheme(redraw);
    $("format").addEventListener("click", () => editor.format());
    $("help").addEventListener("click", () => $("about").showModal());
    $("licences").append(...data.licences.map(({ name, text }) => el("details", {}, el("summary", {}, name), el("pre", { tabindex: "0", role: "region", "aria-label": name }, text))));
    divider(editor);
}

function examples(list, load, editor) {
    const box = $("examples");
    box.append(...list.map(({ name, title }) => el("option", { value: name }, title)));
    box.addEventListener("change", () => {
        load(list.find((e) => e.name === box.value));
    });
    editor.cm.on("change", () => {
        const same = list.find((e) => e.source === editor.text);
        box.querySelector("option[value='']")?.remove();
        if (!same) box.prepend(el("option", { value: "" }, "your own"));
        box.value = same ? same.name : "";
    });
}

function files(page, editor, load) {
    const read = async (file) => {
        if (!file) return;
        if (file.size > 400000) {
            say("The file is too large for this page.");
            return;
        }
        load({ source: await file.text(), pane: page.pane, sizes: {} });
        say(`${file.name} is open.`);
    };
    $("open").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => {
        read($("file").files[0]);
        $("file").value = "";
    });
    $("download").addEventListener("click", () => {
        const name = /^\s*attention\s+(\w+)/m.exec(editor.text)?.[1] || "variant";
        const url = URL.createObjectURL(new Blob([editor.text], { type: "text/plain" }));
        el("a", { href: url, download: `${name}.attn` }).click();
        setTimeout(() => URL.revokeObjectURL(url), 1000);
    });
    // Text that is dragged within the page is the editor's own.
    const holds = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
        if (!holds(event)) return;
        event.preventDefault();
        document.body.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
        document.body.classList.remove("dropping");
        if (!holds(event)) return;
        event.preventDefault();
        event.stopPropagation();
        read(event.dataTransfer.files[0]);
    }, true);
}

// Colours: as the system, light, dark. Kept for the next visit where the browser allows it.
function scheme(redraw) {
    const names = { "": "Auto", light: "Light", dark: "Dark" };
    const remembered = () => {
        try {
            return localStorage.getItem("attnc.theme") || "";
        } catch {
            return "";
        }
    };
    const set = (name) => {
        if (name) document.documentElement.dataset.theme = name;
        else delete document.documentElement.dataset.theme;
        $("theme").textContent = `Colours: ${names[name]}`;
        try {
            localStorage.setItem("attnc.theme", name);
        } catch { /* a page from a file may have no storage */ }
        redraw();
    };
    let now = remembered() in names ? remembered() : "";
    set(now);
    $("theme").addEventListener("click", () => {
        now = { "": "light", light: "dark", dark: "" }[now];
        set(now);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// The width of the source, by the pointer or by the arrows.
function divider(editor) {
    const bar = $("divider");
    const set = (share) => {
        const percent = Math.round(Math.max(20, Math.min(75, share)));
        document.documentElement.style.setProperty("--left", `${percent}%`);
        bar.setAttribute("aria-valuenow", percent);
        editor.refresh();
    };
    bar.addEventListener("pointerdown", (event) => {
        bar.setPointerCapture(event.pointerId);
        event.preventDefault();
        bar.focus();
    });
    bar.addEventListener("pointermove", (event) => bar.hasPointerCapture(event.pointerId) && set((100 * event.clientX) / innerWidth));
    bar.addEventListener("keydown", (event) => {
        const now = Number(bar.getAttribute("aria-valuenow"));
        const to = { ArrowLeft: now - 2, ArrowRight: now + 2, Home: 20, End: 75 }[event.key];
        if (to !== undefined) set(to);
    });
}
