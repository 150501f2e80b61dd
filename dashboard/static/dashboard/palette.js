"use strict";

/*
 * The palette: Ctrl-K, then a few characters. It offers the pages of the menu, the actions of this page, and what the
 * server finds by number or name. Arrows choose, Enter goes there or presses the button.
 */
{
    const WAIT_MS = 120;
    const MOST = 50;
    const dialog = document.getElementById("palette");
    const field = dialog?.querySelector("input");
    const list = dialog?.querySelector("[role=listbox]");
    const nothing = dialog?.querySelector("[data-nothing]");
    let asked = 0;
    let chosen = 0;
    let options = [];

    const wordsOf = (element) => (element.getAttribute("aria-label") || element.textContent).trim().replace(/\s+/g, " ");

    function pages() {
        return [...document.querySelectorAll("nav.pages a")].map((link) => ({ label: wordsOf(link), act: () => link.click() }));
    }

    /* One entry for each button outside rows, and those of the current row. */
    function actions() {
        const row = document.activeElement.closest("tr, li");
        const buttons = [...document.querySelectorAll("#content [data-action], [data-page-action]")];
        const offered = buttons.filter((button) => !button.disabled && button.ariaDisabled !== "true" && (!button.closest("tbody, li") || row?.contains(button)));
        const labels = new Map(offered.map((button) => [wordsOf(button), button]));
        return [...labels].map(([label, button]) => ({ label, act: () => button.click() }));
    }

    function choose(at) {
        chosen = options.length ? (at + options.length) % options.length : 0;
        [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
        const item = list.children[chosen];
        item?.scrollIntoView({ block: "nearest" });
        field.setAttribute("aria-activedescendant", item?.id ?? "");
    }

    function show(found) {
        options = found.slice(0, MOST);
        list.replaceChildren(...options.map(({ label }, place) => {
            const item = document.createElement("li");
            item.id = `palette-${place}`;
            item.setAttribute("role", "option");
            item.textContent = label;
            return item;
        }));
        nothing.textContent = options.length ? "" : nothing.dataset.nothing;
        choose(0);
    }

    let own = [];
    const matching = (text) => own.filter(({ label }) => label.toLowerCase().includes(text.toLowerCase()));

    async function ask(text) {
        const mine = ++asked;
        show(matching(text));
        await new Promise((resolve) => { setTimeout(resolve, WAIT_MS); });
        if (!text || mine !== asked) {
            return;
        }
        const answer = await fetch(`${dialog.dataset.url}?${new URLSearchParams({ q: text })}`);
        if (mine === asked && answer.ok) {
            const { found } = await answer.json();
            const there = found.map(({ label, url }) => ({ label, act: () => location.assign(url) }));
            show([...there, ...matching(text)]);
        }
    }

    function act() {
        const option = options[chosen];
        if (option) {
            dialog.close();
            option.act();
        }
    }

    function toggle() {
        if (dialog.open) {
            dialog.close();
            return;
        }
        own = [...actions(), ...pages()];
        field.value = "";
        dialog.showModal();
        ask("");
    }

    if (dialog) {
        document.addEventListener("keydown", (event) => {
            if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
                event.preventDefault();
                toggle();
            }
        });
        dialog.addEventListener("keydown", (event) => {
            const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
            if (step) {
                choose(chosen + step);
            } else if (event.key === "Enter") {
                act();
            } else {
                return;
            }
            event.preventDefault();
        });
        field.addEventListener("input", () => ask(field.value.trim()));
        list.addEventListener("click", (event) => {
            chosen = [...list.children].indexOf(event.target.closest("li"));
            act();
        });
        dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
        document.querySelectorAll("[data-palette]").forEach((button) => {
            button.hidden = false;
            button.addEventListener("click", toggle);
        });
    }
}
