// Every text below may come from a document or a model: it is put into the page as text, never as markup.
const byId = (id) => document.getElementById(id);
let index = null;
const PAGE = 100;

function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "class") node.className = value;
    else if (name === "style") node.style.cssText = value || "";  // as an attribute, a strict policy would refuse it
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== "") node.append(child);
  return node;
}
const fixed = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const words = (name) => name.replaceAll("_", " ");
const matches = (text, query) => query.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));

function problem(text) {
  byId("problem").hidden = !text;
  byId("problem").textContent = text;
}

let pending = 0;
async function busy(work) {
  pending += 1;
  document.body.setAttribute("aria-busy", "true");
  try {
    return await work;
  } finally {
    pending -= 1;
    document.body.setAttribute("aria-busy", String(pending > 0));
  }
}

// What `pack` in report/view.py made.
async function unpack(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot decompress them. Chrome and Edge can from version 80 on, Firefox from 113 on and Safari from 16.4 on.");
  }
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// The details of a question's trajectories are read when they are first needed: from the page, with those of other
// questions, or from the server of a run that goes on, and there again when a trajectory was added.

const reading = new Map();
const details = new Map();
const placeOf = (question) => (index.live ? JSON.stringify([question.id, question.runs]) : question.chunk);
const detailsOf = (question) => details.get(placeOf(question)) || null;
function readDetails(question) {
  const place = placeOf(question);
  if (!reading.has(place)) {
    const read = index.live ? askForDetails(question) : unpack(byId(`chunk-${place}`).textContent);
    reading.set(place, read.then((found) => details.set(place, found)).finally(() => reading.delete(place)));
  }
  return reading.get(place);
}
function runOf(question, i) {
  const found = detailsOf(question);
  return (found && found.runs.find((run) => run.key === question.runs[i].key)) || null;
}

// A switch and a list of options keep their elements while they are drawn again, and so the focus on them.

function switcher(host, options, chosen, onChoose) {
  if (host.dataset.options !== JSON.stringify(options)) {
    host.dataset.options = JSON.stringify(options);
    host.replaceChildren(...options.map(([value, label]) =>
      el("button", { type: "button", "data-value": value, onclick: () => onChoose(value) }, label)));
  }
  for (const button of host.children) button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
}

function fillSelect(select, options, chosen) {
  if (select.dataset.options !== JSON.stringify(options)) {
    select.dataset.options = JSON.stringify(options);
    select.replaceChildren(...options.map(([value, label]) => el("option", { value }, label)));
    select.hidden = options.length < 3;  // "every" and one value: nothing to choose
  }
  select.value = chosen;
}
