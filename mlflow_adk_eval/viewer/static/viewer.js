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
  // Single keys do what the page says of them, unless somebody is writing or has turned them off.
  const keys = document.querySelector(".keys");
  const off = document.getElementById("keys-off");
  let kept = {};
  try {
    kept = localStorage;
  } catch {
    // a browser that keeps nothing
  }
  keys.hidden = false;
  off.checked = kept.keys === "off";
  off.addEventListener("change", () => (kept.keys = off.checked ? "off" : "on"));
  const move = (step, fits = () => true) => {
    const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row.checkVisibility());
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const top = rows.findIndex((row) => row.getBoundingClientRect().bottom > 0);
    const ahead = step < 0 ? rows.slice(0, at < 0 ? rows.length : at).reverse() : rows.slice(at < 0 ? Math.max(top, 0) : at + 1);
    const row = ahead.find(fits);
    (row?.matches("a, summary, button") ? row : row?.querySelector("a, summary, button"))?.focus();
    row?.scrollIntoView({ block: "nearest" });
    return Boolean(row);
  };
  const unpassed = (row) => ["failed", "undecided"].includes(row.closest("[data-verdict]")?.dataset.verdict);
  const moves = {
    j: () => move(1),
    k: () => move(-1),
    n: () => move(1, unpassed),
    "/": () => document.querySelector("[data-search]")?.focus(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || (off.checked && event.key !== "?")) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const named = document.querySelector(`:is(a, button)[aria-keyshortcuts="${CSS.escape(event.key)}"]`);
    if (!named && !moves[event.key]) return;
    event.preventDefault();
    if (!moves[event.key]?.()) named?.click();
  });
  // A case begins with what a search found in it, else with the first turn that did not pass.
  const mark = document.querySelector("main mark");
  const begin = location.hash ? null : (mark ?? document.querySelector("[data-begin]"));
  for (let fold = begin?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  if (begin?.getBoundingClientRect().top > innerHeight / 2) begin.scrollIntoView({ block: mark ? "center" : "start" });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = event.target.closest("details.facet[open]");
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });
})();
