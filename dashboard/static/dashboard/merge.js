"use strict";

/*
 * Updates a panel without rebuilding it. Elements match by id among their siblings, else by kind and position. Equal
 * elements stay, so that ticks, focus, open details, selected text and scroll positions survive. A *row* that a person
 * has touched stays as it is, and is marked if it has changed or gone.
 */
{
    const ROW = "tr[id], li[id], [data-row][id]";
    const idOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null);
    const rowsOf = (root) => [...root.querySelectorAll(ROW)];

    /* Identifies a row's state: `data-version`, else its box's version, else its text without numbers such as ages. */
    function signature(row) {
        if (row.dataset.version) {
            return row.dataset.version;
        }
        const seen = row.querySelector("[name=seen], [name=only]");
        if (seen) {
            return `${seen.value} ${row.querySelector(".verdict")?.textContent}`;
        }
        const copy = row.cloneNode(true);
        copy.querySelectorAll(`time, [data-volatile], ${ROW}`).forEach((part) => part.remove());
        return copy.textContent.replace(/[\d\s]+/g, " ");
    }

    function elementAt(node) {
        return node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    }

    function addSelected(panel, add) {
        const selection = getSelection();
        if (!selection.rangeCount || selection.isCollapsed || !selection.getRangeAt(0).intersectsNode(panel)) {
            return;
        }
        rowsOf(panel).filter((row) => !row.querySelector(ROW) && selection.containsNode(row, true)).forEach(add);
        [selection.anchorNode, selection.focusNode].filter((node) => panel.contains(node)).forEach(add);
    }

    /* The rows of a panel with a tick, unsent input, the focus or a selection. */
    function touchedIn(panel) {
        const touched = new Set();
        const add = (node) => {
            const row = elementAt(node).closest(ROW);
            touched.add(row && panel.contains(row) ? row : elementAt(node));
        };
        for (const field of panel.querySelectorAll("input, textarea")) {
            if (field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue) {
                add(field);
            }
        }
        const focused = document.activeElement;
        if (focused !== panel && panel.contains(focused) && focused.matches(":focus-visible, select")) {
            add(focused);
        }
        addSelected(panel, add);
        return touched;
    }

    const isTouched = (node, touched) => [...touched].some((one) => node === one || node.contains(one));

    function copyAttributes(from, to) {
        for (const { name, value } of [...from.attributes]) {
            if (to.getAttribute(name) !== value && !(name === "open" && to.matches("details"))) {
                to.setAttribute(name, value);
            }
        }
        for (const { name } of [...to.attributes]) {
            if (!from.hasAttribute(name) && !(name === "open" && to.matches("details, dialog"))) {
                to.removeAttribute(name);
            }
        }
    }

    /* A box that is in focus only to be scrolled goes on: it shows lines as they come. */
    const isTail = (node) => node === document.activeElement && node.matches(".log");

    function mergeNode(old, fresh, touched) {
        if ((touched.has(old) && !isTail(old)) || old.isEqualNode(fresh)) {
            return;
        }
        if (old.nodeType !== Node.ELEMENT_NODE) {
            old.data = fresh.data;
            return;
        }
        copyAttributes(fresh, old);
        mergeChildren(old, fresh, touched);
    }

    /* Put `match` before `cursor`. A touched node never moves, because it would lose its focus: the others move. */
    function bring(parent, match, cursor, touched) {
        if (match === cursor) {
            return;
        }
        if (!isTouched(match, touched)) {
            parent.insertBefore(match, cursor);
            return;
        }
        let place = cursor;
        while (place && place !== match) {
            const next = place.nextSibling;
            parent.insertBefore(place, match.nextSibling);
            place = next;
        }
    }

    function dropMissing(parent, fresh, touched) {
        const wanted = new Set([...fresh.children].map(idOf));
        const keyed = new Map();
        for (const child of [...parent.children].filter(idOf)) {
            if (wanted.has(idOf(child))) {
                keyed.set(idOf(child), child);
            } else if (!isTouched(child, touched)) {
                child.remove();
            }
        }
        return keyed;
    }

    /* True if a person has touched the node with this id. */
    function isKept(id, touched) {
        const old = id ? document.getElementById(id) : null;
        return Boolean(old) && isTouched(old, touched);
    }

    /* The next sibling of the same kind without an id; the nodes before it are gone. */
    function nextOfKind(cursor, node) {
        let place = cursor;
        while (place && (idOf(place) || place.nodeName !== node.nodeName)) {
            place = place.nextSibling;
        }
        return place;
    }

    function mergeChildren(parent, fresh, touched) {
        const keyed = dropMissing(parent, fresh, touched);
        const stays = (node) => idOf(node) && !keyed.has(idOf(node));
        let cursor = parent.firstChild;
        for (const node of [...fresh.childNodes]) {
            while (cursor && stays(cursor)) {
                cursor = cursor.nextSibling;
            }
            const id = idOf(node);
            const match = id ? keyed.get(id) : nextOfKind(cursor, node);
            if (match && match.nodeName === node.nodeName) {
                bring(parent, match, cursor, touched);
                mergeNode(match, node, touched);
                cursor = match.nextSibling;
            } else if (!isKept(id, touched)) {
                parent.insertBefore(node, cursor);
            }
        }
        while (cursor) {
            const next = cursor.nextSibling;
            if (!stays(cursor) && !isTouched(cursor, touched)) {
                cursor.remove();
            }
            cursor = next;
        }
    }

    /* The panel's rows (those in `among`, else all) that differ from the answer or are missing in it, and new ones. */
    function changed(panel, fresh, among) {
        const now = new Map(rowsOf(fresh).map((row) => [row.id, signature(row)]));
        const shown = among ?? rowsOf(panel);
        const differ = shown.filter((row) => now.get(row.id) !== signature(row));
        const known = new Set(rowsOf(panel).map((row) => row.id));
        return { differ, gone: differ.filter((row) => !now.has(row.id)), added: [...now.keys()].filter((id) => !known.has(id)) };
    }

    window.rowlock.merge = {
        /* Count the rows that an answer would change, add and remove. */
        count(panel, fresh) {
            const { differ, added } = changed(panel, fresh);
            return differ.length + added.length;
        },
        /* Merge an answer, except for touched rows; returns the number of touched rows that have changed. */
        gently(panel, fresh) {
            const touched = touchedIn(panel);
            const { differ, gone } = changed(panel, fresh, rowsOf(panel).filter((row) => touched.has(row)));
            mergeChildren(panel, fresh.cloneNode(true), touched);
            rowsOf(panel).forEach((row) => {
                row.toggleAttribute("data-changed", differ.includes(row));
                row.toggleAttribute("data-gone", gone.includes(row));
            });
            return differ.length;
        },
        /* Merge everything; ticks stay on rows that still exist. */
        wholly(panel, fresh) {
            mergeChildren(panel, fresh.cloneNode(true), new Set());
        },
    };
}
