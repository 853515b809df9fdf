"use strict";
(() => {
  // Links within a list replace the list only; without scripts they are plain links.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#results a[href^='/']");
    const list = link?.closest("#results");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.pathname !== location.pathname || link.target) return;
    event.preventDefault();
    const id = link.id;
    const text = link.firstChild?.textContent;
    htmx.ajax("GET", link.getAttribute("href"), { target: list, select: "#results", swap: "outerHTML", push: link.href }).then(() => {
      // The same link in the new list keeps the focus, so that a keyboard goes on where it was.
      const same = [...document.querySelectorAll("#results a")].find((one) => (id ? one.id === id : one.firstChild?.textContent === text && one.checkVisibility()));
      (same ?? document.querySelector("#results summary, #results a"))?.focus({ preventScroll: true });
    });
  });
  // The rest of a run's page leaves open what a reader has opened meanwhile, and where it is.
  const named = (one) => one.querySelector("h3").textContent;
  let reading = [];
  let top;
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const open = detail.target.id === "main" ? [...detail.target.querySelectorAll(".case[open]")] : [];
    reading = open.map(named);
    top = open[0]?.getBoundingClientRect().top;
  });
  document.addEventListener("htmx:afterSwap", () => {
    const open = reading.length ? [...document.querySelectorAll(".case")].filter((one) => reading.includes(named(one))) : [];
    for (const one of open) one.open = true;
    if (open.length) scrollBy(0, open[0].getBoundingClientRect().top - top);
    reading = [];
  });
  // What went wrong has a page that says so.
  document.addEventListener("htmx:responseError", ({ detail }) => location.assign(detail.pathInfo.finalRequestPath));
  // Back and forward show what was shown; a jump within the page is none of that.
  const address = () => location.pathname + location.search;
  let shown = address();
  document.addEventListener("htmx:pushedIntoHistory", () => (shown = address()));
  addEventListener("popstate", () => address() !== shown && location.reload());
  // A single key labels, unless somebody is writing.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.closest("input, textarea")) return;
    document.querySelector(`.label [aria-keyshortcuts="${CSS.escape(event.key)}"]`)?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = event.target.closest("details.facet[open]");
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });
})();
