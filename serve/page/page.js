// Asks the endpoint of the server that this page comes from. What models and documents say is shown as text alone.
"use strict";

const one = (selector, inside = document) => inside.querySelector(selector);
let models = [];
let stopping = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function headers() {
  const key = one("#key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answered ${response.status}`);
}

// Models

async function loadModels() {
  one("#problem").textContent = "";
  try {
    const response = await fetch("v1/models", { headers: headers() });
    one("#key-row").hidden = response.status !== 401 && !one("#key").value;
    if (response.status === 401 && !one("#key").value) return one("#key").focus();
    if (!response.ok) throw await refusal(response);
    models = (await response.json()).data;
  } catch (error) {
    one("#problem").textContent = `The models cannot be listed: ${error.message}`;
    return;
  }
  one("#first").replaceChildren(...models.map((model) => new Option(model.id)));
  offerSeconds(models[1]?.ratchet.policy === "base" && models[0].ratchet.policy === "adapter" ? models[1].id : "");
  one("#text").focus();
}

function offerSeconds(chosen) {
  const first = models.find((model) => model.id === one("#first").value);
  const others = models.filter((model) => model !== first && model.ratchet.form === first.ratchet.form);
  one("#second").replaceChildren(new Option("no other", ""), ...others.map((model) => new Option(model.id)));
  if (others.some((model) => model.id === chosen)) one("#second").value = chosen;
  one("#text-label").textContent = first.ratchet.form === "claim" ? "Claim" : "Question";
}

// Answers

function passageItem(passage) {
  const item = element("li");
  const details = element("details");
  details.append(element("summary", "", passage.title ? `${passage.title} (${passage.id})` : passage.id));
  details.append(element("p", "passage", passage.text));
  item.append(details);
  return item;
}

function stepItem(step) {
  const item = element("li");
  item.append(element("span", "role", step.role), " ", element("span", "said", step.text));
  if (step.problem) item.append(element("p", "problem", step.problem));
  if (step.found) item.append(element("p", "passage", step.found));
  if (step.passages?.length) {
    const list = element("ul");
    list.append(...step.passages.map(passageItem));
    item.append(list);
  } else if (step.passages) item.append(element("p", "status", "nothing found"));
  return item;
}

function show(view, chunk) {
  const delta = chunk.choices[0]?.delta ?? {};
  const facts = chunk.ratchet ?? {};
  if (facts.step) {
    const steps = one(".steps > ol", view);
    const atEnd = steps.scrollTop + steps.clientHeight >= steps.scrollHeight - 30;
    steps.append(stepItem(facts.step));
    if (atEnd) steps.scrollTop = steps.scrollHeight;
    one(".status", view).textContent = `working: steps ${steps.children.length}`;
  }
  if (delta.content) one(".answer", view).append(delta.content);
  if (delta.refusal) one(".answer", view).append(element("span", "problem", delta.refusal));
  if (delta.annotations?.length) {
    one(".evidence > ol", view).append(...delta.annotations.map((citation) => passageItem(citation.passage)));
    one(".evidence", view).hidden = false;
  }
  if (facts.status) {
    const costs = `model calls ${facts.model_calls}, searches ${facts.searches}, seconds ${facts.seconds.toFixed(1)}`;
    one(".status", view).textContent = `${facts.status.replaceAll("_", " ")}: ${costs}`;
    if (facts.error) one(".status", view).after(element("p", "problem", facts.error));
    one(".explanation", view).textContent = facts.explanation;
    one(".explanation", view).hidden = !facts.explanation;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer(model, text, signal) {
  const view = one("#result").content.cloneNode(true).firstElementChild;
  one("h2", view).textContent = model;
  one("h2", view).id = `title-${one("#results").children.length}`;
  view.setAttribute("aria-labelledby", one("h2", view).id);
  one(".status", view).textContent = "waiting";
  one("#results").append(view);
  try {
    const body = JSON.stringify({ model, messages: [{ role: "user", content: text }], stream: true });
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body, signal });
    if (!response.ok) throw await refusal(response);
    let ended = false;
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      show(view, chunk);
      ended ||= Boolean(chunk.ratchet?.status);
    }
    if (!ended) throw new Error("the server ended the answer early");
  } catch (error) {
    one(".status", view).textContent = error.name === "AbortError" ? "stopped" : "failed";
    if (error.name !== "AbortError") one(".answer", view).append(element("span", "problem", error.message));
  }
}

async function ask() {
  const text = one("#text").value.trim();
  if (!text || stopping || !one("#first").value) return;
  stopping = new AbortController();
  one("#ask").disabled = true;
  one("#stop").disabled = false;
  one("#results").replaceChildren();
  const chosen = [one("#first").value, one("#second").value].filter(Boolean);
  await Promise.all(chosen.map((model) => answer(model, text, stopping.signal)));
  stopping = null;
  one("#ask").disabled = false;
  one("#stop").disabled = true;
}

one("#form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
one("#text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
one("#key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  loadModels();
});
one("#stop").addEventListener("click", () => stopping?.abort());
one("#use-key").addEventListener("click", loadModels);
one("#first").addEventListener("change", () => offerSeconds(one("#second").value));
loadModels();
