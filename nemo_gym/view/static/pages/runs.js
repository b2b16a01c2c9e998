"use strict";
// Runs of a folder: the first page when there are several. Two or more can be selected and compared.
(() => {
  const { html, Icon, format, router, ui, charts, useState } = gymView;

  const NOTES = { interrupted: "interrupted" };
  function note(/** @type {any} */ run) {
    if (run.reading) return `reading ${Math.floor((run.reading.done / Math.max(1, run.reading.size)) * 100)} %`;
    return NOTES[/** @type {keyof NOTES} */ (run.state)] ?? "";
  }

  /** What the columns say that a phone has no room for, in one line. */
  function phoneFacts(/** @type {any} */ run) {
    const counts = run.outcome_counts ?? run.outcomes ?? {};
    const planned = run.planned && run.planned !== run.rollouts ? ` of ${format.count(run.planned)}` : "";
    return [
      run.environment,
      run.model,
      run.started_at ? format.date(run.started_at) : "",
      `${format.count(run.rollouts)}${planned} rollouts`,
      ...["failed", "limit", "cancelled"].map((outcome) =>
        counts[outcome] ? `${format.count(counts[outcome])} ${outcome}` : "",
      ),
      run.cost ? format.money(run.cost.dollars) : "",
      note(run),
    ]
      .filter(Boolean)
      .join(" · ");
  }

  /** Return the runs as one looks for them: the newest first, those without a date last in their order. */
  const newestFirst = (/** @type {any[]} */ runs) =>
    [...runs].sort((one, two) => (two.started_at ?? "").localeCompare(one.started_at ?? ""));

  function RunRow({ run, isSelected, onSelect, shown }) {
    const mean = run.reward?.mean,
      bounds = run.reward?.interval_95,
      [from, to] = run.scale ?? [0, 1];
    return html`<tr class=${isSelected ? "selected" : ""}>
      <td><input type="checkbox" aria-label=${`Select ${run.title ?? run.name}`} checked=${isSelected} onChange=${onSelect} /></td>
      <td><a class="strong-link" href=${router.address(run.number, run.state === "running" ? "live" : "overview")}>${run.title ?? run.name}</a>${run.state === "running" ? html` <span class="pill live"><i></i>running</span>` : null}<div class="only-phone t3 small">${phoneFacts(run)}</div></td>
      ${shown.environment ? html`<td class="only-wide t2 small-mono">${run.environment ?? "–"}</td>` : null}${shown.model ? html`<td class="only-wide mono t2 small-mono">${run.model ?? "–"}</td>` : null}
      ${shown.started_at ? html`<td class="only-wide t2">${format.date(run.started_at)}</td><td class="only-wide n t2 duration">${format.duration(run.seconds)}</td>` : null}
      <td class="only-wide n">${format.count(run.rollouts)}${run.planned && run.planned !== run.rollouts ? html`<span class="t3"> of ${format.count(run.planned)}</span>` : null}</td>
      <td class="n">${mean === null || mean === undefined ? "–" : html`<${ui.RewardChip} reward=${mean} range=${run.scale} cell digits=${3} />`}</td>
      <td class="only-wide">${mean === null || mean === undefined ? null : html`<span data-tip=${`${format.number(mean)}, 95 % interval ${format.interval(bounds) || "unknown"}`}><${charts.Forest} value=${mean} low=${bounds?.[0]} high=${bounds?.[1]} from=${from} to=${to} /></span>`}</td>
      <td class="only-wide outcomes-cell">${["failed", "limit", "cancelled"].filter((outcome) => (run.outcome_counts ?? run.outcomes)?.[outcome]).map((outcome) => html`<a key=${outcome} class=${`oc ${outcome}`} href=${router.address(run.number, "rollouts", [], { where: `outcome == "${outcome}"` })} aria-label=${`${format.count((run.outcome_counts ?? run.outcomes)[outcome])} ${outcome}`}><${Icon} name=${outcome} small />${format.count((run.outcome_counts ?? run.outcomes)[outcome])}</a>`)}</td>
      ${shown.cost ? html`<td class="only-wide n">${format.money(run.cost?.dollars)}</td>` : null}
      ${shown.note ? html`<td class="only-wide t2">${note(run)}</td>` : null}</tr>`;
  }

  function RunsPage({ runs }) {
    const [selected, setSelected] = useState(/** @type {number[]} */ ([]));
    const has = (/** @type {string} */ name) =>
      runs.some((/** @type {any} */ run) => run[name] !== undefined && run[name] !== null);
    const shown = {
      environment: has("environment"),
      model: has("model"),
      started_at: has("started_at"),
      cost: has("cost"),
      note: runs.some(note),
    };
    const toggle = (/** @type {number} */ number) =>
      setSelected(
        selected.includes(number)
          ? selected.filter((each) => each !== number)
          : [...selected, number].sort((a, b) => a - b),
      );
    if (!runs.length) {
      return html`<div class="page"><h1>Runs</h1><section class="card"><${ui.Empty} title="No runs here yet" art="bars"><p>This folder has no rollouts. Run the smallest environment with the built-in model; it takes about half a minute and needs no key.</p>
        <${ui.CommandLine} command="gym eval run --environment arithmetic --model-type scripted_model --limit 10" solo /><p class="t3">This page fills as soon as the first rollout is finished.</p><//></section></div>`;
    }
    return html`<div class="page stack"><div class="row wraps"><h1>Runs</h1><span class="t3 num">${format.plural(runs.length, "run")}</span><span class="grow"></span>
        ${selected.length > 1 ? html`<a class="btn primary" href=${router.compareAddress(selected)}><${Icon} name="scale" />Compare ${selected.length} selected</a>` : html`<span class="t3">Select two or more to compare</span>`}</div>
      <section class="card scrollx" aria-label="Runs" tabindex="0"><table class="tbl runs-table"><thead><tr><th class="check"><span class="sr">Select</span></th><th>Run</th>${shown.environment ? html`<th class="only-wide">Environment</th>` : null}${shown.model ? html`<th class="only-wide">Model</th>` : null}${shown.started_at ? html`<th class="only-wide">Started</th><th class="only-wide n duration">Duration</th>` : null}<th class="only-wide n">Rollouts</th><th class="n">Mean</th><th class="only-wide w166"><span class="ends"><span>${runs[0].scale?.[0] ?? 0}</span><span>${runs[0].scale?.[1] ?? 1}</span></span></th><th class="only-wide">Not scored</th>${shown.cost ? html`<th class="only-wide n">Cost</th>` : null}${shown.note ? html`<th class="only-wide">Note</th>` : null}</tr></thead>
        <tbody>${newestFirst(runs).map((/** @type {any} */ run) => html`<${RunRow} key=${run.number} run=${run} shown=${shown} isSelected=${selected.includes(run.number)} onSelect=${() => toggle(run.number)} />`)}</tbody></table></section></div>`;
  }

  gymView.pages.runs = { component: RunsPage, title: () => "Runs" };
})();
