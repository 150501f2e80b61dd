"use strict";

/* Comfort on top of pages that work without it: local times, copying, ticking, and one submission per click. */
{
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const sameDay = (a, b) => a.toDateString() === b.toDateString();

    function addLocalTime(element) {
        const at = new Date(element.dateTime);
        if (Number.isNaN(at.getTime()) || zone === "UTC") {
            return;
        }
        const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
        const options = sameDay(at, new Date()) ? clock : { ...clock, month: "short", day: "numeric" };
        const local = `${at.toLocaleString(document.documentElement.lang, options)} local`;
        if (element.hasAttribute("data-age")) {
            element.title = `${element.title} · ${local}`;
        } else {
            element.textContent = `${element.textContent} · ${local}`;
        }
    }

    async function copyCommand(event) {
        const button = event.currentTarget;
        const code = button.parentElement.querySelector("code");
        try {
            await navigator.clipboard.writeText(code.textContent);
            button.textContent = "✓";
        } catch {
            getSelection().selectAllChildren(code);
        }
    }

    function watchTicks(form) {
        const all = form.querySelector("[data-tick-all]");
        const boxes = [...form.querySelectorAll("input[name=seen][type=checkbox]")];
        const count = form.querySelector("[data-ticked]");
        const words = count?.textContent;
        const show = () => {
            const ticked = boxes.filter((box) => box.checked).length;
            all.checked = ticked > 0 && ticked === boxes.length;
            all.indeterminate = ticked > 0 && ticked < boxes.length;
            if (count) {
                count.textContent = ticked ? `${words} ${ticked}` : words;
            }
        };
        all.addEventListener("change", () => {
            boxes.forEach((box) => { box.checked = all.checked; });
            show();
        });
        boxes.forEach((box) => box.addEventListener("change", show));
        show();
    }

    /* The second click of a double click submits nothing; a page that comes back from the history starts anew. */
    function submitOnce(form) {
        let isSubmitted = false;
        form.addEventListener("submit", (event) => {
            if (isSubmitted) {
                event.preventDefault();
            }
            isSubmitted = true;
        });
        addEventListener("pageshow", () => { isSubmitted = false; });
    }

    /* An empty filter would fill a phone's first screen. */
    function fold(details) {
        if (matchMedia("(max-width: 600px)").matches && details.dataset.fold !== "active") {
            details.open = false;
        }
    }

    document.querySelectorAll("details[data-fold]").forEach(fold);
    document.querySelectorAll("time[datetime]").forEach(addLocalTime);
    document.querySelectorAll("[data-copy]").forEach((button) => {
        button.hidden = false;
        button.addEventListener("click", copyCommand);
    });
    document.querySelectorAll("form[method=post]").forEach(submitOnce);
    const selection = document.getElementById("selection");
    if (selection?.querySelector("[data-tick-all]")) {
        watchTicks(selection);
    }
}
