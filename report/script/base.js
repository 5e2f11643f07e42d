// Every text below may come from a document or a model: it is put into the page as text, never as markup.
const byId = (id) => document.getElementById(id);
let index = JSON.parse(byId("index").textContent);
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
const matches = (text, query) => query.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));

// The details of a question's trajectories are parsed when they are first needed.

const parsed = new Map();
function parse(id) {
  if (!parsed.has(id)) parsed.set(id, JSON.parse(byId(id).textContent));
  return parsed.get(id);
}
const detailsOf = (question) => (question.chunk === null ? fetched.get(detailKey(question)) || null : parse(`chunk-${question.chunk}`));
function runOf(question, i) {
  const details = detailsOf(question);
  return (details && details.runs.find((run) => run.key === question.runs[i].key)) || null;
}
function sharedText(question, place) {
  const text = detailsOf(question).texts[place];
  return typeof text === "number" ? parse("shared").texts[text] : text;
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
