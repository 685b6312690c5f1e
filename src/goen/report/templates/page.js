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

// A box that is narrower than its content says so; see .scroll in the style.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.toggleAttribute("data-wide", target.scrollWidth > target.clientWidth + 1);
  }
});
for (const box of document.querySelectorAll(".scroll")) sizes.observe(box);
