"use strict";

/*
 * Asks a question on the page. What carries `data-dialog` leads to a page with a form that confirms; its content is shown
 * in a dialog, and its form is sent from there: a refusal is shown in the dialog, an answer on the page that it leads to.
 * Whatever goes wrong on the way leads to the page itself.
 */
{
    const dialog = document.createElement("dialog");
    const { enliven } = window.rowlock;
    let opener = null;
    let isSending = false;
    dialog.id = "question";

    function show(page, url) {
        const content = page.querySelector("#content");
        for (const form of content.querySelectorAll("form")) {
            form.action = form.getAttribute("action") || url;
        }
        const heading = content.querySelector("h1");
        heading.id = "question-title";
        dialog.setAttribute("aria-labelledby", heading.id);
        dialog.replaceChildren(...content.children);
        enliven(dialog);
        if (!dialog.open) {
            dialog.showModal();
        }
        dialog.scrollTop = 0;
        (dialog.querySelector("[name=reason], [autofocus], .back") ?? heading).focus();
    }

    /* Go to the page, which shows the answer of an action; from a part or a time of it back to the same. */
    function follow(target) {
        const url = new URL(target ?? location.href, location.href);
        if (url.pathname === location.pathname && ["", location.search].includes(url.search)) {
            location.hash = url.hash;
            location.reload();
        } else {
            location.assign(url);
        }
    }

    /* True if the answer is a page that can be asked in a dialog. */
    async function ask(url, options) {
        const answer = await fetch(url, { ...options, redirect: "manual", headers: { "X-Rowlock-Dialog": "1" } });
        const target = answer.headers.get("X-Rowlock-To");
        if (target || answer.type === "opaqueredirect") {
            follow(target);
            return true;
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!page.querySelector("#content form.confirm")) {
            return false;
        }
        show(page, answer.url);
        return true;
    }

    function open(button, url, options, instead) {
        if (isSending) {
            return;
        }
        isSending = true;
        opener = dialog.open ? opener : button;
        ask(url, options).then((isAsked) => isAsked || instead(), instead).finally(() => { isSending = false; });
    }

    document.addEventListener("submit", (event) => {
        const { target: form, submitter } = event;
        const isAsked = submitter?.matches("[data-dialog]") || (form.matches("dialog#question form.confirm") && submitter);
        if (event.defaultPrevented || !isAsked || form.dataset.plain) {
            return;
        }
        event.preventDefault();
        event.stopImmediatePropagation(); // a question may be asked twice
        const body = new FormData(form, submitter);
        const isGet = (submitter.getAttribute("formmethod") || form.method) === "get";
        const url = new URL(submitter.getAttribute("formaction") || form.getAttribute("action") || location.href, location.href);
        if (isGet) {
            url.search = new URLSearchParams(body);
        }
        open(submitter, url, isGet ? {} : { method: "POST", body: new URLSearchParams(body) }, () => {
            form.dataset.plain = "1";
            form.requestSubmit(submitter);
        });
    }, { capture: true });
    document.addEventListener("click", (event) => {
        const link = event.target.closest("a[data-dialog]");
        if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
            event.preventDefault();
            open(link, link.href, {}, () => location.assign(link.href));
        } else if (event.target.closest("dialog#question .back")) {
            event.preventDefault();
            dialog.close();
        } else if (event.target === dialog) {
            dialog.close();
        }
    });
    dialog.addEventListener("close", () => {
        dialog.replaceChildren();
        (opener?.isConnected ? opener.closest("details.menu")?.querySelector("summary") ?? opener : null)?.focus();
    });
    document.body.append(dialog);
}
