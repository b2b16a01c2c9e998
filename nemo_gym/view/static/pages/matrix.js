"use strict";
// One matrix of agents × metrics; a cell leads to its rollouts.
(() => {
  const { html, format, router, ui } = gymView;
  const FORMATS = {
    reward: (/** @type {number} */ value) => format.number(value),
    share: (/** @type {number} */ value) => format.percent(value),
    count: (/** @type {number} */ value) => format.count(value),
    number: (/** @type {number} */ value) => format.number(value, 1),
    seconds: (/** @type {number} */ value) => format.duration(value),
    dollars: (/** @type {number} */ value) => format.money(value),
  };
  const WARN_ABOVE = { cut_off: 0.02, failed: 0.02 };

  function Cell({ column, row, run, range, isBest }) {
    const value = row.values[column.name];
    if (value === undefined || value === null) return html`<td class="n t3">–</td>`;
    const where = row.values[`${column.name}_where`] ?? row.where;
    const limit = WARN_ABOVE[/** @type {keyof WARN_ABOVE} */ (column.name)];
    const text =
      column.name === "mean"
        ? html`<${ui.RewardChip} reward=${value} range=${range} digits=${3} cell />`
        : (FORMATS[/** @type {keyof FORMATS} */ (column.kind)]?.(value) ?? format.value(value));
    const look =
      limit !== undefined && value > limit
        ? column.name === "failed"
          ? "oc failed"
          : "oc limit"
        : isBest
          ? "sub-best"
          : "";
    return html`<td class="n">${where ? html`<a class=${`plain-link ${look}`} href=${router.address(run, "rollouts", [], { where })}>${text}</a>` : html`<span class=${look}>${text}</span>`}</td>`;
  }

  const isInterval = (/** @type {any} */ column) => column.name === "low" || column.name === "high";

  function Matrix({ matrix, run, range, all = null }) {
    const columns = matrix.columns.filter((/** @type {any} */ column) => !isInterval(column));
    const best = (/** @type {any} */ column) =>
      column.kind === "reward" && column.name !== "mean" && matrix.rows.length > 1
        ? Math.max(...matrix.rows.map((/** @type {any} */ row) => row.values[column.name] ?? -Infinity))
        : null;
    const hasInterval = matrix.rows.some(
      (/** @type {any} */ row) => row.values.low !== undefined && row.values.low !== null,
    );
    const interval = (/** @type {any} */ values) =>
      html`<td class="t2 num">${format.interval([values.low, values.high]) || "–"}</td>`;
    const cells = (/** @type {any} */ row) =>
      columns.map(
        (/** @type {any} */ column) =>
          html`<${Cell} key=${column.name} column=${column} row=${row} run=${run} range=${range} isBest=${best(column) !== null && row.values[column.name] === best(column)} />${column.name === "mean" && hasInterval ? interval(row.values) : null}`,
      );
    return html`<div class="scrollx gap-top-small" tabindex="0" role="region" aria-label="Metrics by agent"><table class="tbl subsets-table"><thead><tr><th>Agent</th>${columns.map((/** @type {any} */ column) => html`<th class="n" key=${column.name}>${column.title}</th>${column.name === "mean" && hasInterval ? html`<th>95 % interval</th>` : null}`)}</tr></thead>
      <tbody>${matrix.rows.map((/** @type {any} */ row) => html`<tr key=${row.agent}><td class="mono small-mono"><a class="plain-link" href=${router.address(run, "rollouts", [], { where: row.where ?? `agent == ${JSON.stringify(row.agent)}` })}>${row.agent || "(no agent)"}</a></td>${cells(row)}</tr>`)}</tbody>
      ${all ? html`<tfoot><tr><td>All</td>${cells(all)}</tr></tfoot>` : null}</table></div>`;
  }

  /** Metrics that the verifiers stored beside the reward: agents × names. */
  function RecordedMetrics({ recorded }) {
    return html`<div class="scrollx gap-top-small" tabindex="0" role="region" aria-label="Recorded metrics"><table class="tbl"><thead><tr><th>Agent</th>${recorded.columns.map((/** @type {string} */ name) => html`<th class="n" key=${name}>${name}</th>`)}</tr></thead><tbody>${recorded.rows.map((/** @type {any} */ row) => html`<tr key=${row.agent}><td class="mono small-mono">${row.agent}</td>${recorded.columns.map((/** @type {string} */ name) => html`<td class="n" key=${name}>${format.value(row.values[name])}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  gymView.Matrix = Matrix;
  gymView.RecordedMetrics = RecordedMetrics;
})();
