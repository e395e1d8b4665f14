// The findings of an audit, one at a time: accept, fix or drop, by keyboard; and the list as CSV.

import { get, image } from "./api.js";
import { $, el, number, press } from "./dom.js";

const DECISIONS = ["accept", "fix", "drop"];
const COLUMNS = ["issue", "severity", "image", "caption", "other", "reason", "text", "decision", "fixed"];
let review = null;
let decided = {}; // number of the finding → { decision, fixed }
let issue = null;
let at = 0; // among the findings of this issue

const store = () => `gaussmatch-review-${review.mark}`; // another audit, other decisions
const numbers = () => review.findings.flatMap((finding, n) => (finding.issue === issue ? [n] : []));

function draw() {
  const here = numbers();
  const n = here[at];
  const finding = review.findings[n];
  const count = Object.keys(decided).length;
  $("progress").textContent = `${number(count)} of ${number(review.findings.length)} decided`;
  press([...$("issues").children], [...$("issues").children].find((button) => button.dataset.issue === issue));
  $("meaning").textContent = review.issues[issue];
  $("finding").hidden = !finding;
  if (!finding) return;
  $("pictures").replaceChildren(...[[finding.image, "Its photo"], [finding.other, "The other photo"]]
    .filter(([number_]) => number_ !== null).map(([number_, name]) => photo(number_, name)));
  $("place").textContent = `${at + 1} of ${here.length} · photo ${finding.image}${finding.caption === null ? "" : ` · caption ${finding.caption}`}`;
  $("reason").textContent = finding.reason;
  $("text").value = decided[n]?.fixed ?? finding.text;
  $("text").parentElement.querySelector("label").hidden = $("text").hidden = $("fix").hidden = finding.caption === null;
  $("accept").lastChild.textContent = finding.issue === "missing positive" ? " Accept: it fits both" : " Accept: it is fine";
  press(DECISIONS.map($), $(decided[n]?.decision ?? ""));
  $("before").disabled = at === 0;
  $("after").disabled = at === here.length - 1;
}

function photo(number_, name) {
  const img = el("img", { alt: `${name}, ${number_}`, onerror: () => img.replaceWith(el("span", { className: "blank" }, `photo ${number_}`)) });
  image(img, `api/review/picture?image=${number_}`);
  return el("figure", {}, img, el("figcaption", {}, name));
}

function decide(decision) {
  const n = numbers()[at];
  const { caption, text } = review.findings[n];
  if (decision === "fix" && caption === null) return;
  if (decision === "fix" && $("text").value.trim() === text) { // nothing is fixed yet
    $("text").focus();
    return;
  }
  decided[n] = decision === "fix" ? { decision, fixed: $("text").value.trim() } : { decision };
  localStorage.setItem(store(), JSON.stringify(decided));
  step(1);
}

function step(by) {
  at = Math.min(numbers().length - 1, Math.max(0, at + by));
  draw();
  $("finding").focus();
}

function exported() {
  const plain = (value) => (typeof value === "string" && /^[=+\-@\t\r']/.test(value) ? `'${value}` : String(value)); // no formula, as in files.write_csv
  const cell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const rows = review.findings.map((finding, n) => COLUMNS.map((name) => cell(plain(finding[name] ?? decided[n]?.[name] ?? ""))).join(","));
  return `${[COLUMNS.join(","), ...rows].join("\r\n")}\r\n`;
}

function save() {
  const href = URL.createObjectURL(new Blob([exported()], { type: "text/csv" }));
  el("a", { href, download: "review.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

function listen() {
  for (const name of DECISIONS) $(name).addEventListener("click", () => decide(name));
  $("before").addEventListener("click", () => step(-1));
  $("after").addEventListener("click", () => step(1));
  $("export").addEventListener("click", save);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.id === "text") { // Enter keeps the new caption, Esc leaves it
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); decide("fix"); }
      if (event.key === "Escape") $("finding").focus();
      return;
    }
    const action = { a: () => decide("accept"), f: () => decide("fix"), d: () => decide("drop"), ArrowLeft: () => step(-1), ArrowRight: () => step(1) }[event.key];
    if (action) { event.preventDefault(); action(); }
  });
}

async function start() {
  try {
    review = await get("api/review");
  } catch (error) {
    $("trouble").textContent = error.message;
    $("trouble").hidden = false;
    return;
  }
  decided = JSON.parse(localStorage.getItem(store()) ?? "{}");
  const issues = Object.keys(review.issues).filter((name) => review.findings.some((finding) => finding.issue === name));
  $("issues").replaceChildren(...issues.map((name) => {
    const button = el("button", { type: "button", "aria-pressed": "false", onclick: () => { issue = name; at = 0; draw(); } },
      `${name} (${review.findings.filter((finding) => finding.issue === name).length})`);
    button.dataset.issue = name;
    return button;
  }));
  [issue] = issues;
  listen();
  draw();
  $("finding").focus();
  document.documentElement.dataset.ready = "true";
}

start();
