"use strict";
(() => {
  const cases = [...document.querySelectorAll("#list > .case")];
  const buttons = [...document.querySelectorAll("[data-show]")];
  const search = document.getElementById("search");
  const unfold = document.getElementById("unfold");
  const shown = document.getElementById("shown");
  const texts = new Map();
  let verdict = "";

  const textOf = (one) => {
    if (!texts.has(one)) texts.set(one, one.textContent.toLowerCase());
    return texts.get(one);
  };

  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let count = 0;
    for (const one of cases) {
      const fits = (!verdict || one.dataset.verdict === verdict) && (!wanted || textOf(one).includes(wanted));
      one.hidden = !fits;
      count += fits;
    }
    shown.textContent = count === cases.length ? "" : `${count} of ${cases.length} shown`;
  };

  for (const button of buttons) {
    button.addEventListener("click", () => {
      verdict = button.dataset.show;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      filter();
    });
  }
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    unfold.setAttribute("aria-pressed", String(open));
    for (const one of cases) one.open = open && !one.hidden;
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((one) => !one.closest("[hidden]"));
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
  document.getElementById("filter").hidden = cases.length < 2;
})();
