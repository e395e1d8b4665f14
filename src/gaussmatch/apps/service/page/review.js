// The findings of an audit, decided by keyboard, one at a time or many.

import { get, image, post } from "./api.js";
import { $, el, number, plural, press } from "./dom.js";

const DECISIONS = ["accept", "own", "fix", "swap", "drop"];
let review = null;
let decided = {}; // number of the finding → { decision, fixed }
let undone = []; // what each step replaced, the last one at the end
let issue = null;
let at = 0; // among the findings of this issue

const store = () => `gaussmatch-review-${review.mark}`; // another audit, other decisions
const numbers = () => review.findings.flatMap((finding, n) => (finding.issue === issue ? [n] : []));
const open = () => numbers().filter((n) => !decided[n]);

/** The decisions that make sense for a finding. */
function possible(finding) {
  const fits = { own: finding.issue === "missing positive", fix: finding.caption, swap: finding.other_caption };
  return DECISIONS.filter((name) => fits[name] ?? true);
}

function draw() {
  const here = numbers();
  const finding = review.findings[here[at]];
  const count = Object.keys(decided).length;
  const total = review.findings.length;
  $("progress").textContent = `${number(count)} of ${number(total)} decided`;
  $("bar").value = total ? count / total : 0;
  $("undo").disabled = !undone.length;
  press([...$("issues").children], [...$("issues").children].find((button) => button.dataset.issue === issue));
  $("meaning").textContent = review.issues[issue] ?? "";
  $("summary").hidden = true;
  $("hint").textContent = "";
  drawBulk();
  $("finding").hidden = !finding;
  if (finding) drawFinding(finding, here);
}

function drawFinding(finding, here) {
  const made = decided[here[at]];
  $("pictures").replaceChildren(...[[finding.picture, finding.image, finding.split], [finding.other_picture, finding.other, finding.other_split]]
    .filter(([shown]) => shown !== null).map(([shown, name, split]) => photo(shown, name, split)));
  $("place").textContent = [`${at + 1} of ${here.length}`, finding.image, finding.place].filter(Boolean).join(" · ");
  $("reason").textContent = [finding.reason, finding.other_text && `the other caption: “${finding.other_text}”`, finding.proposal && `proposed: ${finding.proposal}`].filter(Boolean).join("; ");
  $("text").value = made?.fixed || finding.text;
  const usable = possible(finding);
  $("text").parentElement.querySelector("label").hidden = $("text").hidden = !finding.caption;
  for (const name of DECISIONS) $(name).hidden = !usable.includes(name);
  $("accept").lastChild.textContent = finding.issue === "missing positive" ? " Accept: it fits both" : " Accept: it is fine";
  $("drop").lastChild.textContent = finding.caption ? " Drop the caption" : " Drop the photo";
  press(DECISIONS.map($), $(made?.decision ?? ""));
  $("before").disabled = at === 0;
  $("after").disabled = at === here.length - 1;
}

/** Many at a time: what the audit proposes, or that all the rest is fine. */
function drawBulk() {
  const rest = open();
  const proposed = rest.filter((n) => review.findings[n].proposal);
  $("bulk").replaceChildren(
    ...(proposed.length ? [el("button", { type: "button", className: "pill", onclick: () => record(proposed.map((n) => [n, { decision: review.findings[n].proposal }])) },
      `As proposed: ${plural(proposed.length, "finding", "findings")}`)] : []),
    ...(rest.length ? [el("button", { type: "button", className: "pill", onclick: () => record(rest.map((n) => [n, { decision: "accept" }])) },
      `Accept the remaining ${number(rest.length)}`)] : []));
}

function photo(shown, name, split) {
  const url = `api/review/picture?image=${shown}`;
  const img = el("img", { alt: name, onerror: () => img.replaceWith(el("span", { className: "blank" }, name)) });
  image(img, url);
  return el("figure", {}, el("a", { href: url, target: "_blank", rel: "noopener" }, img), el("figcaption", {}, `${name} (${split})`));
}

/** Keep decisions, as one step that can be undone; null takes one back. */
function record(changes, undoing = false) {
  if (!undoing) undone.push(changes.map(([n]) => [n, decided[n] ?? null]));
  for (const [n, made] of changes) {
    if (made) decided[n] = made;
    else delete decided[n];
  }
  localStorage.setItem(store(), JSON.stringify(decided));
  save();
  draw();
  if (!undoing && finished()) summary();
}

const finished = () => Object.keys(decided).length === review.findings.length;

function undo() {
  const before = undone.pop();
  if (!before) return;
  const [n] = before[0];
  ({ issue } = review.findings[n]);
  at = numbers().indexOf(n);
  record(before, true);
  $("finding").focus();
}

let saving = Promise.resolve(); // one after the other, so that the last one stays

function save() {
  if (review.saves === null) return;
  const decisions = Object.entries(decided).map(([n, made]) => ({ finding: Number(n), ...made }));
  const body = new Blob([JSON.stringify({ decisions })], { type: "application/json" });
  saving = saving.then(() => post("api/review/decisions", {}, body)).then(() => trouble(""), (error) => trouble(`Not saved: ${error.message}`));
}

function trouble(message) {
  $("trouble").textContent = message;
  $("trouble").hidden = !message;
}

function decide(decision) {
  const n = numbers()[at];
  const finding = review.findings[n];
  if (!finding) return;
  if (!possible(finding).includes(decision)) {
    $("hint").textContent = { own: "No other photo is in question here.", fix: "This is about the photo: there is no caption to fix.", swap: "The audit knows no caption to swap this one with." }[decision];
    return;
  }
  const fixed = $("text").value.trim();
  if (decision === "fix" && (fixed === finding.text || !fixed)) { // nothing is fixed yet
    $("text").focus();
    $("text").select();
    return;
  }
  const made = decision === "fix" ? { decision, fixed } : { decision };
  record([n, ...(decision === "swap" ? mates(finding) : [])].map((one) => [one, made]));
  if (!finished()) step(1);
}

/** The findings about the other caption of a swap: they are decided with it. */
function mates(finding) {
  return review.findings.flatMap((other, n) => (other.caption === finding.other_caption && other.other_caption === finding.caption ? [n] : []));
}

function step(by) {
  at = Math.min(numbers().length - 1, Math.max(0, at + by));
  draw();
  $("finding").focus();
}

/** What was done, and what comes next. */
function summary() {
  const counts = DECISIONS.map((name) => [name, Object.values(decided).filter((made) => made.decision === name).length]);
  const left = review.findings.length - Object.keys(decided).length;
  const said = {
    accept: ["accepted as it is", "accepted as they are"], own: ["fits only its own photo", "fit only their own photo"], fix: ["caption fixed", "captions fixed"],
    swap: ["caption swapped with another", "captions swapped with others"], drop: ["caption or photo dropped", "captions or photos dropped"],
  };
  const next = review.saves === null ? "Export the decisions as CSV, then make a cleaned copy:" : `Everything is saved in ${review.saves}. To make a cleaned copy, run:`;
  $("summary").replaceChildren(
    el("h2", {}, left ? `${plural(left, "finding is", "findings are")} still open` : "All findings are decided"),
    el("ul", {}, ...counts.filter(([, count]) => count).map(([name, count]) => el("li", {}, plural(count, ...said[name])))),
    ...(review.apply ? [el("p", {}, next), el("pre", {}, el("code", {}, review.apply))] : []));
  $("finding").hidden = true;
  $("summary").hidden = false;
  $("summary").focus();
}

function exported() {
  const plain = (value) => (typeof value === "string" && /^[=+\-@\t\r']/.test(value) ? `'${value}` : String(value)); // no formula, as in files.write_csv
  const cell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const columns = Object.keys(review.findings[0] ?? {});
  const rows = review.findings.map((finding, n) => columns.map((name) => cell(plain({ ...finding, decision: "", fixed: "", ...decided[n] }[name] ?? ""))).join(","));
  return `${[columns.join(","), ...rows].join("\r\n")}\r\n`;
}

function download() {
  const href = URL.createObjectURL(new Blob([exported()], { type: "text/csv" }));
  el("a", { href, download: "decisions.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

function listen() {
  for (const name of DECISIONS) $(name).addEventListener("click", () => decide(name));
  $("before").addEventListener("click", () => step(-1));
  $("after").addEventListener("click", () => step(1));
  $("undo").addEventListener("click", undo);
  $("finish").addEventListener("click", summary);
  $("export").addEventListener("click", download);
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.target.id === "text") { // Enter keeps the new caption, Esc leaves it
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); decide("fix"); }
      if (event.key === "Escape") $("finding").focus();
      return;
    }
    if ((event.ctrlKey || event.metaKey) && event.key === "z") { event.preventDefault(); undo(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { a: () => decide("accept"), o: () => decide("own"), f: () => decide("fix"), s: () => decide("swap"), d: () => decide("drop"), u: undo, ArrowLeft: () => step(-1), ArrowRight: () => step(1) }[event.key];
    if (action) { event.preventDefault(); action(); }
  });
}

async function start() {
  try {
    review = await get("api/review");
  } catch (error) {
    trouble(error.message);
    return;
  }
  $("tosearch").hidden = review.saves !== null; // there is no index behind
  $("kept").textContent = review.saves === null
    ? "Decisions stay in this browser until you export them; the data is not changed."
    : `Decisions are written to ${review.saves}; the data is not changed.`;
  const written = Object.fromEntries(review.findings.flatMap(({ decision, fixed }, n) => (decision ? [[n, fixed ? { decision, fixed } : { decision }]] : [])));
  decided = review.saves === null ? { ...written, ...JSON.parse(localStorage.getItem(store()) ?? "{}") } : written;
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
  if (issues.length) $("finding").focus();
  else $("progress").textContent = "The audit found nothing.";
  document.documentElement.dataset.ready = "true";
}

start();
