"use strict";

/*
 * Completes the search box: its words, then the values of a word that has a list. Arrows choose, Enter or Tab takes,
 * Escape closes. Without this file it is a plain field.
 */
{
    const MOST = 10;
    const field = document.querySelector("[data-search]");
    const list = document.getElementById("search-found");
    let chosen = -1;

    const optionsOf = (name) => [...(document.getElementById(`search-${name}`)?.options ?? [])];
    const quoted = (value) => (/[\s"]/.test(value) ? `"${value.replace(/(["\\])/g, "\\$1")}"` : value);

    /* The piece before the caret, and where it begins. */
    function piece() {
        const before = field.value.slice(0, field.selectionStart);
        const start = Math.max(before.lastIndexOf(" ") + 1, 0);
        return { start, text: before.slice(start) };
    }

    /* Values contain what was typed, words begin with it. */
    function completions(text) {
        const [word, value] = text.split(/:(.*)/s);
        if (value === undefined) {
            const words = optionsOf("words").filter((option) => option.value.startsWith(word));
            return words.map((option) => ({ text: option.value, note: option.label }));
        }
        const values = optionsOf(word).map((option) => option.value).filter((one) => one.toLowerCase().includes(value.toLowerCase()));
        const example = optionsOf("words").find((option) => option.value === `${word}:`)?.dataset.example;
        const offered = values.length || !example || value ? values : [example];
        return offered.map((one) => ({ text: `${word}:${quoted(one)}`, note: "" }));
    }

    function choose(at) {
        chosen = at;
        [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
        field.setAttribute("aria-activedescendant", list.children[at]?.id ?? "");
    }

    function close() {
        list.hidden = true;
        field.setAttribute("aria-expanded", "false");
        choose(-1);
    }

    function show() {
        const { text } = piece();
        const found = completions(text).filter((one) => one.text !== text).slice(0, MOST);
        list.replaceChildren(...found.map((one, place) => {
            const item = document.createElement("li");
            item.id = `search-found-${place}`;
            item.dataset.text = one.text;
            item.setAttribute("role", "option");
            item.append(one.text);
            if (one.note) {
                const note = document.createElement("span");
                note.className = "quiet";
                note.textContent = one.note;
                item.append(note);
            }
            return item;
        }));
        list.hidden = !found.length;
        field.setAttribute("aria-expanded", String(!list.hidden));
        choose(-1);
    }

    function take(text) {
        const { start } = piece();
        const after = field.value.slice(field.selectionStart);
        const whole = text.endsWith(":") ? text : `${text} `;
        field.value = field.value.slice(0, start) + whole + after.trimStart();
        field.setSelectionRange(start + whole.length, start + whole.length);
        show();
        if (!text.endsWith(":")) {
            close();
        }
    }

    function hear(event) {
        const count = list.hidden ? 0 : list.children.length;
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step && !count) {
            show();
        } else if (step) {
            choose((chosen + step + count + (chosen < 0 && step < 0 ? 1 : 0)) % count);
        } else if (["Enter", "Tab"].includes(event.key) && chosen >= 0) {
            take(list.children[chosen].dataset.text);
        } else if (event.key === "Escape" && count) {
            close();
        } else {
            return;
        }
        event.preventDefault();
    }

    if (field) {
        for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list" })) {
            field.setAttribute(name, value);
        }
        field.addEventListener("input", show);
        field.addEventListener("keydown", hear);
        field.addEventListener("blur", close);
        list.addEventListener("mousedown", (event) => {
            event.preventDefault();
            take(event.target.closest("li").dataset.text);
        });
    }
}
