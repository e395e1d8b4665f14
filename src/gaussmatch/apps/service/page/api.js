// Calls of the service. A refusal becomes an Error with the service's own sentence.

import { el } from "./dom.js";

const STORE = "gaussmatch-key";
let requesting = null;

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

function headers(extra = {}) {
  const key = sessionStorage.getItem(STORE);
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

export async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "offline", "The service does not answer. Is it still running?");
  }
  if (response.status === 401) {
    await requestKey();
    return send(path, options);
  }
  if (response.ok) return response;
  let error = null;
  try { ({ error } = await response.json()); } catch { /* not ours */ }
  throw new Refused(response.status, error?.code ?? "failure",
                    error?.message ?? `The service answered ${response.status}.`);
}

/** Request the API key; whoever needs it meanwhile waits for the same one. */
function requestKey() {
  requesting ??= new Promise((resolve) => {
    const wrong = sessionStorage.getItem(STORE) !== null;
    const field = el("input", { id: "keyfield", type: "password", autocomplete: "off", required: true });
    const dialog = el("dialog", { id: "key", className: "sheet", "aria-labelledby": "keytitle", oncancel: (event) => event.preventDefault() },
      el("form", {
        onsubmit: (event) => {
          event.preventDefault();
          sessionStorage.setItem(STORE, field.value);
          dialog.remove();
          requesting = null;
          resolve();
        },
      },
      el("h2", { id: "keytitle" }, "This service needs a key"),
      el("p", { id: "keynote" }, wrong ? "That key was not accepted. Please try again." : "Whoever runs it can give you one. It is kept until you close this tab."),
      el("label", { htmlFor: "keyfield" }, "API key"), field,
      el("button", { className: "go", type: "submit" }, "Continue")));
    document.body.append(dialog);
    dialog.showModal();
  });
  return requesting;
}

function address(path, params) {
  const known = Object.entries(params).filter(([, value]) => value !== null && value !== undefined);
  return known.length ? `${path}?${new URLSearchParams(known)}` : path;
}

export async function get(path, params = {}, signal = undefined) {
  return (await send(address(path, params), { signal })).json();
}

export async function post(path, params, picture, signal = undefined) {
  const type = picture.type || "application/octet-stream";
  const options = { method: "POST", body: picture, signal, headers: { "Content-Type": type } };
  return (await send(address(path, params), options)).json();
}

/** Give an <img> its picture; with a key it must be fetched, not linked. */
export async function image(node, url) {
  if (!sessionStorage.getItem(STORE)) {
    node.src = url;
    return;
  }
  try {
    const local = URL.createObjectURL(await blob(url));
    node.addEventListener("load", () => URL.revokeObjectURL(local), { once: true });
    node.src = local;
  } catch { /* the alternative text stands in */ }
}

export async function blob(url) {
  return (await send(url, {})).blob();
}
