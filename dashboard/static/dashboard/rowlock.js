"use strict";

/*
 * Extras for pages that work without them: local times, copying, ticking, and one submission per click. The document
 * handles clicks, so that refreshed panels need only `rowlock.enliven`.
 */
window.rowlock = {};
{
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const sameDay = (a, b) => a.toDateString() === b.toDateString();
    const localWords = document.getElementById("live-words")?.dataset.local ?? "{}";
    let submitted = new WeakSet();

    function addLocalTime(element) {
        const at = new Date(element.dateTime);
        if (Number.isNaN(at.getTime()) || zone === "UTC") {
            return;
        }
        const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
        const options = sameDay(at, new Date()) ? clock : { ...clock, month: "short", day: "numeric" };
        const local = localWords.replace("{}", at.toLocaleString(document.documentElement.lang, options));
        if (element.hasAttribute("data-age")) {
            element.title = `${element.title} · ${local}`;
        } else {
            element.textContent = `${element.textContent} · ${local}`;
        }
    }

    async function copyCommand(button) {
        const code = button.parentElement.querySelector("code");
        button.dataset.words ??= button.textContent;
        try {
            await navigator.clipboard.writeText(button.dataset.copy || code.textContent);
            button.textContent = button.matches("[role=menuitem]") ? `✓ ${button.dataset.words}` : "✓";
        } catch {
            if (code) {
                getSelection().selectAllChildren(code);
            } else {
                prompt(button.dataset.words, button.dataset.copy);
            }
        }
    }

    const boxesOf = (form) => [...form.querySelectorAll("input[name=seen][type=checkbox]")];

    /* Update the box that ticks all, and the number of ticked rows. */
    function showTicks(form) {
        const all = form?.querySelector("[data-tick-all]");
        if (!all) {
            return;
        }
        const boxes = boxesOf(form);
        const ticked = boxes.filter((box) => box.checked).length;
        all.checked = ticked > 0 && ticked === boxes.length;
        all.indeterminate = ticked > 0 && ticked < boxes.length;
        form.querySelectorAll("[data-for-ticked]").forEach((bar) => { bar.hidden = !ticked; });
        for (const count of form.querySelectorAll("[data-ticked]")) {
            count.dataset.words ??= count.textContent;
            count.textContent = ticked ? `${count.dataset.words} ${ticked}` : count.dataset.words;
        }
    }

    /* Ignore the second click of a double click; a page restored from the history submits again. */
    function submitOnce(event) {
        if (event.target.method !== "post") {
            return;
        }
        if (submitted.has(event.target)) {
            event.preventDefault();
        }
        submitted.add(event.target);
    }

    /* Fold the filter on a phone, where it would fill the first screen; its summary shows the settings. */
    function fold(details) {
        if (matchMedia("(max-width: 600px)").matches && details.dataset.fold !== "active") {
            details.open = false;
        }
    }

    /* Label each cell of a stock list with its column's name, because a phone shows rows as cards. */
    function nameCells(list) {
        const names = [...list.tHead.rows[0].cells].map((head) => (head.querySelector(".text") ?? head).textContent.trim());
        list.classList.add("cards");
        for (const row of list.tBodies[0].rows) {
            [...row.cells].forEach((cell, place) => {
                if (cell.matches("td:not(.action-checkbox)")) {
                    cell.dataset.label = names[place];
                }
            });
        }
    }

    /* Prepare a server's answer for display, whether a whole page or a panel. */
    window.rowlock.enliven = (root) => {
        root.querySelectorAll("time[datetime]").forEach(addLocalTime);
        root.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
    };
    window.rowlock.showTicks = () => document.querySelectorAll("form:has([data-tick-all])").forEach(showTicks);

    document.addEventListener("click", (event) => {
        const button = event.target.closest("[data-copy]");
        if (button) {
            copyCommand(button);
        }
    });
    document.addEventListener("change", (event) => {
        const form = event.target.closest("form:has([data-tick-all])");
        if (form && event.target.matches("[data-tick-all]")) {
            boxesOf(form).forEach((box) => { box.checked = event.target.checked; });
        }
        showTicks(form);
    });
    document.addEventListener("submit", submitOnce);
    addEventListener("pageshow", () => { submitted = new WeakSet(); });
    document.querySelectorAll("details[data-fold]").forEach(fold);
    document.querySelectorAll("#result_list").forEach(nameCells);
    window.rowlock.enliven(document);
    window.rowlock.showTicks();
}
