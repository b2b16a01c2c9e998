"use strict";
// The page. Everything that a model or a tool wrote reaches the document as text, never as HTML.

const page = document.getElementById("page");
const ROWS = 100;
const EVENTS = 200;

// Characters that would turn text around or be obeyed by something: shown instead of followed.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const plain = (text) => text.replace(UNSEEN, (found) => `⟦U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(typeof child === "string" ? plain(child) : child);
  }
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- where the data comes from: the server, or files beside this page

const overHttp = {
  async get(path, asked = {}) {
    const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "" && value !== 0));
    const answer = await fetch(`/api/${path}${query.size ? `?${query}` : ""}`);
    if (!answer.ok) {
      const said = await answer.text();
      let message = said;
      try { message = JSON.parse(said).error ?? said; } catch { /* plain text */ }
      throw new Error(message);
    }
    return answer.json();
  },
  runs() { return this.get("runs"); },
  summary(run) { return this.get(`runs/${run}`); },
  progress(run) { return this.get(`runs/${run}/progress`); },
  rollouts(run, asked) { return this.get(`runs/${run}/rollouts`, asked); },
  tasks(run, asked) { return this.get(`runs/${run}/tasks`, asked); },
  rollout(run, task, repeat, asked) { return this.get(`runs/${run}/rollouts/${task}/${repeat}`, asked); },
  text(run, task, repeat, event, asked) { return this.get(`runs/${run}/rollouts/${task}/${repeat}/text/${event}`, asked); },
  tokens(run, task, repeat, event) { return this.get(`runs/${run}/rollouts/${task}/${repeat}/tokens/${event}`); },
  raw(run, task, repeat, asked) { return this.get(`runs/${run}/rollouts/${task}/${repeat}/raw`, asked); },
  compare(run, other) { return this.get(`compare/${run}/${other}`); },
};

const fromDisk = {
  waiting: new Map(),
  load(name) {
    return new Promise((done, failed) => {
      this.waiting.set(name, done);
      const script = el("script", { src: `data/${name}.js`, onerror: () => failed(new Error(`${name} is not in this bundle`)) });
      document.head.append(script);
    });
  },
  async bundle() { return (this.loaded ??= await this.load("bundle")); },
  async runs() { return (await this.bundle()).runs.map((run, number) => ({ number, name: run.summary.name })); },
  async summary(run) { return (await this.bundle()).runs[run].summary; },
  async matching(run, asked) {
    const fits = gymFilter(asked.where ?? "");
    const words = (asked.words ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    return (await this.bundle()).runs[run].rows.filter((row) => {
      const text = [row.question, row.answer, row.expected, row.extracted, row.message].join(" ").toLowerCase();
      return words.every((word) => text.includes(word)) && fits(row);
    });
  },
  async rollouts(run, asked) {
    const rows = await this.matching(run, asked);
    const name = { repeat: "rollout", tools: "tool_calls" }[asked.sort] ?? asked.sort ?? "task";
    const value = (row) => (name === "tokens" ? row.tokens_in + row.tokens_out : row[name]) ?? -Infinity;
    rows.sort((one, two) => (value(one) < value(two) ? -1 : value(one) > value(two) ? 1 : one.task - two.task || one.rollout - two.rollout));
    if (asked.down) rows.reverse();
    const start = asked.start ?? 0;
    return { total: rows.length, rows: rows.slice(start, start + (asked.count ?? ROWS)) };
  },
  async tasks(run, asked) {
    const groups = new Map();
    for (const row of await this.matching(run, asked)) {
      if (!groups.has(row.task)) groups.set(row.task, { task: row.task, question: row.question, rollouts: [] });
      groups.get(row.task).rollouts.push(row);
    }
    const found = [...groups.values()].map((group) => {
      const rewards = group.rollouts.map((row) => row.reward).filter((reward) => reward !== null);
      return { ...group, mean: rewards.length ? rewards.reduce((one, two) => one + two, 0) / rewards.length : null };
    });
    const start = asked.start ?? 0;
    return { total: found.length, rows: found.slice(start, start + ROWS) };
  },
  async rollout(run, task, repeat, asked) {
    const whole = await this.load(`${run}/${task}-${repeat}`);
    const rows = await this.matching(run, asked);
    const place = rows.findIndex((row) => row.task === task && row.rollout === repeat);
    const at = (row) => (row ? [row.task, row.rollout] : null);
    const later = (row) => row.task > task || (row.task === task && row.rollout > repeat);
    const start = asked.start ?? 0;
    return {
      ...whole, total: whole.events.length, events: whole.events.slice(start, start + EVENTS),
      previous: at(rows[place - 1]), next: at(rows[place + 1]),
      next_failed: at((await this.bundle()).runs[run].rows.find((row) => row.outcome === "failed" && later(row))),
    };
  },
  async text(run, task, repeat, event) { return { text: (await this.load(`${run}/${task}-${repeat}`)).texts?.[event] ?? "" }; },
  async tokens(run, task, repeat, event) { return (await this.load(`${run}/${task}-${repeat}`)).tokens?.[event] ?? { count: 0, ids: [], log_probs: [] }; },
  async raw(run, task, repeat) { return (await this.load(`${run}/${task}-${repeat}`)).raw; },
  async compare(run, other) { return (await this.bundle()).comparisons[`${run}-${other}`]; },
};
window.gymLoaded = (name, data) => { fromDisk.waiting.get(name)?.(data); fromDisk.waiting.delete(name); };
const source = location.protocol === "file:" || document.documentElement.dataset.bundle ? fromDisk : overHttp;

// ---- addresses: #/run/0, #/run/0/rollouts?where=…, #/run/0/rollout/5/1

let state = {};
function address(run, rest = "", asked = {}) {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "" && value !== 0 && value !== false));
  return `#/run/${run}${rest}${query.size ? `?${query}` : ""}`;
}

function read() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean);
  const asked = Object.fromEntries(new URLSearchParams(query));
  return { run: Number(parts[1] ?? 0), view: parts[2] ?? "run", task: Number(parts[3]), repeat: Number(parts[4]), other: Number(parts[3]), asked };
}

async function show() {
  state = read();
  const mine = state;
  try {
    const runs = await source.runs();
    navigation(runs);
    if (source === overHttp) await follow();
    const made = await ({ rollouts: table, tasks: grouped, rollout: conversation, compare: comparison }[state.view] ?? overview)(runs);
    if (mine === state) page.replaceChildren(...made);
  } catch (error) {
    if (mine === state) page.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
  }
}

function navigation(runs) {
  const pages = [["run", "Overview", ""], ["rollouts", "Rollouts", "/rollouts"], ["tasks", "Tasks", "/tasks"]];
  const picker = runs.length > 1 ? el("select", { "aria-label": "Run", onchange: (event) => { location.hash = address(event.target.value); } },
    runs.map((run) => el("option", { value: run.number, selected: run.number === state.run }, run.name))) : null;
  document.getElementById("nav").replaceChildren(...[picker, ...pages.map(([view, name, rest]) =>
    el("a", { href: address(state.run, rest), "aria-current": state.view === view ? "page" : null }, name))].filter(Boolean));
}

// ---- pieces

const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits));
const spread = (score) =>
  score.interval_95 === null ? "" : ` [${score.interval_95.map((bound) => bound.toFixed(3)).join(", ")}]`;
const card = (name, value, note = "") => el("div", { class: "card" }, el("span", { class: "soft" }, name), el("b", {}, value), el("span", { class: "soft" }, note));
const badge = (row) => el("span", { class: `badge ${row.outcome}` }, row.kind && row.outcome !== "scored" ? `${row.outcome}: ${row.kind}` : row.outcome);

function grid(heads, rows) {
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { class: typeof rows[0]?.[place] === "number" ? "n" : "" }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", { class: typeof cell === "number" ? "n" : "" }, typeof cell === "number" ? number(cell) : cell)))))));
}

function bars(histogram) {
  const most = Math.max(1, ...histogram.counts);
  const width = 400 / Math.max(1, histogram.counts.length);
  const drawn = histogram.counts.map((count, place) => {
    const height = (count / most) * 110;
    const from = histogram.low + ((histogram.high - histogram.low) * place) / histogram.counts.length;
    return svg("rect", { x: place * width + 1, y: 120 - height, width: width - 2, height }, svg("title", {}, `from ${from.toFixed(2)}: ${count}`));
  });
  return svg("svg", { viewBox: "0 0 400 140", preserveAspectRatio: "xMinYMid", role: "img", "aria-label": "Histogram of rewards" }, svg("line", { x1: 0, y1: 120, x2: 400, y2: 120 }), ...drawn,
    svg("text", { x: 0, y: 135 }, number(histogram.low, 2)), svg("text", { x: 400, y: 135, "text-anchor": "end" }, number(histogram.high, 2)));
}

function curve(points) {
  const last = points[points.length - 1].k;
  const at = (point) => `${last === 1 ? 200 : ((point.k - 1) / (last - 1)) * 380 + 10},${120 - point.chance * 110}`;
  return svg("svg", { viewBox: "0 0 400 140", preserveAspectRatio: "xMinYMid", role: "img", "aria-label": "pass at k" }, svg("line", { x1: 0, y1: 120, x2: 400, y2: 120 }),
    svg("path", { d: `M${points.map(at).join("L")}` }), svg("text", { x: 0, y: 135 }, "k = 1"), svg("text", { x: 400, y: 135, "text-anchor": "end" }, `k = ${last}`),
    svg("text", { x: 0, y: 12 }, `pass@1 ${points[0].chance.toFixed(3)}  pass@${last} ${points[points.length - 1].chance.toFixed(3)}`));
}

// ---- the pages

async function overview(runs) {
  const found = await source.summary(state.run);
  document.title = `${found.name} · rollouts`;
  const total = found.outcomes.reduce((sum, entry) => sum + entry.count, 0);
  const scored = count(found.outcomes, "scored");
  const others = runs.filter((run) => run.number !== state.run);
  return [
    el("h1", {}, found.name),
    el("p", { class: "soft" }, found.path),
    el("div", { class: "cards" },
      card("Mean reward", `${number(found.reward.mean)}${spread(found.reward)}`, "95 %, clustered by task"),
      card("Scored", number(scored), `of ${number(total)} rollouts`), card("Tasks", number(found.reward.tasks)),
      card("Tokens", number((found.tokens.tokens_in.sum ?? 0) + (found.tokens.tokens_out.sum ?? 0)), `${number(found.tokens.tokens_out.mean, 0)} out per rollout`)),
    el("div", { class: "two" },
      el("section", {}, el("h2", {}, "Rewards"), bars(found.histogram)),
      found.pass_at_k.length > 1 ? el("section", {}, el("h2", {}, "pass@k"), curve(found.pass_at_k)) : null),
    el("h2", {}, "How they ended"),
    grid(["outcome", "kind", "rollouts", ""], found.outcomes.map((entry) => [badge({ outcome: entry.outcome }), entry.kind, entry.count,
      el("a", { href: address(state.run, "/rollouts", { where: `outcome == "${entry.outcome}"${entry.kind ? ` and kind == "${entry.kind}"` : ""}` }) }, "look")])),
    ...(await beside(found, others)),
    el("h2", {}, "Per rollout"),
    grid(["", "mean", "most", "sum"], Object.entries(found.tokens).filter(([, value]) => value.sum !== null).map(([name, value]) => [name.replace("_", " "), value.mean, value.max, value.sum])),
    ...latency(found.latency ?? []), ...metrics(found.metrics), ...folded("Run identity", found.identity),
  ].filter(Boolean);
}

// The same figures of the other runs, a column each; their heads lead to the tasks that differ.
async function beside(found, others) {
  if (!others.length) return [];
  const all = [found, ...(await Promise.all(others.slice(0, 4).map((run) => source.summary(run.number))))];
  const rows = [
    ["mean reward", (run) => (run.reward.mean === null ? "–" : `${number(run.reward.mean)}${spread(run.reward)}`)],
    ["pass@k, most k", (run) => (run.pass_at_k.length ? number(run.pass_at_k.at(-1).chance) : "–")],
    ["scored", (run) => number(count(run.outcomes, "scored"))], ["failed", (run) => number(count(run.outcomes, "failed"))],
    ["tokens out, mean", (run) => number(run.tokens.tokens_out.mean, 0)],
    ["seconds, median", (run) => (run.latency?.length ? seconds(run.latency[0].p50) : "–")],
  ];
  const heads = others.slice(0, 4).map((run) => el("a", { href: address(state.run, `/compare/${run.number}`) }, run.name));
  return [el("h2", {}, "Compared with"), grid(["", "this run", ...heads], rows.map(([name, of]) => [name, ...all.map(of)]))];
}
const count = (outcomes, wanted) => outcomes.filter((entry) => entry.outcome === wanted).reduce((sum, entry) => sum + entry.count, 0);

function latency(phases) {
  if (!phases.length) return [];
  const shown = phases.filter((phase) => phase.share !== null);
  const rows = phases.map((phase) => [el("span", {}, phase.share === null ? null : el("i", { class: `dot phase-${phase.phase}` }), PHASES[phase.phase] ?? phase.phase), ...["mean", "p50", "p95", "max"].map((name) => seconds(phase[name])), phase.share === null ? "" : `${(100 * phase.share).toFixed(1)} %`]);
  return [el("h2", {}, "Latency"), shown.length ? timeline(shown.map((phase) => ({ name: phase.phase, ms: phase.share * 1000 })), "Share of time per phase") : null,
    grid(["phase", "mean", "p50", "p95", "most", "share"], rows)];
}

function metrics(found) {
  if (!Array.isArray(found)) return [];
  return found.flatMap((entry) => [el("h2", {}, `Metrics of ${entry.agent_ref?.name ?? "all"}`),
    grid(["metric", "value"], Object.entries(entry.key_metrics ?? {}).map(([name, value]) => [name, typeof value === "number" ? value : JSON.stringify(value)])),
    ...folded("All metrics", entry.agent_metrics)]);
}

const folded = (name, value) => (value === null || value === undefined ? [] : [el("details", {}, el("summary", {}, name), el("pre", {}, JSON.stringify(value, null, 2)))]);

function filters(rest) {
  const where = el("input", { value: state.asked.where ?? "", placeholder: 'filter: reward < 1 and turns > 2', "aria-label": "Filter by expression", id: "where", spellcheck: "false" });
  const words = el("input", { value: state.asked.words ?? "", placeholder: "search words", "aria-label": "Search words", id: "words", type: "search" });
  const go = (event) => { event?.preventDefault(); location.hash = address(state.run, rest, { ...state.asked, where: where.value, words: words.value, start: 0 }); };
  return el("form", { class: "bar", onsubmit: go }, where, words, el("button", {}, "Apply"));
}

function pager(rest, total) {
  const start = Number(state.asked.start ?? 0);
  const to = (place) => () => { location.hash = address(state.run, rest, { ...state.asked, start: Math.max(0, place) }); };
  const last = Math.max(0, Math.floor((total - 1) / ROWS) * ROWS);
  return el("div", { class: "bar" },
    el("button", { onclick: to(0), disabled: start === 0, "aria-label": "First page" }, "«"), el("button", { onclick: to(start - ROWS), disabled: start === 0, "aria-label": "Previous page" }, "‹"),
    el("span", { id: "range" }, total ? `${(start + 1).toLocaleString("en")}–${Math.min(start + ROWS, total).toLocaleString("en")} of ${total.toLocaleString("en")}` : "nothing fits"),
    el("button", { onclick: to(start + ROWS), disabled: start + ROWS >= total, "aria-label": "Next page" }, "›"), el("button", { onclick: to(last), disabled: start >= last, "aria-label": "Last page" }, "»"));
}

const COLUMNS = [["task", "Task", "n"], ["repeat", "Repeat", "n"], ["outcome", "Outcome", ""], ["reward", "Reward", "n"], ["extracted", "Extracted", "t"], ["expected", "Expected", "t"],
  ["parts", "Components", "t hide"], ["turns", "Turns", "n hide"], ["tools", "Tools", "n hide"], ["tokens", "Tokens", "n hide"], ["seconds", "Seconds", "n hide"], ["answer", "Answer", "t hide"]];

async function table() {
  const asked = state.asked;
  const found = await source.rollouts(state.run, { ...asked, start: Number(asked.start ?? 0), count: ROWS });
  const heads = COLUMNS.map(([name, title, kind]) => {
    const chosen = (asked.sort ?? "task") === name;
    const down = chosen && !asked.down;
    if (name === "parts") return el("th", { class: kind }, title);
    return el("th", { class: kind, "aria-sort": chosen ? (asked.down ? "descending" : "ascending") : null },
      el("button", { onclick: () => { location.hash = address(state.run, "/rollouts", { ...asked, sort: name, down: down ? "1" : "", start: 0 }); } }, `${title}${chosen ? (asked.down ? " ▾" : " ▴") : ""}`));
  });
  const rows = found.rows.map((row) => {
    const link = address(state.run, `/rollout/${row.task}/${row.rollout}`, { where: asked.where ?? "", words: asked.words ?? "" });
    const cells = { task: row.task, repeat: row.rollout, outcome: badge(row), reward: rewardOf(row), extracted: row.extracted || row.message, expected: row.expected, parts: partsOf(row),
      turns: row.turns, tools: row.tool_calls, tokens: row.tokens_in + row.tokens_out, seconds: row.seconds === null ? "" : number(row.seconds, 1), answer: row.answer };
    return el("tr", { class: "link", onclick: () => { location.hash = link; } }, COLUMNS.map(([name, , kind], place) =>
      el("td", { class: kind, title: typeof cells[name] === "string" && kind.startsWith("t") ? cells[name] : null }, place === 0 ? el("a", { href: link }, String(cells[name])) : typeof cells[name] === "number" ? number(cells[name]) : cells[name])));
  });
  return [filters("/rollouts"), pager("/rollouts", found.total), el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows))), pager("/rollouts", found.total)];
}

const partsOf = (row) => Object.entries(row.components ?? {}).map(([name, value]) => `${name} ${number(value, 2)}`).join(", ");
const rewardOf = (row) => (row.reward === null ? "–" : number(row.reward));

async function grouped() {
  const found = await source.tasks(state.run, { ...state.asked, start: Number(state.asked.start ?? 0) });
  const rows = found.rows.map((group) => [group.task, group.mean === null ? "–" : number(group.mean), el("span", {}, group.rollouts.map((row) =>
    el("a", { class: `chip ${row.outcome}`, href: address(state.run, `/rollout/${group.task}/${row.rollout}`), title: `repeat ${row.rollout}: ${row.kind || row.outcome}` }, row.reward === null ? "✗" : number(row.reward, 2)))), group.question]);
  return [filters("/tasks"), pager("/tasks", found.total), grid(["Task", "Mean", "Repeats", "Question"], rows)];
}

async function comparison(runs) {
  const found = await source.compare(state.run, state.other);
  const names = [state.run, state.other].map((run) => runs.find((entry) => entry.number === run)?.name ?? run);
  return [el("h1", {}, `${names[1]} against ${names[0]}`),
    el("div", { class: "cards" }, card("Difference of means", found.mean_difference === null ? "–" : `${number(found.mean_difference)}${spread(found)}`, "95 %, paired by task"), card("Better", number(found.better), "tasks"), card("Worse", number(found.worse), "tasks"), card("In both", number(found.tasks), "tasks")),
    el("h2", {}, "Tasks that differ, most first"),
    grid(["Task", names[0], names[1], "Difference"], found.rows.map((row) => [el("a", { href: address(state.run, "/rollouts", { where: `task == ${row.task}` }) }, String(row.task)), number(row.first), number(row.second), number(row.second - row.first)]))];
}

async function conversation() {
  const { run, task, repeat, asked } = state;
  const start = Number(asked.start ?? 0);
  const found = await source.rollout(run, task, repeat, { ...asked, start, count: EVENTS });
  const facts = found.facts;
  document.title = `${task}-${repeat} · rollout`;
  const keep = { where: asked.where ?? "", words: asked.words ?? "" };
  const to = (place) => place && (() => { location.hash = address(run, `/rollout/${place[0]}/${place[1]}`, keep); });
  const step = (name, place, key) => el("button", { id: `go-${key}`, onclick: to(place) || null, disabled: !place }, `${name} `, el("kbd", {}, key));
  return [
    el("div", { class: "bar" }, step("Previous", found.previous, "k"), step("Next", found.next, "j"), step("Next failed", found.next_failed, "f"),
      el("a", { href: address(run, "/rollouts", keep), id: "go-back" }, "all rollouts")),
    el("h1", {}, `Task ${task}, repeat ${repeat} `, badge(facts), " ", el("span", {}, facts.reward === null ? "" : `reward ${number(facts.reward)}`)),
    facts.message ? el("p", { class: "error" }, `${facts.whom ? `${facts.whom}: ` : ""}${facts.message}`) : null,
    facts.expected || facts.extracted ? el("div", { class: "sides" }, el("div", {}, el("div", { class: "soft" }, `Extracted${facts.rule ? ` by ${facts.rule}` : ""}`), facts.extracted || "nothing"),
      el("div", {}, el("div", { class: "soft" }, "Expected"), facts.expected || "not said")) : null,
    attempts(found), timing(found.timings ?? []), ...judged(found.judgements ?? []),
    pages(found.total, start), el("section", { "aria-label": "Conversation" }, found.events.map(said)), pages(found.total, start),
    el("h2", {}, "What was recorded"), recorded(found.fields),
    el("div", { class: "bar" }, copying("Copy as dataset row", asRow), copying("Copy as curl", asCurl), el("button", { id: "raw", onclick: showRaw }, "Raw JSON ", el("kbd", {}, "r"))),
    el("pre", { id: "raw-text", hidden: true }),
  ].filter(Boolean);
}

function attempts(found) {
  if (found.attempts < 2) return null;
  const chosen = Number(state.asked.attempt ?? 0);
  return el("p", { class: "bar" }, `${found.attempts} attempts, newest first:`, Array.from({ length: Math.min(found.attempts, 20) }, (_, place) =>
    el("a", { href: address(state.run, `/rollout/${state.task}/${state.repeat}`, { ...state.asked, attempt: place }), "aria-current": place === chosen ? "true" : null }, String(found.attempts - place))));
}

const PHASES = { all: "whole rollout", queue: "waiting to start", seed_session: "seeding the session", model: "model", tools: "tools", verify: "verdict", agent: "agent itself" };
const seconds = (value) => `${value.toFixed(value < 10 ? 2 : 1)} s`;

function timeline(phases, label) {
  const bar = el("div", { class: "time", role: "img", "aria-label": label });
  for (const phase of phases) {
    const piece = el("i", { class: PHASES[phase.name] ? `phase-${phase.name}` : null, title: PHASES[phase.name] ?? phase.name });
    piece.style.flexGrow = String(phase.ms);
    bar.append(piece);
  }
  return bar;
}

function timing(phases) {
  const total = phases.reduce((sum, phase) => sum + phase.ms, 0);
  if (!total) return null;
  const named = phases.every((phase) => PHASES[phase.name]);
  const said = named ? phases.map((phase) => el("span", {}, el("i", { class: `dot phase-${phase.name}` }), `${PHASES[phase.name]} ${seconds(phase.ms / 1000)}  `)) : [`in ${phases.length} calls`];
  return el("div", {}, el("div", { class: "soft" }, `${seconds(total / 1000)}: `, said), timeline(phases, "Time per phase"));
}

function judged(judgements) {
  if (!judgements.length) return [];
  return [el("h2", {}, "Judges"), ...judgements.map((entry, place) => el("details", {}, el("summary", {}, `judge ${place + 1}: ${entry.verdict}`),
    el("div", { class: "soft" }, "asked"), el("pre", { dir: "auto" }, entry.asked), el("div", { class: "soft" }, "answered"), el("pre", { dir: "auto" }, entry.answered)))];
}

function pages(total, start) {
  if (total <= EVENTS) return null;
  const to = (place) => () => { location.hash = address(state.run, `/rollout/${state.task}/${state.repeat}`, { ...state.asked, start: place }); };
  return el("div", { class: "bar" }, el("button", { disabled: start === 0, onclick: to(Math.max(0, start - EVENTS)) }, "earlier"),
    el("span", {}, `events ${start + 1}–${Math.min(start + EVENTS, total)} of ${total.toLocaleString("en")}`),
    el("button", { disabled: start + EVENTS >= total, onclick: to(start + EVENTS) }, "later"));
}

function said(event) {
  const who = { tool_call: `calls ${event.name ?? "a tool"}`, tool_result: "tool answers", reasoning: "reasoning", other: event.kind }[event.kind] ?? event.role;
  const role = event.kind === "tool_result" ? "tool" : ["user", "assistant", "system", "developer"].includes(event.role) ? event.role : "tool";
  const body = event.kind === "message" ? el("div", { class: "said", dir: "auto" }, event.text) : el("pre", { dir: "auto" }, event.text);
  const more = event.length > event.text.length ? el("button", { onclick: (click) => longer(click.target, body, event) }, `show more (${event.length.toLocaleString("en")} characters)`) : null;
  const head = el("div", { class: "who" }, el("strong", {}, who), event.call_id ? el("span", {}, event.call_id) : null, event.status && event.status !== "completed" ? el("span", {}, event.status) : null);
  const images = (event.images ?? []).map((url) => (url.startsWith("data:image/") ? el("img", { src: url, alt: "image from the conversation" }) : el("p", { class: "soft" }, url)));
  const tokens = event.tokens ? el("details", { ontoggle: (toggled) => tokenView(toggled.target, event) }, el("summary", {}, `${event.tokens.toLocaleString("en")} tokens`)) : null;
  const inner = event.kind === "reasoning" ? [el("details", { open: event.length < 600 }, el("summary", {}, "reasoning"), body)] : [head, body];
  return el("article", { class: `event ${role}`, id: `event-${event.number}` }, inner, more, images, tokens);
}

async function longer(button, body, event) {
  const piece = await source.text(state.run, state.task, state.repeat, event.number, { start: event.shown ?? event.text.length, attempt: state.asked.attempt ?? "" });
  body.append(plain(piece.text));
  event.shown = (event.shown ?? event.text.length) + piece.text.length;
  if (event.shown >= event.length || !piece.text) button.remove();
}

async function tokenView(details, event) {
  if (!details.open || details.dataset.shown) return;
  details.dataset.shown = "1";
  const found = await source.tokens(state.run, state.task, state.repeat, event.number);
  const shown = found.ids.map((id, place) => {
    const chance = found.log_probs[place];
    const piece = el("span", { title: chance === undefined ? String(id) : `log-prob ${chance.toFixed(3)}` }, String(id));
    if (chance !== undefined) piece.style.background = `hsl(${Math.round(120 * Math.exp(chance))} 60% 50% / .35)`;
    return piece;
  });
  details.append(el("div", { class: "tokens" }, el("div", { class: "soft" }, `prompt: ${found.prompt_count} tokens, ending … ${found.prompt_tail.slice(-8).join(" ")} │ generated: ${found.count}`), shown));
}

function recorded(fields) {
  return el("dl", { class: "facts" }, Object.entries(fields).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value, null, 1))]));
}

const fetchRaw = () => source.raw(state.run, state.task, state.repeat, { attempt: state.asked.attempt ?? "" });
async function showRaw() {
  const target = document.getElementById("raw-text");
  target.hidden = !target.hidden;
  if (!target.hidden && !target.textContent) target.textContent = plain(JSON.stringify(await fetchRaw(), null, 2));
}

function rowOf(record) {
  const left = ["response", "reward"];
  return Object.fromEntries(Object.entries(record).filter(([name]) => !left.includes(name) && !name.startsWith("_ng_") && !name.startsWith("ng_")));
}
const asRow = (record) => JSON.stringify(rowOf(record));
const asCurl = (record) => `curl -s http://127.0.0.1:PORT/run -H 'content-type: application/json' -d '${JSON.stringify(rowOf(record)).replaceAll("'", "'\\''")}'`;
function copying(name, make) {
  return el("button", { onclick: async (event) => {
    const text = make(await fetchRaw());
    try { await navigator.clipboard.writeText(text); event.target.textContent = "copied"; } catch {
      const target = document.getElementById("raw-text");
      target.hidden = false;
      target.textContent = text;
    }
  } }, name);
}

// ---- keys, and following a run that goes on

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const buttons = { j: "go-j", ArrowRight: "go-j", k: "go-k", ArrowLeft: "go-k", f: "go-f", r: "raw" };
  if (buttons[event.key]) document.getElementById(buttons[event.key])?.click();
  else if (event.key === "Escape") document.getElementById("go-back")?.click();
  else if (event.key === "/") { event.preventDefault(); document.getElementById("words")?.focus(); }
});

let seen = "";
async function follow() {
  const found = await source.progress(state.run);
  const done = found.size ? Math.floor((found.indexed / found.size) * 100) : 100;
  document.getElementById("status").textContent = done < 100 ? `reading ${done} %` : "";
  const changed = seen !== `${state.run} ${found.indexed}`;
  seen = `${state.run} ${found.indexed}`;
  return changed;
}

setInterval(async () => {
  const typing = /^(INPUT|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (source !== overHttp || document.hidden || typing || !["run", "rollouts", "tasks"].includes(state.view)) return;
  try { if (await follow()) await show(); } catch { document.getElementById("status").textContent = "the server has gone"; }
}, 2000);

addEventListener("hashchange", () => { show(); scrollTo(0, 0); });
show();
