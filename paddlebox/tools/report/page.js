"use strict";
// Tooltips: the first line of data-tip is the head, the others are "name<tab>value".
const tip = document.getElementById("tip");
function show(event) {
  const on = event.target.closest && event.target.closest("[data-tip]");
  if (!on) { tip.hidden = true; return; }
  const [head, ...lines] = on.dataset.tip.split("\n");
  const title = document.createElement("b");
  title.textContent = head;
  tip.replaceChildren(title, ...lines.map((line) => {
    const row = document.createElement("div");
    for (const part of line.split("\t")) {
      const cell = document.createElement("span");
      cell.textContent = part;
      row.append(cell);
    }
    return row;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const top = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = Math.max(8, top) + "px";
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);
// While the run goes on the page comes again, with the tables that were open.
const every = Number(document.body.dataset.reload || 0);
if (every > 0) {
  const all = [...document.querySelectorAll("details")];
  const open = (sessionStorage.getItem("open") || "").split(",");
  all.forEach((one, at) => { if (open.includes(String(at))) one.open = true; });
  setTimeout(() => {
    sessionStorage.setItem("open", all.flatMap((one, at) => (one.open ? [at] : [])).join());
    location.reload();
  }, every * 1000);
}
