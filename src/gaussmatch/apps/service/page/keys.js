// Keyboard, drop and paste.

import { $ } from "./dom.js";
import { arrow } from "./results.js";

/** `onescape` closes what is open; whether anything was. */
export function listen(onpicture, onescape) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const field = event.target.closest?.("input, textarea, select");
    const typing = field && field.type !== "range" && field.type !== "file";
    if (event.key === "/" && !typing) {
      event.preventDefault();
      $("q").focus();
      $("q").select();
    } else if (event.key === "ArrowDown" && field?.id === "q") {
      const first = document.querySelector('.card[tabindex="0"]') ?? document.querySelector(".chip");
      if (first?.checkVisibility()) { event.preventDefault(); first.focus(); }
    } else if (event.key === "Escape" && !onescape() && field?.id === "q") {
      field.value = "";
    } else if (!field && arrow(event.key)) {
      event.preventDefault();
    }
  });

  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((f) => f.type.startsWith("image/"));
    if (file) { event.preventDefault(); onpicture(file); }
  });

  let depth = 0;
  const over = (shown) => document.body.classList.toggle("dropping", shown);
  const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => { if (holdsFile(event)) { depth += 1; over(true); } });
  document.addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); over(depth > 0); });
  document.addEventListener("dragover", (event) => { if (holdsFile(event)) event.preventDefault(); });
  document.addEventListener("drop", (event) => {
    depth = 0;
    over(false);
    if (!holdsFile(event)) return;
    event.preventDefault();
    onpicture(event.dataTransfer.files[0]);
  });
}
