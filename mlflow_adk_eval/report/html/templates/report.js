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
    mark(wanted);
  };

  // What was searched for is marked without a change of the page. Enter goes from one to the next.
  let found = [];
  let at = -1;
  const mark = (wanted) => {
    [found, at] = [[], -1];
    for (const one of wanted ? cases.filter((each) => !each.hidden) : []) {
      const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
      const nodes = [];
      while (walker.nextNode()) nodes.push(walker.currentNode);
      const raw = nodes.map((node) => node.data).join("");
      const all = raw.toLowerCase();
      if (all.length !== raw.length) continue; // a letter became several, and places are not known
      let [index, start] = [0, 0];
      const place = (offset) => {
        while (offset >= start + nodes[index].data.length) start += nodes[index++].data.length;
        return [nodes[index], offset - start];
      };
      for (let from = all.indexOf(wanted); from >= 0 && found.length < 1000; from = all.indexOf(wanted, from + wanted.length)) {
        const range = new Range();
        range.setStart(...place(from));
        const [node, last] = place(from + wanted.length - 1);
        range.setEnd(node, last + 1);
        found.push(range);
      }
    }
    if (globalThis.Highlight) CSS.highlights.set("found", new Highlight(...found));
  };
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    at = (at + 1) % found.length;
    const parent = found[at].startContainer.parentElement;
    for (let fold = parent.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    parent.scrollIntoView({ block: "center" });
  });

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
    opened = [...document.querySelectorAll(".case:not([open]), .more:not([open])")].filter((one) => !one.closest("[hidden]"));
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
  document.getElementById("filter").hidden = cases.length < 2;
})();
