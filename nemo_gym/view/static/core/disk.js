"use strict";
// Data of a bundle that is opened from disk: a page at file:// cannot fetch JSON, but it can load scripts.
(() => {
  const { api, filter } = gymView;
  /** @type {Map<string, (data: any) => void>} */
  const waiting = new Map();
  /** @type {Map<string, Promise<any>>} */
  const loaded = new Map();
  const KEPT_SCRIPTS = 20;

  window.gymLoaded = (/** @type {string} */ name, /** @type {any} */ data) => {
    waiting.get(name)?.(data);
    waiting.delete(name);
  };

  function load(/** @type {string} */ name) {
    const earlier = loaded.get(name);
    if (earlier) return earlier;
    const promise = new Promise((resolve, reject) => {
      waiting.set(name, resolve);
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => reject(new gymView.ApiError(`${name} is not in this bundle.`, 404));
      script.onload = () => script.remove();
      document.head.append(script);
    });
    loaded.set(name, promise);
    if (loaded.size > KEPT_SCRIPTS) {
      const oldest = [...loaded.keys()].find((key) => key !== "bundle");
      if (oldest) loaded.delete(oldest);
    }
    return promise;
  }

  const bundle = () => load("bundle");
  const runOf = async (/** @type {number} */ run) => {
    const found = (await bundle()).runs[run];
    if (!found) throw new gymView.ApiError("unknown run", 404);
    return found;
  };
  const columnKeys = (/** @type {any} */ run) =>
    Object.fromEntries(
      (run.columns?.columns ?? [])
        .filter((/** @type {any} */ column) => column.key)
        .map((/** @type {any} */ column) => [column.name, column.key]),
    );

  async function matching(/** @type {number} */ number, { where = "", words = "" }) {
    const run = await runOf(number),
      fits = filter.compile(where, columnKeys(run));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return run.rows.filter((/** @type {any} */ row) => {
      const text = [row.question, row.answer, row.expected, row.extracted, row.message].join(" ").toLowerCase();
      return wanted.every((word) => text.includes(word)) && fits(row);
    });
  }

  async function sorted(/** @type {number} */ number, /** @type {any} */ query) {
    const rows = await matching(number, query);
    const read = filter.columnReader(query.sort || "task", columnKeys(await runOf(number)));
    const direction = query.down ? -1 : 1;
    return rows.sort((/** @type {any} */ one, /** @type {any} */ two) => {
      const [a, b] = [read(one), read(two)];
      const order = a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1;
      return direction * order || one.task - two.task || one.rollout - two.rollout;
    });
  }

  const isRow = (/** @type {number} */ task, /** @type {number} */ repeat) => (/** @type {any} */ row) =>
    row.task === task && row.rollout === repeat;
  const idOf = (/** @type {any} */ row) => (row ? [row.task, row.rollout] : null);

  /** Return the groups of a task by its rewards, as the server does. */
  function groupsOf(/** @type {number[]} */ rewards) {
    if (!rewards.length) return ["unscored"];
    const groups = [];
    if (Math.min(...rewards) < Math.max(...rewards)) groups.push("mixed");
    if (rewards.every((reward) => reward >= 1)) groups.push("solved");
    if (rewards.every((reward) => reward < 1)) groups.push("unsolved");
    return groups;
  }

  async function tasks(/** @type {number} */ run, /** @type {any} */ query) {
    const byTask = new Map();
    for (const row of await matching(run, query)) {
      if (!byTask.has(row.task))
        byTask.set(row.task, { task: row.task, question: row.question, agent: row.agent, rollouts: [] });
      byTask.get(row.task).rollouts.push(row);
    }
    const groups = /** @type {Record<string, number>} */ ({
      all: byTask.size,
      mixed: 0,
      solved: 0,
      unsolved: 0,
      unscored: 0,
    });
    const all = [...byTask.values()].map((task) => {
      const rewards = task.rollouts
        .filter((/** @type {any} */ row) => row.reward !== null && !row.masked)
        .map((/** @type {any} */ row) => row.reward);
      const memberOf = groupsOf(rewards);
      for (const group of memberOf) groups[group] = (groups[group] ?? 0) + 1;
      const mean = rewards.length
        ? rewards.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / rewards.length
        : null;
      return {
        ...task,
        groups: memberOf,
        mean,
        scored: rewards.length,
        solved: rewards.filter((/** @type {number} */ reward) => reward >= 1).length,
      };
    });
    const rows = !query.group || query.group === "all" ? all : all.filter((task) => task.groups.includes(query.group));
    const key = query.sort === "mean" || query.sort === "scored" ? query.sort : "task";
    rows.sort((one, two) => ((one[key] ?? -1) - (two[key] ?? -1)) * (query.down ? -1 : 1) || one.task - two.task);
    const start = Number(query.start ?? 0);
    return { total: rows.length, start, groups, rows: rows.slice(start, start + Number(query.count ?? 100)) };
  }

  async function rollout(/** @type {any} */ { run, task, repeat }, /** @type {any} */ query) {
    const [whole, rows] = [await load(`${run}/${task}-${repeat}`), await sorted(run, query)];
    const all = (await runOf(run)).rows,
      start = Number(query.start ?? 0);
    const position = rows.findIndex(isRow(task, repeat));
    const isLater = (/** @type {any} */ row) => row.task > task || (row.task === task && row.rollout > repeat);
    return {
      ...whole,
      total: whole.events.length,
      events: whole.events.slice(start, start + Number(query.count ?? 200)),
      position: position < 0 ? null : position,
      matches: rows.length,
      previous: idOf(position > 0 ? rows[position - 1] : null),
      next: idOf(position < 0 ? rows.find(isLater) : rows[position + 1]),
      next_failed: idOf(all.find((/** @type {any} */ row) => row.outcome === "failed" && isLater(row))),
      repeats: whole.repeats ?? all.filter((/** @type {any} */ row) => row.task === task),
    };
  }

  const fromFile = async (/** @type {any} */ { run, task, repeat }, /** @type {string} */ key) => {
    const value = (await load(`${run}/${task}-${repeat}`))[key];
    if (value === undefined) throw new gymView.ApiError("This bundle does not hold it.", 404);
    return value;
  };

  const disk = {
    bundle,
    runs: async () =>
      (await bundle()).runs.map((/** @type {any} */ run, /** @type {number} */ number) => ({
        number,
        name: run.summary.name,
        ...run.entry,
      })),
    summary: async (/** @type {number} */ run) => (await runOf(run)).summary,
    progress: async () => ({ indexed: 1, size: 1, version: "bundle" }),
    columns: async (/** @type {number} */ run) => (await runOf(run)).columns ?? { columns: [] },
    async rollouts(/** @type {number} */ run, /** @type {any} */ query) {
      const rows = await sorted(run, query),
        count = Number(query.count ?? 200);
      const [task, repeat] = (query.at ?? "").split(":").map(Number);
      const position = query.at ? rows.findIndex(isRow(task, repeat)) : -1;
      const start = query.start ?? (position >= 0 ? Math.max(0, position - Math.floor(count / 2)) : 0);
      return {
        total: rows.length,
        of: (await runOf(run)).rows.length,
        start: Number(start),
        position: position < 0 ? null : position,
        rows: rows.slice(Number(start), Number(start) + count),
      };
    },
    async filterParts(/** @type {number} */ run, /** @type {string} */ where) {
      const found = await runOf(run),
        parts = [];
      for (const text of filter.topLevelParts(where))
        parts.push({ text, total: (await matching(run, { where: text })).length });
      return { total: (await matching(run, { where })).length, of: found.rows.length, parts, columns: [] };
    },
    tasks,
    rollout,
    text: async (/** @type {any} */ id, /** @type {number} */ event) => ({
      text: (await fromFile(id, "texts"))[event] ?? "",
    }),
    async find(/** @type {any} */ id, /** @type {{ text: string }} */ { text }) {
      const wanted = text.toLowerCase(),
        whole = await load(`${id.run}/${id.task}-${id.repeat}`);
      const has = (/** @type {any} */ event) =>
        `${event.name ?? ""}\n${event.text}${whole.texts?.[event.number] ?? ""}`.toLowerCase().includes(wanted);
      return { events: whole.events.filter(has).map((/** @type {any} */ event) => event.number) };
    },
    tokens: async (/** @type {any} */ id, /** @type {number} */ event) =>
      (await fromFile(id, "tokens"))[event] ?? { count: 0, ids: [], log_probs: [] },
    tools: async (/** @type {any} */ id) => fromFile(id, "tool_list"),
    sequence: async (/** @type {any} */ id) => fromFile(id, "sequence"),
    raw: async (/** @type {any} */ id) => fromFile(id, "raw"),
    row: async (/** @type {any} */ id) => fromFile(id, "row"),
    live: () => Promise.reject(new gymView.ApiError("A bundle is not live.", 404)),
    async compare(/** @type {number[]} */ runs) {
      const data = await bundle();
      const found = runs.length === 2 ? data.comparisons?.[runs.join("-")] : data.comparison_of_all;
      if (!found) throw new gymView.ApiError("This bundle has no comparison of these runs.", 404);
      return found;
    },
    csvAddress: () => null,
  };

  if (api.isBundle)
    Object.assign(api, disk, { get: () => Promise.reject(new gymView.ApiError("A bundle has no server.", 0)) });
  api.allRows = sorted;
})();
