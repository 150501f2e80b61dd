"use strict";

/*
 * The time line of the lock history: while its mark is dragged or moved by keys, the moment below it follows. A button
 * shows it too, on a new page.
 */
{
    const form = document.querySelector("form.timeline");
    const exact = document.querySelector("form.moment [name=at]");
    const past = document.getElementById("past");
    const { place, since } = form.elements;
    const REST_MS = 120; // the mark rests so long before the server is asked
    let timer = 0;
    let asked = null;

    function say() {
        const at = new Date(Date.parse(since.value) + 1000 * place.value).toISOString();
        place.setAttribute("aria-valuetext", `${at.slice(0, 19).replace("T", " ")} UTC`);
        exact.value = at.slice(0, 16);
    }

    async function show() {
        const url = `?${new URLSearchParams(new FormData(form))}`;
        asked?.abort();
        asked = new AbortController();
        try {
            const answer = await fetch(url, { signal: asked.signal, headers: { "HX-Request": "true" } });
            if (answer.status !== 200) {
                throw new Error(answer.statusText);
            }
            past.innerHTML = await answer.text();
            window.rowlock.enliven(past);
            history.replaceState(null, "", url);
        } catch (error) {
            if (error.name !== "AbortError") {
                location.assign(url);
            }
        }
    }

    place.addEventListener("input", () => {
        say();
        clearTimeout(timer);
        timer = setTimeout(show, REST_MS);
    });
    say();
}
