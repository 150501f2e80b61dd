"use strict";

/*
 * "Copy this page as Markdown" and "Print this page", for the report of an incident. Copied is what the page shows: its
 * title, address and time, then headings, messages, tables, facts and code in their order.
 */
{
    const PARTS = "h1, h2, h3, table, dl, pre, p, .messagelist li, #lock-tree .node, #attention-lines > li";
    const LEFT_OUT = ".menu, .live, .demo, button, form.filter, .languages, [hidden], .visually-hidden, dialog, svg";

    function textOf(element) {
        const copy = element.cloneNode(true);
        copy.querySelectorAll(LEFT_OUT).forEach((part) => part.remove());
        return copy.textContent.trim().replace(/\s+/g, " ");
    }

    const inCell = (cell) => textOf(cell).replaceAll("|", "\\|");

    function table(element) {
        const rows = [...element.rows].map((row) => [...row.cells].map(inCell));
        const width = Math.max(...rows.map((cells) => cells.length));
        const lines = rows.map((cells) => `| ${[...cells, ...Array(width - cells.length).fill("")].join(" | ")} |`);
        lines.splice(1, 0, `|${" --- |".repeat(width)}`);
        return lines.join("\n");
    }

    function facts(element) {
        const names = [...element.querySelectorAll("dt")];
        return names.map((name) => `- **${textOf(name)}**: ${textOf(name.nextElementSibling)}`).join("\n");
    }

    function part(element) {
        const level = { H1: "#", H2: "##", H3: "###" }[element.tagName];
        if (level) {
            return `${level} ${textOf(element)}`;
        }
        switch (element.tagName) {
            case "TABLE": return table(element);
            case "DL": return facts(element);
            case "PRE": return `\`\`\`\n${element.textContent.trimEnd()}\n\`\`\``;
            case "LI": case "DIV": return `- ${textOf(element)}`;
            default: return textOf(element);
        }
    }

    function markdown() {
        const isInner = (element) => element.parentElement.closest("table, dl, pre, #attention-lines > li");
        const shown = [...document.querySelectorAll("#content-start :is(" + PARTS + ")")]
            .filter((element) => element.checkVisibility() && !element.closest(LEFT_OUT) && !isInner(element));
        const head = `<${location.href}>, ${new Date().toISOString()}`;
        const [title, ...rest] = shown.map(part).filter((text) => text && text !== "-");
        return [title, head, ...rest].join("\n\n") + "\n";
    }

    async function copy(button) {
        const words = button.textContent;
        await navigator.clipboard.writeText(markdown());
        button.textContent = `✓ ${words.trim()}`;
    }

    document.addEventListener("click", (event) => {
        const button = event.target.closest("[data-page-action]");
        if (button?.dataset.pageAction === "markdown") {
            copy(button);
        } else if (button) {
            button.closest("dialog")?.close();
            print();
        }
    });
}
