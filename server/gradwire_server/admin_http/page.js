"use strict";

// Fetches the page again and puts in the parts that have changed: what somebody reads or selects
// stays. What is parsed this way runs no script.
const everyMs = 2000;
// A page that was opened as https://name:token@host/ may fetch nothing relative to that.
const here = location.origin + "/";

let before;

// Rates are differences between two readings of this page.
function addRates(page) {
  const at = performance.now();
  const figures = [...page.querySelectorAll("[data-total]")];
  const totals = figures.map((figure) => Number(figure.dataset.total));
  figures.forEach((figure, number) => {
    if (!before) return;
    // A server that has started again counts from zero.
    const perS = (Math.max(0, totals[number] - before.totals[number]) / (at - before.at)) * 1000;
    figure.textContent = ` ${perS.toLocaleString("en", { maximumSignificantDigits: 3 })} ${figure.dataset.unit}`;
  });
  before = { at, totals };
}

async function refresh() {
  if (!document.hidden) {
    const stale = document.getElementById("stale");
    try {
      const answer = await fetch(here, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      addRates(fresh);
      for (const part of fresh.querySelectorAll("[data-live]")) {
        const old = document.getElementById(part.id);
        if (old && old.outerHTML !== part.outerHTML) old.replaceWith(document.adoptNode(part));
      }
      document.title = fresh.title;
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
  }
  setTimeout(refresh, everyMs);
}

addRates(document);
setTimeout(refresh, everyMs);
