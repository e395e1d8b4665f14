// What narrows a search: conditions on any field; and the order of what matches.

import { get } from "./api.js";
import { $, el } from "./dom.js";
import { folderName } from "./picture.js";

export const ORDERS = { best: "Best first", newest: "Newest first", oldest: "Oldest first" };
let fields = null;

/** Make the form; `onchange` gets {where, sort}. */
export async function prepare(chosen, onchange) {
  if (fields === null) {
    ({ fields } = await get("api/fields"));
    $("filters").addEventListener("change", () => onchange(read()));
    $("filters").addEventListener("submit", (event) => event.preventDefault());
  }
  const dated = fields.some((field) => field.name === "taken");
  const order = labeled("Order of what matches", el("select", { name: "sort" },
    ...Object.entries(ORDERS).map(([value, text]) => el("option", { value, selected: value === chosen.sort }, text))));
  $("filters").replaceChildren(
    ...(dated ? [order] : []),
    ...fields.map((field) => control(field, chosen.where[field.name])),
    fields.length ? el("button", { type: "button", className: "pill", onclick: () => { prepare({ where: {}, sort: "best" }, onchange); onchange({ where: {}, sort: "best" }); } }, "Clear all")
      : el("p", { className: "note" }, "These pictures have no dates, folders or other fields to filter by."),
  );
}

/** How many filters are set, for the button that opens them. */
export const count = ({ where, sort }) => Object.keys(where).length + Number(sort !== "best");

const title = (name) => ({ taken: "Date", folder: "Folder", place: "Place" })[name]
  ?? name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

const labeled = (text, ...nodes) => el("label", {}, el("span", {}, text), ...nodes);

function control(field, set) {
  const name = title(field.name);
  if (field.type === "date" || field.type === "number") {
    const { type } = field;
    const input = (end, label) => {
      const node = el("input", { type, step: "any", min: String(field.least), max: String(field.most), value: String(set?.[end === "from" ? "gte" : "lte"] ?? "").slice(0, type === "date" ? 10 : undefined), "aria-label": `${name} ${label}` });
      Object.assign(node.dataset, { field: field.name, type: field.type, end });
      return node;
    };
    return el("fieldset", {}, el("legend", {}, name), input("from", "from"), el("span", {}, "to"), input("to", "to"));
  }
  const select = el("select", {}, el("option", { value: "" }, "any"),
    ...field.values.map((value) => el("option", { value: String(value), selected: value === set }, typeof value === "boolean" ? (value ? "yes" : "no") : field.name === "folder" ? folderName(value) : value || "(none)")));
  Object.assign(select.dataset, { field: field.name, type: field.type });
  return labeled(name, select);
}

function read() {
  const form = $("filters");
  const where = {};
  for (const node of form.querySelectorAll("[data-field]")) {
    const { field, type, end } = node.dataset;
    if (node.value === "") continue;
    if (type === "text") where[field] = node.value;
    else if (type === "truth") where[field] = node.value === "true";
    else if (type === "number") (where[field] ??= {})[end === "from" ? "gte" : "lte"] = Number(node.value);
    else if (end === "from") (where[field] ??= {}).gte = node.value;
    else (where[field] ??= {}).lte = `${node.value}T23:59:59.999`;
  }
  return { sort: form.elements.sort?.value ?? "best", where };
}
