"use strict";
// A rollout that was not scored: the innermost cause in one line, where it happened, what to do, how to resume.
(() => {
  const { html, Icon, format, router, ui } = gymView;

  /** What an earlier server does not tell comes from the row. */
  function failureOf(/** @type {any} */ data) {
    const { facts } = data;
    if (facts.outcome === "scored") return null;
    if (data.failure) return data.failure;
    return {
      outcome: facts.outcome,
      kind: facts.kind,
      server: facts.whom || undefined,
      cause: facts.message || `${facts.outcome}: ${facts.kind || "by hand"}`,
      explain: /^[a-z_]+$/.test(facts.kind) ? facts.kind : undefined, // it is part of a command to be copied
    };
  }

  function Path({ path }) {
    return html`<div class="path gap-top"><span>Where:</span>${path.map((/** @type {any} */ step, /** @type {number} */ index) => html`<span key=${index} class="pathstep">${index ? "› " : ""}<code class=${step.guilty ? "bad" : ""}>${step.name}</code>${step.guilty ? html`<span class="sr"> failed</span>` : null}</span>`)}</div>`;
  }

  function ToDo({ failure, run }) {
    const same = failure.same_cause;
    const effect =
      failure.runs_again === undefined
        ? ""
        : ` ${format.plural(failure.stays, "finished rollout")} ${failure.stays === 1 ? "stays" : "stay"} as ${failure.stays === 1 ? "it is" : "they are"}; ${format.count(failure.runs_again)} ${failure.runs_again === 1 ? "runs" : "run"} again.`;
    return html`<div class="todo"><h3>What to do</h3>${failure.advice || effect ? html`<p>${failure.advice ?? "Resume the run."}${effect}</p>` : null}${failure.resume_command ? html`<${ui.CommandLine} command=${failure.resume_command} solo />` : null}
      <div class="row wraps gap-top-small">${same?.count > 1 ? html`<a class="btn sm" href=${router.address(run, "rollouts", [], { where: same.where })}>Show all ${format.count(same.count)} with this cause</a>` : null}${failure.explain ? html`<${ui.CopyButton} text=${() => `gym explain ${failure.explain}`} label=${`gym explain ${failure.explain}`} />` : null}</div></div>`;
  }

  function FailurePanel({ failure, run }) {
    const isLimit = failure.outcome === "limit";
    const detail = [
      failure.detail,
      failure.same_cause?.count > 1
        ? `${format.plural(failure.same_cause.count, "rollout")} of this run failed for the same reason.`
        : "",
    ]
      .filter(Boolean)
      .join(" ");
    return html`<section class=${`fail failpanel ${isLimit ? "warn" : ""}`} aria-label="Failure"><div class="row toprow"><span class=${`sev ${isLimit ? "w" : "e"}`}><${Icon} name=${isLimit ? "limit" : "failed"} /></span><div class="grow"><h2>${failure.cause}</h2>${detail ? html`<p class="t2 gap-top-small">${detail}</p>` : null}${failure.path?.length ? html`<${Path} path=${failure.path} />` : null}</div></div>
      <${ToDo} failure=${failure} run=${run} /></section>`;
  }

  function FailureFacts({ failure, data, run }) {
    const { same_cause: same, kept } = failure;
    const facts = [
      ["Kind", failure.kind ? html`<code>${failure.kind}</code>` : null],
      ["Server", failure.server ? html`<code>${failure.server}</code>` : null],
      ["Phase", [failure.phase, failure.turn === undefined ? "" : `turn ${failure.turn}`].filter(Boolean).join(", ")],
      ["Status", failure.status],
      [
        "Time",
        failure.seconds === undefined || failure.seconds === null ? null : `after ${format.duration(failure.seconds)}`,
      ],
      ["Limit", failure.limit ? `${failure.limit.name}: ${format.value(failure.limit.value)}` : null],
      ["Attempts", data.attempts > 1 ? format.count(data.attempts) : null],
      ["Counts as", "not scored: it does not lower the mean"],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    const most = Math.max(1, ...(same?.agents ?? []).map((/** @type {any} */ entry) => entry.count));
    return html`<section><h3>${failure.outcome === "limit" ? "Limit" : "Failure"}</h3><dl class="kv">${facts.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl></section>
      ${kept ? html`<section><h3>Kept from this attempt</h3><dl class="kv">${kept.turns === undefined ? null : html`<dt>Turns</dt><dd>${format.count(kept.turns)}</dd>`}${kept.tokens_in === undefined ? null : html`<dt>Tokens</dt><dd>${format.count(kept.tokens_in)} in, ${format.count(kept.tokens_out)} out</dd>`}</dl></section>` : null}
      ${same?.agents?.length ? html`<section><h3>Same cause in this run</h3><div class="bars">${same.agents.map((/** @type {any} */ { agent, count }) => html`<a class="mono t2 small-mono plain-link" key=${agent} href=${router.address(run, "rollouts", [], { where: `${same.where} and agent == ${JSON.stringify(agent)}` })}>${agent || "(no agent)"}</a><span class="tr"><i class="mark-failed" style=${{ width: `${(100 * count) / most}%` }}></i></span><span class="num">${format.count(count)}</span>`)}</div></section>` : null}`;
  }

  /** The call that ended the rollout, as the last block of its conversation. */
  function FailedCall({ failure }) {
    const isLimit = failure.outcome === "limit",
      isModel = failure.phase === "model" && failure.turn !== undefined;
    const what = [
      failure.server ? `from ${failure.server}` : "",
      failure.phase && !isModel ? `during ${failure.phase}` : "",
      !isLimit && failure.retryable === false ? "not retried: the same request would fail again" : "",
    ].filter(Boolean);
    return html`<article class="turn by-assistant failed-call" aria-label="Where the rollout ended"><div class="gut">${isModel ? html`<b>Turn ${failure.turn}</b>` : null}</div><div class=${`msg failmark ${isLimit ? "warn" : ""}`}><span class=${`oc ${isLimit ? "limit" : "failed"}`}><${Icon} name=${isLimit ? "limit" : "failed"} small /> ${failure.cause}</span><span class="t3">${what.join("; ")}</span></div></article>`;
  }

  gymView.failed = { FailedCall, failureOf, FailurePanel, FailureFacts };
})();
