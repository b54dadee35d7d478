"use strict";
// Sorts a table by a column: numbers by value, then words by the alphabet, empty cells last.
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
      // "2.38× (2.37–2.39×)" is text that sorts by the number it begins with.
      const key = (row) => {
        const cell = row.cells[index];
        if (!numeric) return parseFloat(cell.textContent.replace(/,/g, ""));
        return cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
      };
      const words = (a, b) =>
        a.cells[index].textContent.localeCompare(b.cells[index].textContent, "en", { numeric: true });
      const compare = (a, b) => {
        const [left, right] = [key(a), key(b)];
        const without = Number.isNaN(left) - Number.isNaN(right);
        return without || direction * (left - right || words(a, b));
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
