"use strict";
// The preview beside the table: what a row is about, without leaving the table.
(() => {
  const { html, Icon, api, format, markdown, renderers, router, ui, useData } = gymView;

  function headline(/** @type {any} */ row) {
    if (row.outcome === "limit") return "Stopped at a limit";
    if (row.outcome !== "scored") return row.outcome === "failed" ? "Failed" : "Cancelled";
    if (row.reward >= 1) return "Correct";
    if (!row.extracted && row.expected) return "No answer could be extracted";
    return row.reward > 0 ? "Partial credit" : "Wrong answer";
  }

  function Score({ row, range }) {
    const components = Object.entries(row.components ?? {})
      .slice(0, 4)
      .map(([name, value]) => `${name} ${format.value(value)}`)
      .join(", ");
    return html`<div class="score"><span class=${`v small r${ui.rewardStep(row.reward, range)}`}>${format.number(row.reward, 2)}</span><div><div class="headline">${headline(row)}</div><div class="t3 note">${components || (row.rule ? `rule: ${row.rule}` : "")}</div></div></div>`;
  }

  function timePhases(/** @type {any} */ row) {
    return ["queue", "seed_session", "model", "tools", "verify", "agent"]
      .map((phase) => ({ phase, seconds: row[`seconds_${phase}`] ?? 0 }))
      .filter(({ seconds }) => seconds > 0);
  }

  function Repeats({ run, row, range, query }) {
    const { data } = useData(
      (signal) => api.tasks(run, { where: `task == ${row.task}`, count: 1 }, signal),
      [run, row.task],
    );
    const repeats = data?.rows[0]?.task === row.task ? data.rows[0].rollouts : [row];
    return html`<section><h3>Repeats of task ${row.task}</h3><${ui.RepeatStrip} run=${run} task=${row.task} repeats=${repeats} current=${row.rollout} range=${range} query=${query} /></section>`;
  }

  function Preview({ run, row, range, query, onStep, onClose, href }) {
    const phases = timePhases(row),
      isReady = renderers.useRenderers();
    return html`<aside class="drawer" aria-label="Preview"><header><span class="mono strong">${row.task}:${row.rollout}</span><${ui.OutcomeBadge} outcome=${row.outcome} tag /><span class="grow"></span>
        <button type="button" class="btn ghost sm icon" aria-label="Previous row" data-tip="Previous  ↑" onClick=${() => onStep(-1)}><${Icon} name="up" small /></button><button type="button" class="btn ghost sm icon" aria-label="Next row" data-tip="Next  ↓" onClick=${() => onStep(1)}><${Icon} name="down" small /></button>
        <a class="btn sm" href=${href}>Open <kbd>↵</kbd></a><button type="button" class="btn ghost sm icon" aria-label="Close the preview" onClick=${onClose}><${Icon} name="close" small /></button></header>
      ${row.question ? html`<section><h3>Question</h3><div class="question"><${markdown.Prose} text=${row.question} isReady=${isReady} /></div></section>` : null}
      <section>${
        row.outcome === "scored"
          ? html`<${Score} row=${row} range=${range} />${row.extracted || row.expected ? html`<div class="gap-top"><${ui.AnswerDiff} extracted=${row.extracted} expected=${row.expected} /></div>` : null}`
          : html`<div class="headline">${headline(row)}: <code>${row.kind || "by hand"}</code></div><p class="t2 gap-top-small">${row.message || "No message was recorded."}</p>${row.whom ? html`<p class="t3 note">at <code>${row.whom}</code></p>` : null}`
      }</section>
      <${Repeats} run=${run} row=${row} range=${range} query=${query} />
      ${row.answer ? html`<section><h3>Last answer</h3><div class="t2 last-answer"><${markdown.Prose} text=${row.answer} isReady=${isReady} /></div></section>` : null}
      <section><h3>Where the time went</h3>${phases.length ? html`<${ui.TimeBar} phases=${phases} label="Time by phase" />` : null}<dl class="kv gap-top">${row.agent ? html`<dt>Agent</dt><dd class="mono small-mono">${row.agent}</dd>` : null}${row.model ? html`<dt>Model</dt><dd class="mono small-mono">${row.model}</dd>` : null}<dt>Turns</dt><dd>${row.turns}, ${format.plural(row.tool_calls, "tool call")}</dd><dt>Tokens</dt><dd>${format.count(row.tokens_in)} in, ${format.count(row.tokens_out)} out</dd>${row.seconds === null ? null : html`<dt>Time</dt><dd>${format.duration(row.seconds)}</dd>`}</dl></section></aside>`;
  }

  gymView.Preview = Preview;
  gymView.rowHref = (/** @type {number} */ run, /** @type {any} */ row, /** @type {any} */ query) =>
    router.rollout(run, row.task, row.rollout, router.selection(query));
})();
