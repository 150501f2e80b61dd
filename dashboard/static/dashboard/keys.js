"use strict";

/*
 * Keyboard shortcuts. They only move the focus and press what is on the page, so that a screen reader announces it.
 * They are off while somebody types, and can be switched off.
 */
{
    const ROWS = "[id$=-rows] tbody tr:not(.empty), #result_list tbody tr, #lock-tree li .node";
    const GOING_MS = 1500;
    const STORE = "rowlock-keys";
    const dialog = document.getElementById("shortcuts");
    const isOn = dialog?.querySelector("[data-keys-on]");
    let goingUntil = 0;

    const isVisible = (element) => element.checkVisibility();
    const rows = () => [...document.querySelectorAll(ROWS)].filter(isVisible);
    const currentRow = () => document.activeElement.closest(ROWS);

    function isTyping(target) {
        const field = target.closest("input, textarea, select, [contenteditable]");
        return Boolean(field) && !["checkbox", "radio", "button", "submit"].includes(field.type);
    }

    /* Focus the row's link, else its box or button, else the row: a screen reader then reads its name first. */
    function focusRow(row) {
        const name = row.querySelector("th a, a") ?? row.querySelector("input:not([type=hidden]), button, summary");
        if (!name) {
            row.tabIndex = -1;
        }
        (name ?? row).focus();
        row.scrollIntoView({ block: "nearest" });
    }

    function move(step) {
        const all = rows();
        const place = all.indexOf(currentRow());
        const next = place < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, place + step));
        if (all.length) {
            focusRow(all[next]);
        }
    }

    function tick() {
        currentRow()?.querySelector("input[type=checkbox]")?.click();
    }

    function filter() {
        const root = document.querySelector("dialog[open]") ?? document;
        const form = root.querySelector("form[role=search], #changelist-search");
        form?.closest("details")?.setAttribute("open", "");
        const field = form?.querySelector("input[type=search], input[type=text]") ?? root.querySelector("form.confirm input[name=reason]");
        field?.focus();
        field?.select();
    }

    function help() {
        if (dialog.open) {
            dialog.close();
        } else {
            dialog.showModal();
        }
    }

    const press = (selector) => document.querySelector(selector)?.click();
    const KEYS = {
        "?": help,
        j: () => move(1),
        k: () => move(-1),
        x: tick,
        "/": filter,
        p: () => press("[data-live-pause]"),
        n: () => press(".live-news button:enabled"),
        g: () => { goingUntil = Date.now() + GOING_MS; },
    };

    function goTo(key) {
        goingUntil = 0;
        return document.querySelector(`nav.pages a[data-key="${CSS.escape(key)}"]`);
    }

    function hear(event) {
        const isMeant = !(event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event.target));
        if (!isMeant || !isOn.checked || (dialog.open && event.key !== "?")) {
            return;
        }
        const link = Date.now() < goingUntil ? goTo(event.key) : null;
        const act = link ? () => link.click() : KEYS[event.key];
        if (act) {
            event.preventDefault();
            act();
        }
    }

    if (dialog) {
        isOn.checked = localStorage.getItem(STORE) !== "off";
        isOn.addEventListener("change", () => localStorage.setItem(STORE, isOn.checked ? "on" : "off"));
        document.addEventListener("keydown", hear);
        dialog.querySelector("[data-close]").addEventListener("click", help);
        for (const button of document.querySelectorAll("[data-shortcuts]")) {
            button.hidden = false;
            button.addEventListener("click", help);
        }
    }
}
