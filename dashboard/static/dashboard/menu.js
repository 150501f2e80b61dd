"use strict";

/*
 * The menu behind ⋯, a `details` that works without this file. Arrows move in it, Escape closes it and gives the focus
 * back, a click elsewhere closes it, and only one is open at a time.
 */
{
    const OPEN = "details.menu[open]";
    const itemsOf = (menu) => [...menu.querySelectorAll("[role=menuitem]:not(:disabled)")].filter((item) => item.checkVisibility());

    function close(menu, { giveBack = false } = {}) {
        menu.open = false;
        if (giveBack) {
            menu.querySelector("summary").focus();
        }
    }

    /* Open upwards where the window ends below. */
    function place(menu) {
        menu.classList.remove("is-upward");
        const box = menu.querySelector("[role=menu]").getBoundingClientRect();
        menu.classList.toggle("is-upward", box.bottom > innerHeight && menu.getBoundingClientRect().top > box.height);
    }

    function move(menu, key) {
        const items = itemsOf(menu);
        const at = items.indexOf(document.activeElement);
        const to = { ArrowDown: (at + 1) % items.length, ArrowUp: (at <= 0 ? items.length : at) - 1, Home: 0, End: items.length - 1 }[key];
        items[to]?.focus();
    }

    document.addEventListener("toggle", (event) => {
        if (event.target.matches?.(OPEN)) {
            document.querySelectorAll(OPEN).forEach((menu) => menu !== event.target && close(menu));
            place(event.target);
            // This event comes a little late: whoever has moved on to another item by then stays there.
            if (!event.target.contains(document.activeElement.closest("[role=menuitem]"))) {
                itemsOf(event.target)[0]?.focus();
            }
        }
    }, { capture: true });
    document.addEventListener("keydown", (event) => {
        const menu = event.target.closest?.(OPEN);
        if (!menu) {
            return;
        }
        if (event.key === "Escape") {
            close(menu, { giveBack: true });
        } else if (["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) {
            move(menu, event.key);
        } else {
            return;
        }
        event.preventDefault();
        event.stopPropagation();
    }, { capture: true });
    document.addEventListener("click", (event) => {
        const inside = event.target.closest("details.menu");
        document.querySelectorAll(OPEN).forEach((menu) => menu !== inside && close(menu));
        if (inside?.open && event.target.closest("[role=menuitem]:not([data-copy])")) {
            close(inside);
        }
    });
}
