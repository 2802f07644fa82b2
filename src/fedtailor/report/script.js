// The page works without this: it sorts tables, says clients on hover, and highlights one.
"use strict";
const all = (query, at = document) => [...at.querySelectorAll(query)];

// Tables sort by the column whose name is clicked.
function sortable(table) {
  const body = table.tBodies[0];
  const value = (row, place) => {
    const cell = row.cells[place], data = cell.querySelector("data");
    const text = cell.textContent.trim(), number = Number(data ? data.value : text.replace(/,/g, ""));
    return text === "—" ? null : Number.isNaN(number) || text === "" ? text : number;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  all("thead th", table).forEach((head, place) => {
    head.classList.add("sorts");
    head.tabIndex = 0;
    const sort = () => {
      const down = head.classList.contains("up");
      all("thead th", table).forEach((other) => other.classList.remove("up", "down"));
      head.classList.add(down ? "down" : "up");
      const rows = [...body.rows].map((row) => [value(row, place), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return down ? order(b, a) : order(a, b);
      });
      body.append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort();
    });
  });
}
all("table.sort").forEach(sortable);

// One client through all pictures and tables: while pointed at, or picked.
let picked = "";
const select = document.createElement("select");
function highlight(client) {
  all(".on").forEach((element) => element.classList.remove("on"));
  document.body.classList.toggle("some", client !== "");
  if (client !== "") {
    all(`[data-client="${client}"]`).forEach((element) => element.classList.add("on"));
  }
}
function pick(client) {
  picked = client === picked ? "" : client;
  select.value = picked;
  highlight(picked);
}
const clients = [...new Set(all("[data-client]").map((element) => element.dataset.client))];
if (clients.length > 1) {
  clients.sort((a, b) => a - b);
  const label = document.createElement("label");
  label.id = "pick";
  select.append(new Option("none", ""), ...clients.map((client) => new Option(client, client)));
  select.addEventListener("change", () => {
    picked = select.value;
    highlight(picked);
  });
  label.append("highlight client ", select);
  document.querySelector("#begin").after(label);
}

// What a mark says, beside the pointer; the browser's own label would come late.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
all("svg [data-client]").forEach((mark) => {
  const title = mark.querySelector("title"), text = title.textContent;
  mark.setAttribute("aria-label", text);
  title.remove();
  mark.addEventListener("pointermove", (event) => {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.max(event.clientY - tip.offsetHeight - 8, 4)}px`;
  });
  mark.addEventListener("pointerenter", () => highlight(mark.dataset.client));
  mark.addEventListener("pointerleave", () => {
    tip.hidden = true;
    highlight(picked);
  });
  mark.addEventListener("click", () => pick(mark.dataset.client));
});
all("tr[data-client]").forEach((row) => {
  row.addEventListener("click", () => pick(row.dataset.client));
});

// Paper cannot be unfolded.
addEventListener("beforeprint", () => {
  all("details").forEach((one) => (one.open = true));
});
