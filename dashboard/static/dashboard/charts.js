"use strict";

/*
 * Says what a chart shows at one time: under the pointer, or with the arrows while the chart has the focus. Over each
 * picture lies an invisible slider; its figure has the words of each slot in `data-points`.
 */
{
    const partsOf = (slider) => {
        const figure = slider.closest("figure");
        return { points: figure.dataset.points.split("\n"), said: figure.querySelector("output"), svg: figure.querySelector("svg") };
    };

    function show(slider) {
        const { points, said, svg } = partsOf(slider);
        const { width, height } = svg.viewBox.baseVal;
        const text = points[slider.value];
        said.textContent = text;
        slider.setAttribute("aria-valuetext", text);
        svg.querySelector(".at").setAttribute("d", `M${(Number(slider.value) + 0.5) * width / points.length} 0v${height}`);
    }

    function hide(slider) {
        const { said, svg } = partsOf(slider);
        said.textContent = svg.getAttribute("aria-label");
        svg.querySelector(".at").setAttribute("d", "");
    }

    function on(names, hear) {
        for (const name of names) {
            document.addEventListener(name, (event) => {
                if (event.target.matches?.(".cursor")) {
                    hear(event.target, event);
                }
            }, { capture: true });
        }
    }

    on(["pointermove"], (slider, event) => {
        const { left, width } = slider.getBoundingClientRect();
        slider.value = Math.floor((event.clientX - left) / width * partsOf(slider).points.length);
        show(slider);
    });
    on(["input", "focusin"], show);
    on(["focusout", "pointerleave"], hide);
    // A refresh has put the summary back.
    document.addEventListener("htmx:afterRequest", () => document.querySelectorAll(".cursor:is(:focus, :hover)").forEach(show));
}
