// One trajectory as a column: its ending and scores, and every event in order.

function column(question, i) {
  const line = question.runs[i];
  const run = runOf(question, i);
  const alone = view.open === line.key;
  const label = line.arm ? `${armTitle(line.arm)}${line.sample ? `, sample ${line.sample}` : ""}` : `sample ${line.sample}`;
  const problems = line.outcomes.slice(1).filter((name) => name !== "partly_right" || !line.kept);
  const told = run && run.turns.length ? transcript(run, question) : null;
  return el("article", { class: `run ${line.kept ? "kept" : ""}`, "data-key": line.key, tabindex: 0, "aria-label": label,
    style: told ? `flex-basis:${told.width}rem` : null },
  el("header", null, el("span", { class: "reward term", tabindex: 0, title: "Reward: the weighted mean of the scores. – is null: no value, not 0." }, fixed(line.reward, 2)),
    el("span", { class: "which" }, label),
    line.kept ? el("span", { class: "badge kept" }, "kept") : null,
    el("span", { class: `badge ${line.status} term`, tabindex: 0, title: index.outcomes[line.status] }, words(line.status)),
    problems.map((name) => el("span", { class: "badge term", tabindex: 0, title: index.outcomes[name] }, words(name))),
    el("span", { class: "actions" },
      el("a", { href: `#t=${line.key}`, title: "The address of this trajectory" }, "link"),
      el("button", { type: "button", onclick: () => (alone ? closeTrajectory() : openTrajectory(line.key, true)) }, alone ? "Side by side" : "Open"))),
  run ? body(line, run, question, told)
    : el("p", { class: "label" }, placeOf(question) !== null ? "Opening…" : "Its details are not on this page, which has a limit of size. The run folder holds them."));
}

function body(line, run, question, told) {
  const everything = [...run.conversations.map(strip), run.rows ? el("p", { class: "label" }, run.rows) : null, el("ol", { class: "events" }, run.events.map((event) => eventItem(event, run, question)))];
  return [
    el("p", { class: "scores" }, run.scores.map((s) => el("span", null,
      `${words(s.name)} `, el("b", { title: s.reason || null }, s.value === null ? "null" : fixed(s.value, 2)),
      s.unparsed ? ` (${s.unparsed} of ${s.verdicts} verdicts unreadable)` : ""))),
    ...run.scores.filter((s) => s.value === null && s.reason).map((s) => el("div", { class: "label" }, `${words(s.name)} is null: ${s.reason}`)),
    told ? told.table : null,
    run.stopped ? el("div", { class: "label text" }, `Ended: ${run.stopped}`) : null,
    el("div", { class: "answer text" }, run.answer || el("span", { class: "label" }, "no answer")),
    run.explanation ? el("div", { class: "text" }, run.explanation) : null,
    line.status === "finished" ? null : el("div", { class: "problem text" }, [index.outcomes[line.status], run.error].filter(Boolean).join(" ")),
    ...(told ? [el("details", { class: "log" }, el("summary", null, `Every call in order (${run.events.length})`), everything)] : everything),
    run.support.length ? el("div", null, el("div", { class: "label" }, `Supporting documents returned (${run.support.length})`),
      run.support.map((id) => passage(id, null, question))) : null,
  ];
}

// A debate has a row a speaker and a column a round; a loop, in which one speaks, a row a step.
function transcript(run, question) {
  const speakers = [...new Set(run.turns.map((turn) => turn.speaker))];
  const rounds = [...new Set(run.turns.map((turn) => turn.round))].sort((a, b) => a - b);
  const steps = speakers.length === 1;
  const heads = steps ? [speakers[0], "looked up", "said"] : ["", ...rounds.map((round) => `round ${round}`)];
  const cell = (...parts) => el("td", null, ...parts);
  const rows = steps
    ? run.turns.map((turn) => [`step ${turn.round}`, cell(lookedUp(turn, question)), cell(spoken(turn, question))])
    : speakers.map((speaker) => [speaker, ...rounds.map((round) => cell(run.turns
      .filter((turn) => turn.speaker === speaker && turn.round === round)
      .map((turn) => [...lookedUp(turn, question), ...spoken(turn, question)]).flat()))]);
  const table = el("table", { class: "transcript" },
    el("thead", null, el("tr", null, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", null, rows.map(([head, ...cells]) => el("tr", null, el("th", { scope: "row" }, head), cells))));
  return { table, width: 8 + 17 * (heads.length - 1) };
}

function lookedUp(turn, question) {
  return [turn.query ? el("div", { class: "text query" }, `“${turn.query}”`) : null, ...turn.hits.map((id) => passage(id, null, question))];
}

function spoken(turn, question) {
  const tone = !question.label || !turn.verdict ? "" : turn.verdict === question.label ? "right" : "wrong";
  return [el("div", { class: "text" }, turn.said),
    el("p", { class: "scores" }, turn.verdict ? el("span", { class: `badge ${tone}` }, turn.verdict) : null,
      turn.scores.map(([name, value]) => el("span", null, `${words(name)} `, el("b", null, value === null ? "null" : fixed(value, 2)))))];
}

function strip(conversation) {
  const total = conversation.spans.reduce((sum, [, n]) => sum + n, 0);
  const counts = new Map();
  for (const [kind, n] of conversation.spans) counts.set(kind, (counts.get(kind) || 0) + n);
  const learnt = counts.get("trained");
  const hint = [...counts].map(([kind, n]) => `${kind} ${n}`).join(", ");
  const unit = conversation.text ? "characters" : "tokens";
  return el("div", { class: "strip", title: hint },
    el("span", null, conversation.role),
    el("div", null, conversation.spans.map(([kind, n]) => el("i", { class: `t ${kind}`, style: `flex:${n} 0 0` }))),
    el("span", null, learnt ? `${learnt} of ${total} trained` : `${total} ${unit}${conversation.text ? ", closed model" : conversation.trainable ? "" : ", frozen"}`));
}

// The messages of a call: every turn that the model saw, then what it wrote. They are made when they are opened.

function messages(event, run, question) {
  const conversation = run.conversations[event.conversation];
  if (!conversation || !conversation.spans.some(([, , pieces]) => pieces)) return null;
  let at = 0;
  const spans = conversation.spans.map(([kind, tokens, pieces, thought]) => {
    at += tokens;
    return { kind, tokens, pieces, thought, start: at - tokens };
  });
  const seen = spans.filter((span) => span.start < event.start);
  // The output is all that the model wrote there: of a look-ahead, the unused rest too.
  let last = seen.length;
  while (last < spans.length && !["system", "user", "template"].includes(spans[last].kind)) last += 1;
  const turns = (list) => list.filter((span) => span.kind !== "template").length;
  const host = el("details", { class: "messages" },
    el("summary", null, `Messages: ${turns(seen)} in ${event.prompt_tokens} tokens, then the output`));
  host.addEventListener("toggle", () => {
    if (!host.open || host.children.length > 1) return;
    host.append(el("div", { class: "dialogue" }, seen.map((span) => turn(span, question, false)),
      spans.slice(seen.length, last).map((span) => turn(span, question, true)),
      conversation.text ? el("p", { class: "label" }, "A closed model: its dialogue is recorded as text, and cannot be trained on.") : null));
  });
  return host;
}

function turn(span, question, isOutput) {
  const role = { system: "system", user: "user" }[span.kind] || "assistant";
  const text = span.pieces.map((place, i) => {
    const piece = detailsOf(question).texts[place];
    return i % 2 ? el("span", { class: "control" }, piece) : piece;
  });
  if (span.kind === "template") return el("div", { class: "turn control text" }, text);
  const state = { sampled: "", trained: ", trained on", held: ", dev loss only", malformed: ", malformed" }[span.kind] || "";
  const label = `${span.thought ? "thought" : role}${isOutput ? ", this call's output" : ""}${state} · ${span.tokens} tokens`;
  return el("div", { class: `turn ${role} ${isOutput ? "output" : ""}` },
    span.thought ? el("details", { class: "thought" }, el("summary", null, label), el("div", { class: "text" }, text))
      : [el("div", { class: "label" }, label), el("div", { class: "text" }, text)]);
}

function eventItem(event, run, question) {
  const at = `${event.at.toFixed(1)} s`;
  if (event.kind === "note") {
    return el("li", null, el("div", { class: "head" }, el("span", { class: "role" }, event.role), el("span", { class: "cost" }, at)),
      el("div", { class: "note text" }, event.text));
  }
  if (event.kind === "search") {
    const ranks = event.error ? "failed" : event.hits.length ? `ranks ${event.offset + 1} to ${event.offset + event.hits.length}` : `nothing from rank ${event.offset + 1} on`;
    return el("li", null,
      el("div", { class: "head" }, el("span", { class: "role" }, event.role),
        el("span", null, event.source === "index" ? "searched" : `searched ${event.source}`), el("span", { class: "cost" }, `${ranks} · ${at}`)),
      el("div", { class: "text" }, `“${event.query}”`), event.error ? el("div", { class: "problem text" }, event.error) : null, event.hits.map(([id, score]) => passage(id, score, question)));
  }
  if (event.kind === "tool") {
    return el("li", null,
      el("div", { class: "head" }, el("span", { class: "role" }, event.role), el("span", null, `called ${event.tool} of ${event.source}`), el("span", { class: "cost" }, at)),
      fields(event.arguments), event.text ? el("div", { class: "text" }, event.text) : null,
      event.error ? el("div", { class: "problem text" }, event.error) : null, event.hits.map(([id, score]) => passage(id, score, question)));
  }
  if (event.kind === "recall") {
    return el("li", null,
      el("div", { class: "head" }, el("span", { class: "role" }, event.role), el("span", null, "remembered"), el("span", { class: "cost" }, `${event.hits.length} pieces · ${at}`)),
      el("div", { class: "text" }, event.entities.join(" · ")), event.hits.map(([id, score]) => passage(id, score, question)));
  }
  const state = event.parse === "malformed" ? "malformed" : event.trained === "held out" ? "held" : event.trained;
  const cost = `${event.prompt_tokens} → ${event.new_tokens} · ${at}`;
  const hint = `prompt tokens (${event.cached_tokens} of them cached) → new tokens · seconds since the start`;
  return el("li", { class: state },
    el("div", { class: "head" }, el("span", { class: "role" }, event.role),
      event.parse === "malformed" ? el("span", { class: "badge malformed" }, "malformed") : null,
      event.attempt ? el("span", { class: "badge" }, `re-ask ${event.attempt}`) : null,
      event.finish_reason !== "stop" ? el("span", { class: "badge unparsed" }, `cut off: ${event.finish_reason}`) : null,
      event.trained === "trained" ? el("span", { class: "badge trained" }, "trained on") : null,
      event.trained === "held out" ? el("span", { class: "badge" }, "dev loss only") : null,
      event.frozen ? el("span", { class: "badge" }, "frozen") : null,
      el("span", { class: "cost", title: hint }, cost)),
    event.thought ? el("details", { class: "thought" }, el("summary", null, `Thought: ${event.thought_tokens} tokens`), el("div", { class: "text" }, event.thought)) : null,
    fields(event.text), event.error ? el("div", { class: "problem text" }, event.error) : null, messages(event, run, question));
}

// What a model wrote: the fields of a JSON object, each as words; other text as it is.
function fields(text) {
  let value = null;
  try { value = JSON.parse(text); } catch { /* not JSON */ }
  if (!value || typeof value !== "object" || Array.isArray(value)) return el("div", { class: "out text" }, text || "(nothing)");
  return el("dl", { class: "fields" }, Object.entries(value).flatMap(([key, field]) => [el("dt", null, words(key)), el("dd", { class: "text" }, inWords(field))]));
}

function inWords(value) {
  if (Array.isArray(value)) return value.map(inWords).join(value.some((item) => typeof item === "object") ? "\n" : ", ") || "–";
  if (value && typeof value === "object") return Object.entries(value).map(([key, field]) => `${words(key)}: ${inWords(field)}`).join("; ");
  return value === null || value === "" ? "–" : value === true ? "yes" : value === false ? "no" : String(value);
}

function passage(id, score, question) {
  const found = detailsOf(question).passages[id] || { title: id, document: "", text: "" };
  const gold = question.gold.includes(found.document);
  return el("details", { class: "hit" },
    el("summary", null, el("bdi", null, found.title || id), " ", gold ? el("span", { class: "badge gold" }, "gold") : null,
      score === null ? null : el("small", null, ` ${score.toFixed(2)}`)),
    el("div", { class: "text" }, found.text));
}
