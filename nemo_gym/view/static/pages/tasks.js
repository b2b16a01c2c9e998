"use strict";
// Tasks with their repeats on one line, in the colours of the reward scale.
(() => {
  const { html, Icon, api, format, router, ui, toolbar, useData, useKeys } = gymView;
  const COUNT = 100;
  const GROUPS = [
    ["all", "All"],
    ["mixed", "Mixed"],
    ["solved", "Always 1"],
    ["unsolved", "Never 1"],
    ["unscored", "Not scored"],
  ];
  const NAMES = {
    all: "",
    mixed: "with different rewards",
    solved: "always solved",
    unsolved: "never solved",
    unscored: "without a score",
  };

  function Pager({ start, total, address }) {
    if (total <= COUNT) return null;
    const link = (
      /** @type {number} */ to,
      /** @type {string} */ label,
      /** @type {string} */ icon,
      /** @type {boolean} */ isOff,
    ) =>
      html`<a class="btn sm icon" aria-label=${label} href=${isOff ? undefined : address({ start: to || "" })} aria-disabled=${isOff ? "true" : undefined} role=${isOff ? "link" : undefined}><${Icon} name=${icon} small /></a>`;
    return html`<nav class="row" aria-label="Pages of tasks">${link(Math.max(0, start - COUNT), "Previous page", "left", start === 0)}<span class="num t2">${format.count(start + 1)} – ${format.count(Math.min(total, start + COUNT))} of ${format.count(total)}</span>${link(start + COUNT, "Next page", "right", start + COUNT >= total)}</nav>`;
  }

  function TaskRow({ run, task, query, range }) {
    const first = task.rollouts[0];
    return html`<tr><td class="mono t2 small-mono">${task.task}</td><td class="ell"><a class="plain-link" href=${first ? router.rollout(run, task.task, first.rollout, query) : undefined} data-tip=${task.question || undefined}>${task.question || `Task ${task.task}`}</a></td><td class="mono ell small-mono">${task.agent ?? ""}</td>
      <td><${ui.RepeatStrip} run=${run} task=${task.task} repeats=${task.rollouts} range=${range} query=${query} more=${task.more ?? 0} /></td><td class="n">${format.number(task.mean, 2)}</td><td class="n t2">${task.scored === undefined ? "" : `${format.count(task.solved)} of ${format.count(task.scored)}`}</td></tr>`;
  }

  function TasksPage({ route, summary, progress }) {
    const { run, query } = route,
      { where = "", words = "", group = "all", sort = "task", down = "" } = query,
      start = Number(query.start ?? 0);
    const range = gymView.rewardRange(summary);
    const { data, error, reload } = useData(
      (signal) =>
        api.tasks(run, { where, words, group: group === "all" ? "" : group, sort, down, start, count: COUNT }, signal),
      [run, where, words, group, sort, down, start, progress.version],
    );
    const address = (/** @type {any} */ next) => router.address(run, "tasks", [], { ...query, ...next });
    const onApply = (/** @type {any} */ filter) => {
      if (filter.where !== where || filter.words !== words) router.go(address({ ...filter, start: "" }));
    };
    useKeys("Table", [["/", "Filter", () => document.getElementById("filter")?.focus()]]);
    if (error && error.status !== 400) return html`<${ui.ErrorState} error=${error} retry=${reload} />`;
    const groups = data?.groups,
      kept = router.selection(query);
    const head = (/** @type {string} */ id, /** @type {string} */ title, look = "") =>
      html`<th class=${`${look} ${sort === id ? "sorted" : ""}`} aria-sort=${sort === id ? (down ? "descending" : "ascending") : undefined}><a class="plain-link" href=${address({ sort: id === "task" ? "" : id, down: sort === id && !down ? "1" : "", start: "" })}>${title}${sort === id ? (down ? " ↓" : " ↑") : ""}</a></th>`;
    return html`<div class="page stack"><div class="row wraps"><h1>Tasks</h1>${data ? html`<span class="t3 num">${format.count(data.total)} ${groups ? html`of ${format.count(groups.all)} ` : ""}${NAMES[/** @type {keyof NAMES} */ (group)] ?? ""}</span>` : null}<span class="grow"></span>
        ${groups ? html`<${ui.Segments} label="Groups of tasks" options=${GROUPS.filter(([id]) => groups[id] || id === group || id === "all").map(([id, title]) => [id, title, groups[id] ?? 0])} value=${group} onChange=${(/** @type {string} */ id) => router.go(address({ group: id === "all" ? "" : id, start: "" }))} />` : null}</div>
      <${toolbar.FilterInput} query=${query} error=${error?.status === 400 ? error : null} onApply=${onApply} />
      ${
        !data
          ? html`<${ui.Skeleton} />`
          : data.total === 0
            ? html`<section class="card">${where || words ? html`<${toolbar.NoResult} run=${run} query=${query} onApply=${onApply} />` : html`<${ui.Empty} title="No task is in this group"><a class="btn" href=${address({ group: "", start: "" })}>Show all tasks</a><//>`}</section>`
            : html`<section class="card scrollx" aria-label="Tasks" tabindex="0"><table class="tbl tasks-table"><thead><tr>${head("task", "Task", "w72")}<th>Question</th><th class="w180">Agent</th><th class="repeats-column">Repeats</th>${head("mean", "Mean", "n w80")}${head("scored", "Solved", "n w80")}</tr></thead><tbody>${data.rows.map((/** @type {any} */ task) => html`<${TaskRow} key=${task.task} run=${run} task=${task} query=${kept} range=${range} />`)}</tbody></table></section><${Pager} start=${start} total=${data.total} address=${address} />`
      }</div>`;
  }

  gymView.pages.tasks = { component: TasksPage, title: () => "Tasks" };
})();
