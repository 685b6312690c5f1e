"use strict";

// Every table of results sorts by each of its columns: highest first, lowest first, as written.
for (const table of document.querySelectorAll("table.numbers")) {
  const body = table.tBodies[0];
  const asWritten = [...body.rows];
  for (const header of table.querySelectorAll("thead th[scope=col]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(header, body, asWritten));
  }
}

function sortBy(header, body, asWritten) {
  const next = { descending: "ascending", ascending: null };
  const before = header.getAttribute("aria-sort");
  const order = before in next ? next[before] : "descending";
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  if (order) header.setAttribute("aria-sort", order);
  const rows = order ? sorted(asWritten, header.cellIndex, order) : asWritten;
  // The title of a part has no place among rows of other parts.
  for (const row of asWritten) row.hidden = order !== null && row.classList.contains("part");
  body.append(...rows);
}

function sorted(rows, column, order) {
  const sign = order === "descending" ? -1 : 1;
  const key = (row) => {
    const cell = row.cells[column];
    if (!cell || cell.classList.contains("none")) return null;
    return cell.dataset.n === "" ? cell.textContent : Number(cell.dataset.n);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return rows
    .map((row) => [key(row), row])
    .sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // last in both orders
      return sign * compare(a, b);
    })
    .map(([, row]) => row);
}

// A table may let its reader choose rows: by words of a column (no button pressed: all; else rows
// whose words are all pressed; every method has logits), and by a part of their name.
for (const table of document.querySelectorAll("table[data-filters]")) {
  const rows = [...table.tBodies[0].rows];
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const box = document.createElement("div");
  const status = document.createElement("p");
  const name = document.createElement("input");
  const filters = table.dataset.filters.split("|").map((title) => {
    const column = titles.indexOf(title);
    const words = (row) => row.cells[column]?.textContent.split(", ") ?? [];
    return { title, words, pressed: new Set() };
  });
  const fieldset = (title, ...controls) => {
    const set = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = title;
    set.append(legend, ...controls);
    box.append(set);
  };
  const fits = (row) =>
    row.cells[0].textContent.toLowerCase().includes(name.value.toLowerCase().trim()) &&
    filters.every((f) => !f.pressed.size || f.words(row).every((w) => w === "logits" || f.pressed.has(w)));
  const apply = () => {
    let shown = 0;
    let part = null;
    for (const row of rows) {
      const heads = row.classList.contains("part");
      if (heads) part = row;
      const out = heads || !fits(row);
      row.classList.toggle("out", out);
      if (!out) part?.classList.remove("out");
      shown += out ? 0 : 1;
    }
    status.textContent = `${shown} of ${rows.filter((r) => !r.classList.contains("part")).length} rows`;
  };
  for (const filter of filters) {
    const results = rows.filter((row) => !row.classList.contains("part"));
    const every = [...new Set(results.flatMap(filter.words))].filter((w) => w && w !== "n/a");
    const buttons = every.map((word) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = word;
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        const on = !filter.pressed.delete(word);
        if (on) filter.pressed.add(word);
        button.setAttribute("aria-pressed", String(on));
        apply();
      });
      return button;
    });
    fieldset(filter.title === "needs" ? "needs no more than" : filter.title, ...buttons);
  }
  name.type = "search";
  name.setAttribute("aria-label", "A part of the method's name");
  name.addEventListener("input", apply);
  fieldset("name", name);
  status.setAttribute("role", "status");
  box.className = "filters";
  box.append(status);
  table.closest(".scroll").before(box);
  apply();
}

// A box that is narrower than its content says so; see .scroll in the style.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.toggleAttribute("data-wide", target.scrollWidth > target.clientWidth + 1);
  }
});
for (const box of document.querySelectorAll(".scroll")) sizes.observe(box);
