"use strict";

/*
 * Panels that refresh themselves: `data-live` holds the seconds, `hx-get` the URL, `hx-trigger` the event `refresh`.
 * htmx fetches, this file decides when, and `merge.js` merges the answer. Nothing moves under a pointer: while a mouse
 * rests on a control of the panel or moves in it, the answer waits, and a line counts the changed rows. The page shows
 * the age of its oldest panel, except those marked `data-live-apart`.
 */
{
    const CONTROL = "a, button, input, label, select, summary, textarea";
    const WHEN_HIDDEN = 15; // times slower
    const SLOWEST_SECONDS = 60;
    const POINTER_RESTS_MS = 800;
    const SAY_EVERY_MS = 15_000;
    const STARTING = 202;
    const ENDED = 286;
    const { merge, enliven, showTicks } = window.rowlock;
    const words = document.getElementById("live-words").dataset;
    const remembered = document.getElementById("last-known");
    const panels = new Map();
    const pointer = { x: -1, y: -1, at: 0, isMouse: false };
    let isPaused = false;

    const bar = document.querySelector(".live");
    const age = document.querySelector("[data-live-age]");
    const clock = document.querySelector("[data-live-clock]");
    const pause = document.querySelector("[data-live-pause]");
    const pauseWord = pause?.textContent;

    function make(name, className, parent) {
        const element = document.createElement(name);
        element.className = className;
        parent.append(element);
        return element;
    }

    const main = document.querySelector("main");
    const banner = make("p", "live-banner", main);
    banner.hidden = true;
    const bannerReason = make("span", "", banner);
    const bannerAge = make("span", "", banner);
    const region = make("p", "visually-hidden", main);
    region.setAttribute("role", "status");
    region.id = "live-region";
    const news = make("span", "live-news is-empty", bar ?? main);
    const newsText = make("span", "", news);
    const show = make("button", "button", news);
    show.type = "button";
    show.textContent = words.show;
    show.disabled = true;

    /* "5 rows changed", in the plural form of the page's language. */
    function counted(number) {
        const form = new Intl.PluralRules(document.documentElement.lang).select(number);
        const text = { one: words.one, few: words.few }[form] ?? words.many;
        return text.replace("{}", String(number));
    }

    function tellNews() {
        const number = [...panels.values()].reduce((sum, state) => sum + state.changes, 0);
        news.classList.toggle("is-empty", !number);
        show.disabled = !number;
        const text = number ? counted(number) : "";
        if (newsText.textContent !== text) {
            newsText.textContent = text;
        }
    }

    /* Announce changes politely, at most every SAY_EVERY_MS. */
    const unsaid = [];
    let saidAt = -Infinity;
    function say() {
        if (unsaid.length && Date.now() - saidAt >= SAY_EVERY_MS) {
            region.textContent = unsaid.splice(0).join(" · ");
            saidAt = Date.now();
        }
    }

    function attentionOf(panel) {
        const lines = [...panel.querySelectorAll("[data-attention]")];
        return new Map(lines.map((line) => [line.dataset.attention, (line.dataset.say || line.textContent).trim()]));
    }

    function tellAttention(before, after) {
        for (const [key, text] of after) {
            if (!before.has(key)) {
                unsaid.push(`${words.fresh} ${text}`);
            }
        }
        for (const [key, text] of before) {
            if (!after.has(key)) {
                unsaid.push(`${words.over} ${text}`);
            }
        }
    }

    /* True while a finger or a mouse moves in the panel, or the mouse rests on one of its controls. */
    function isHeld(panel) {
        const isMoving = Date.now() - pointer.at < POINTER_RESTS_MS;
        if (!pointer.isMouse && !isMoving) {
            return false;
        }
        const under = document.elementFromPoint(pointer.x, pointer.y);
        return panel.contains(under) && (isMoving || under.closest(CONTROL));
    }

    function take(panel, state, { wholly = false } = {}) {
        const before = attentionOf(panel);
        if (wholly) {
            merge.wholly(panel, state.fresh);
            state.changes = 0;
        } else if (isHeld(panel)) {
            state.isWaiting = true;
            state.changes = merge.count(panel, state.fresh);
            return;
        } else {
            state.changes = merge.gently(panel, state.fresh);
        }
        state.isWaiting = false;
        htmx.process(panel);
        showTicks();
        tellAttention(before, attentionOf(panel));
    }

    function receive(panel, state, html) {
        if (remembered && !panel.hasAttribute("data-live-apart")) { // by the server, while a lock kept the page from being read
            location.reload();
            return;
        }
        const template = document.createElement("template");
        template.innerHTML = html;
        enliven(template.content);
        state.fresh = template.content;
        state.updatedAt = Date.now();
        state.failures = state.retryAfter = 0;
        take(panel, state);
        tellNews();
        if ([...panels.values()].every((one) => !one.failures && !one.retryAfter)) {
            setTrouble("");
        }
    }

    let lastKnown = null; // the state of the panel that the banner is about

    function setTrouble(text, state = null) {
        lastKnown = state;
        bannerReason.textContent = text;
        tellAge();
        if (text && banner.hidden) {
            unsaid.push(banner.textContent);
        }
        banner.hidden = !text || Boolean(remembered);
        document.body.classList.toggle("is-last-known", Boolean(text));
    }

    /* The age counts on; it is apart, so that a command in the reason stays selected. */
    function tellAge() {
        if (lastKnown) {
            const at = new Date(lastKnown.updatedAt).toLocaleTimeString(document.documentElement.lang, { hourCycle: "h23" });
            const seconds = Math.round((Date.now() - lastKnown.updatedAt) / 1000);
            bannerAge.textContent = ` ${words.last.replace("{at}", at).replace("{age}", String(seconds))}`;
        }
    }

    /* Show the reason on the server's page, else its status, and the age of the state that stays visible. */
    function tellLastKnown(state, xhr) {
        const page = xhr?.responseText ? new DOMParser().parseFromString(xhr.responseText, "text/html") : null;
        const reason = page?.querySelector("[role=alert]")?.textContent.trim().replace(/\s+/g, " ");
        setTrouble(reason || [words.silent, xhr?.status].filter(Boolean).join(" "), state);
    }

    function fail(state, xhr) {
        state.failures += 1;
        state.retryAfter = 0;
        tellLastKnown(state, xhr);
    }

    function schedule(panel, state) {
        clearTimeout(state.timer);
        if (isPaused || state.isOver) {
            return;
        }
        const seconds = state.retryAfter || Number(panel.dataset.live);
        const slower = Math.min(SLOWEST_SECONDS, seconds * 2 ** state.failures * (document.hidden ? WHEN_HIDDEN : 1));
        state.timer = setTimeout(() => htmx.trigger(panel, "refresh"), 1000 * Math.max(seconds, slower));
    }

    function refreshAll() {
        for (const [panel, state] of panels) {
            clearTimeout(state.timer);
            if (!isPaused && !state.isOver) {
                htmx.trigger(panel, "refresh");
            }
        }
    }

    function watch(panel) {
        const state = {
            fresh: null, changes: 0, failures: 0, retryAfter: 0, isOver: false, isWaiting: false,
            updatedAt: Date.now() - 1000 * Number(remembered?.dataset.age ?? 0),
        };
        panels.set(panel, state);
        const on = (name, hear) => panel.addEventListener(name, (event) => {
            if (event.target === panel) {
                hear(event);
            }
        });
        on("htmx:beforeSwap", (event) => {
            const { xhr } = event.detail;
            if (xhr.status < 200 || xhr.status >= 400) {
                return;
            }
            event.detail.shouldSwap = false;
            state.isOver = xhr.status === ENDED;
            if (xhr.status === STARTING) {
                state.failures = 0;
                // Spread the retries: tabs that were refused together would collide again.
                state.retryAfter = Number(xhr.getResponseHeader("Retry-After")) * (0.5 + Math.random());
                tellLastKnown(state, xhr);
            } else if (xhr.status !== 204) {
                receive(panel, state, xhr.responseText);
            }
        });
        for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
            on(failure, (event) => fail(state, event.detail.xhr));
        }
        on("htmx:afterRequest", () => schedule(panel, state));
        schedule(panel, state);
    }

    function tell() {
        for (const [panel, state] of panels) {
            if (state.isWaiting && !isHeld(panel)) {
                take(panel, state);
                tellNews();
            }
        }
        tellAge();
        say();
        const states = [...panels].filter(([panel]) => !panel.hasAttribute("data-live-apart")).map(([, state]) => state);
        const seconds = Math.round((Date.now() - Math.min(...states.map((state) => state.updatedAt))) / 1000);
        if (age) {
            const isOver = states.every((state) => state.isOver);
            age.textContent = isOver ? words.ended : age.dataset.words.replace("{}", String(seconds));
            bar.classList.toggle("is-old", !isOver && seconds > 10);
        }
        if (pause) {
            pause.hidden = [...panels.values()].every((state) => state.isOver);
        }
    }

    /* Show local and UTC time, for comparison with logs in either. */
    function tellTime() {
        const now = new Date();
        const hours = (timeZone) => now.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone });
        clock.textContent = clock.dataset.words.replace("{local}", hours()).replace("{utc}", hours("UTC"));
    }

    htmx.config.timeout = 10_000;
    document.querySelectorAll("[data-live]").forEach(watch);
    for (const name of ["pointermove", "pointerdown"]) {
        addEventListener(name, (event) => {
            const { clientX: x, clientY: y, pointerType } = event;
            Object.assign(pointer, { x, y, at: Date.now(), isMouse: pointerType === "mouse" });
        }, { passive: true });
    }
    document.documentElement.addEventListener("pointerleave", () => { pointer.isMouse = false; });
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) {
            refreshAll();
        } else {
            panels.forEach((state, panel) => schedule(panel, state));
        }
    });
    show.addEventListener("click", () => {
        for (const [panel, state] of panels) {
            if (state.changes) {
                take(panel, state, { wholly: true });
            }
        }
        tellNews();
    });
    if (pause) {
        pause.hidden = false;
        pause.addEventListener("click", () => {
            isPaused = !isPaused;
            pause.setAttribute("aria-pressed", String(isPaused));
            pause.textContent = isPaused ? pause.dataset.resume : pauseWord;
            panels.forEach((state, panel) => schedule(panel, state));
            refreshAll();
        });
    }
    if (clock) {
        tellTime();
        setInterval(tellTime, 1000);
    }
    if (panels.size) {
        setInterval(tell, 1000);
    }
}
