"use strict";

/*
 * Panels that refresh themselves: `data-live` holds the seconds. htmx fetches and swaps; this decides when, and keeps
 * what a person has open or in hand. Under the content security policy htmx may not evaluate a condition itself.
 */
{
    const age = document.querySelector("[data-live-age]");
    const pause = document.querySelector("[data-live-pause]");
    const trouble = document.querySelector("[data-live-trouble]");
    const pauseWord = pause?.textContent;
    let isPaused = false;
    let updatedAt = Date.now();

    function isInHand(panel) {
        const selection = getSelection();
        const isSelecting = selection && !selection.isCollapsed && panel.contains(selection.anchorNode);
        return isSelecting || panel.matches(":has(button:hover, button:focus-visible, a:focus-visible, input:focus)");
    }

    function remember(panel) {
        const details = [...panel.querySelectorAll("details[id]")];
        panel.dataset.open = JSON.stringify(Object.fromEntries(details.map((item) => [item.id, item.open])));
    }

    function restore(panel) {
        const open = JSON.parse(panel.dataset.open || "{}");
        for (const [id, wasOpen] of Object.entries(open)) {
            const item = document.getElementById(id);
            if (item) {
                item.open = wasOpen;
            }
        }
    }

    function watch(panel) {
        setInterval(() => {
            if (!isPaused && !document.hidden && !isInHand(panel)) {
                htmx.trigger(panel, "refresh");
            }
        }, Number(panel.dataset.live) * 1000);
        panel.addEventListener("htmx:beforeSwap", () => remember(panel));
        panel.addEventListener("htmx:afterSwap", () => {
            restore(panel);
            updatedAt = Date.now();
            trouble.textContent = "";
        });
        for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
            panel.addEventListener(failure, (event) => {
                const status = event.detail.xhr?.status;
                trouble.textContent = `${trouble.dataset.words} ${status || ""}`.trim();
            });
        }
    }

    function tell() {
        const seconds = Math.round((Date.now() - updatedAt) / 1000);
        age.textContent = age.dataset.words.replace("{}", String(seconds));
        age.parentElement.classList.toggle("is-old", seconds > 10);
    }

    document.querySelectorAll("[data-live]").forEach(watch);
    if (pause) {
        pause.hidden = false;
        pause.addEventListener("click", () => {
            isPaused = !isPaused;
            pause.setAttribute("aria-pressed", String(isPaused));
            pause.textContent = isPaused ? pause.dataset.resume : pauseWord;
        });
    }
    if (age) {
        setInterval(tell, 1000);
    }
}
