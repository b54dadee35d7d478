"use strict";
// Sorts a table by a column: numbers by value, words by the alphabet, empty cells last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      const numeric = head.classList.contains("number");
      const key = (row) => {
        const cell = row.cells[index];
        if (numeric) return cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
        return cell.textContent;
      };
      // "2.38× (2.37–2.39×)" is text that sorts by the number it begins with.
      const lead = (text) => parseFloat(text.replace(/,/g, ""));
      const words = (left, right) =>
        lead(left) - lead(right) || left.localeCompare(right, "en", { numeric: true });
      const compare = (a, b) => {
        const [left, right] = [key(a), key(b)];
        if (!numeric) return direction * words(left, right);
        if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right);
        return direction * (left - right);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
