"use strict";
// Columns of the table of rollouts: which exist, how their cells look, which give way when the window is narrow.
(() => {
  const { html, Icon, format, ui, store } = gymView;

  function answerCell(/** @type {any} */ row) {
    if (row.outcome !== "scored") return html`<span class="t3">–</span>`; // a message is no answer; it is at the outcome
    if (!row.extracted && !row.expected) return html`<span class="t3">–</span>`;
    if (row.extracted === row.expected) return html`<span class="ee"><span class="eq x">${row.expected}</span></span>`;
    const isRight = row.reward !== null && row.reward >= 1;
    return html`<span class="ee"><span class=${`x ${isRight ? "eq" : "neq"} ${row.extracted ? "" : "none"}`}>${row.extracted || "nothing"}</span>${row.expected ? html`<span class="arrow">${isRight ? "=" : "≠"}</span><span class="x t2">${row.expected}</span>` : null}</span>`;
  }

  function secondLine(/** @type {any} */ row) {
    if (row.outcome !== "scored") return row.message || `Ended early: ${row.kind || row.outcome}`;
    return row.extracted ? `Answer: ${row.extracted}` : row.answer || "No answer could be extracted";
  }

  /** @type {Record<string, any>} */
  const CELLS = {
    task: {
      title: "Task",
      width: 78,
      cell: (/** @type {any} */ row) => html`<span class="mono t2 small-mono">${row.task}:${row.rollout}</span>`,
    },
    question: {
      title: "Question",
      width: 180,
      grow: true,
      cell: (/** @type {any} */ row) =>
        html`<span class="q">${row.question}<span class="sub">${secondLine(row)}</span></span>`,
    },
    agent: {
      title: "Agent",
      width: 128,
      cell: (/** @type {any} */ row) => html`<span class="mono small-mono">${row.agent}</span>`,
    },
    model: {
      title: "Model",
      width: 92,
      cell: (/** @type {any} */ row) => html`<span class="mono t2 small-mono">${row.model}</span>`,
    },
    outcome: {
      title: "Outcome",
      width: 132,
      cell: (/** @type {any} */ row) =>
        html`<span data-tip=${row.message || undefined}><${ui.OutcomeBadge} outcome=${row.outcome} kind=${row.outcome === "scored" ? "" : row.kind} /></span>`,
    },
    reward: {
      title: "Reward",
      width: 72,
      numeric: true,
      cell: (/** @type {any} */ row, /** @type {any} */ context) =>
        html`<${ui.RewardChip} reward=${row.reward} range=${context.range} />`,
    },
    answers: { title: "Extracted / expected", sortId: "extracted", width: 200, cell: answerCell },
    turns: { title: "Turns", width: 62, numeric: true, cell: (/** @type {any} */ row) => format.count(row.turns) },
    tools: { title: "Tools", width: 62, numeric: true, cell: (/** @type {any} */ row) => format.count(row.tool_calls) },
    tokens: {
      title: "Tokens",
      width: 72,
      numeric: true,
      cell: (/** @type {any} */ row) => format.count(row.tokens_in + row.tokens_out),
    },
    seconds: {
      title: "Time",
      width: 76,
      numeric: true,
      cell: (/** @type {any} */ row) => format.duration(row.seconds),
    },
    annotation: {
      title: "Annotation",
      width: 120,
      cell: (/** @type {any} */ row) =>
        row.annotation
          ? html`<span data-tip=${row.annotation.note || undefined}>${row.annotation.verdict.replaceAll("_", " ") || "note"}</span>`
          : "",
    },
  };
  const DEFAULT = ["task", "question", "agent", "model", "outcome", "reward", "answers", "turns", "tokens", "seconds"];
  /** Columns that give way in this order when there is no room; the sorted one stays. */
  const GIVE_WAY = ["model", "turns", "seconds", "agent"];
  const QUESTION_ROOM = 200;
  /** Widths that show names and kinds whole, where the question has this much room to spare. */
  const WHOLE_TEXT = { outcome: 188, agent: 172, answers: 240 };
  const SPARE_ROOM = 100;
  const HIDDEN_NAMES = new Set(["repeat", "question", "expected", "extracted"]);

  function otherColumn(/** @type {any} */ column) {
    const path = (column.key ?? column.name).split("."),
      numeric = column.kind === "number";
    const read = (/** @type {any} */ row) => (path.length > 1 ? row[path[0]]?.[path.slice(1).join(".")] : row[path[0]]);
    const isTime = column.name.startsWith("seconds");
    const cell = (/** @type {any} */ row) => {
      const value = read(row);
      return value === null || value === undefined || value === ""
        ? html`<span class="t3">–</span>`
        : isTime
          ? format.duration(value)
          : numeric
            ? format.value(value)
            : html`<span class="mono small-mono">${format.stored(value)}</span>`;
    };
    return { title: column.title ?? column.name, width: numeric ? 96 : 140, numeric, cell };
  }

  /** Return all columns that can be shown, by id; `known` is the answer of the endpoint for columns. */
  function available(/** @type {any[]} */ known) {
    const names = new Set(known.map((column) => column.name)),
      all = new Map();
    const needs = { answers: ["extracted", "expected"], tools: ["tools"], annotation: ["annotation"] };
    for (const [id, column] of Object.entries(CELLS)) {
      const sources = needs[/** @type {keyof needs} */ (id)] ?? [id];
      const isKnown = !known.length
        ? id !== "annotation" && id !== "model"
        : ["task", "question", "outcome", "reward"].includes(id) || sources.some((name) => names.has(name));
      if (isKnown) all.set(id, { id, sortId: column.sortId ?? id, group: "main", ...column });
    }
    for (const column of known) {
      if (!Object.hasOwn(CELLS, column.name) && !HIDDEN_NAMES.has(column.name))
        all.set(column.name, { id: column.name, sortId: column.name, group: column.group, ...otherColumn(column) });
    }
    return all;
  }

  /** Return the chosen ids: those of the address, else those stored for this environment, else the default. */
  function chosenIds(/** @type {any} */ route, /** @type {string} */ environment) {
    if (route.query.cols) return route.query.cols.split(",");
    return store.get(`columns:${environment}`, DEFAULT);
  }

  /** Leave out columns for which the window has no room, except those that the user chose besides the default. */
  function fit(/** @type {any[]} */ columns, /** @type {number} */ room, /** @type {string | null} */ sorted) {
    let shown = columns;
    const width = () =>
      shown.reduce((sum, column) => sum + (column.id === "question" ? QUESTION_ROOM : column.width), 0);
    for (const id of GIVE_WAY) {
      if (width() > room && id !== sorted) shown = shown.filter((column) => column.id !== id);
    }
    for (const [id, wide] of Object.entries(WHOLE_TEXT)) {
      const wider = shown.map((column) => (column.id === id ? { ...column, width: wide } : column));
      const added = wider.reduce((sum, column, index) => sum + column.width - shown[index].width, 0);
      if (width() + added + SPARE_ROOM <= room) shown = wider;
    }
    return shown;
  }

  const GROUPS = [
    ["main", "Columns"],
    ["tokens", "Tokens"],
    ["component", "Components of the reward"],
    ["label", "Labels of the task"],
    ["phase", "Time by phase"],
    ["text", "Texts"],
  ];
  function ColumnChooser({ all, chosen, onChange }) {
    const toggle = (/** @type {string} */ id) =>
      onChange(
        chosen.includes(id)
          ? chosen.filter((/** @type {string} */ each) => each !== id)
          : [...all.keys()].filter((each) => each === id || chosen.includes(each)),
      );
    const known = GROUPS.map(([group]) => group);
    return html`<${ui.Menu} label="Columns" icon="columns">${GROUPS.map(([group, title]) => {
      const members = [...all.values()].filter(
        (column) => column.group === group || (group === "text" && !known.includes(column.group)),
      );
      return members.length
        ? html`<h3 key=${title}>${title}</h3>${members.map((column) => html`<label key=${column.id}><input type="checkbox" checked=${chosen.includes(column.id)} disabled=${column.id === "task"} onChange=${() => toggle(column.id)} />${column.title}</label>`)}`
        : null;
    })}<button type="button" class="mi" onClick=${() => onChange(DEFAULT)}><${Icon} name="rows" small />Show the default columns</button><//>`;
  }

  gymView.columns = { available, chosenIds, fit, ColumnChooser, DEFAULT, secondLine };
})();
