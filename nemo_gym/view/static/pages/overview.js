"use strict";
// Overview of a run: identity, headline score with its interval, charts, health, subsets, one matrix of agents × metrics.
(() => {
  const { html, Icon, format, router, ui, charts, api } = gymView;
  const LEVELS = { error: ["e", "failed"], warning: ["w", "warning"], info: ["i", "info"], ok: ["o", "scored"] };
  const STATES = { finished: ["check", "finished"], interrupted: ["warning", "interrupted"] };
  const MOST_KINDS = 3;

  const rolloutsAt = (/** @type {number} */ run) => (/** @type {string} */ where) =>
    router.address(run, "rollouts", [], { where });

  function sampling(/** @type {any} */ settings) {
    const { temperature, top_p: topP, max_output_tokens: most, ...rest } = settings;
    const first = [temperature === undefined ? null : `T ${temperature}`, topP === undefined ? null : `top-p ${topP}`]
      .filter(Boolean)
      .join(", ");
    const second = [
      most === undefined ? null : `≤ ${format.count(most)} tokens out`,
      ...Object.entries(rest)
        .filter(([, value]) => typeof value !== "object")
        .map(([name, value]) => `${name} ${value}`),
    ]
      .filter(Boolean)
      .join(", ");
    return [first || second, first ? second : ""];
  }

  /** Return the facts of the identity strip as [title, value, note]; what is not recorded has no fact. */
  function identityFacts(/** @type {any} */ strip, /** @type {any} */ summary) {
    const facts = [],
      { work, tokens, cost, versions = {}, data } = strip;
    if (strip.models?.length) facts.push(["Model", strip.models.join(", "), strip.model_server ?? ""]);
    if (work) {
      const rate = summary.seconds > 0 ? `, ${format.count((60 * work.rollouts) / summary.seconds)} a minute` : "";
      facts.push([
        "Work",
        `${format.plural(work.tasks, "task")}${work.repeats > 1 ? ` × ${work.repeats}` : ""}`,
        `${format.plural(work.rollouts, "rollout")}${rate}`,
      ]);
    }
    if (strip.sampling && Object.keys(strip.sampling).length) facts.push(["Sampling", ...sampling(strip.sampling)]);
    if (tokens && (tokens.input || tokens.output)) {
      const notes = [
        tokens.cached ? `${format.percent(tokens.cached / Math.max(1, tokens.input), 0)} cached` : "",
        tokens.reasoning ? `${format.short(tokens.reasoning)} reasoning` : "",
      ];
      facts.push([
        "Tokens",
        `${format.short(tokens.input)} in, ${format.short(tokens.output)} out`,
        notes.filter(Boolean).join(", "),
      ]);
    }
    if (cost)
      facts.push([
        "Cost",
        format.money(cost.dollars),
        cost.unpriced?.length
          ? `without ${cost.unpriced.join(", ")}`
          : cost.per_rollout === undefined
            ? ""
            : `${format.money(cost.per_rollout)} per rollout`,
      ]);
    const hash = String(data?.rows ?? "")
      .replace(/^\w+:/, "")
      .slice(0, 8);
    const [first, ...others] = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
    if (first || hash)
      facts.push(["Versions", first ?? `data ${hash}`, first && hash ? `data ${hash}` : (others[0] ?? "")]);
    return facts;
  }

  function Identity({ route, runs, summary }) {
    const run = runs.find((/** @type {any} */ each) => each.number === route.run) ?? {};
    const strip = summary.identity_strip ?? {},
      facts = identityFacts(strip, summary);
    const [icon, word] = STATES[/** @type {keyof STATES} */ (summary.state)] ?? [];
    const others = runs.filter((/** @type {any} */ each) => each.number !== route.run);
    const started = summary.started_at,
      ended = summary.state === "running" ? null : summary.ended_at;
    const subtitle = [
      summary.environment ?? run.environment,
      started ? `${format.date(started)}${ended ? ` – ${format.time(ended)}` : ""}` : null,
      summary.seconds ? format.duration(summary.seconds) : null,
      summary.tags?.length ? summary.tags.join(", ") : null,
    ].filter(Boolean);
    return html`<section class="card" aria-label="Run"><div class="runhead"><div class="grow"><div class="row"><h1>${summary.title ?? run.title ?? summary.name}</h1>${word ? html`<span class="pill"><${Icon} name=${icon} small />${word}</span>` : null}${summary.state === "running" ? html`<a class="pill live" href=${router.address(route.run, "live")}><i></i>running</a>` : null}</div>
        <div class="sub">${subtitle.map((text, index) => html`<span key=${text}>${index ? html`<span class="t3 dot">·</span>` : null}${text}</span>`)}<span class="t3 mono small-mono path">${summary.path ?? ""}</span></div></div>
        <div class="row only-wide">${others.length ? html`<${ui.Menu} label="Compare with…" icon="scale">${others.slice(0, 12).map((/** @type {any} */ other) => html`<a class="mi" key=${other.number} href=${router.compareAddress([other.number, route.run])}><span class="ell">${other.title ?? other.name}</span></a>`)}<//>` : null}<button type="button" class="btn icon" aria-label="Copy link" data-tip="Copy link  c" onClick=${gymView.copyLink}><${Icon} name="link" /></button></div></div>
      ${facts.length ? html`<dl class=${`facts n${facts.length}`}>${facts.map(([title, value, small]) => html`<div key=${title}><dt>${title}</dt><dd class=${title === "Versions" ? "small-mono mono" : ""}>${value} ${small ? html`<small>${small}</small>` : null}</dd></div>`)}</dl>` : null}
      ${strip.command ? html`<${ui.CommandLine} command=${strip.command} />` : null}</section>`;
  }

  function IntervalBar({ mean, bounds, range }) {
    const share = (/** @type {number} */ value) =>
      `${Math.max(0, Math.min(100, (100 * (value - range[0])) / (range[1] - range[0] || 1)))}%`;
    const width = bounds ? `${Math.max(0.6, (100 * (bounds[1] - bounds[0])) / (range[1] - range[0] || 1))}%` : "0";
    return html`<div class="ibar grow" data-tip=${`mean ${format.number(mean)}${bounds ? `, 95 % interval ${format.interval(bounds)}` : ""}\nclustered by task: repeats of a task are not independent`}><span class="track">${[0, 1, 2, 3, 4, 5, 6].map((step) => html`<i key=${step} class=${`r${step}`}></i>`)}</span>
      ${bounds ? html`<span class="ci" style=${{ left: share(bounds[0]), width }}></span>` : null}<span class="pt" style=${{ left: share(mean) }}></span><span class="ax start">${format.value(range[0])}</span><span class="ax end">${format.value(range[1])}</span></div>`;
  }

  function countOf(/** @type {any} */ summary, /** @type {string} */ outcome) {
    return (summary.outcomes ?? [])
      .filter((/** @type {any} */ entry) => entry.outcome === outcome)
      .reduce((/** @type {number} */ sum, /** @type {any} */ entry) => sum + entry.count, 0);
  }

  /** Return the newest earlier run of the same environment and rows, with which the score can be compared. */
  function earlierRun(/** @type {any[]} */ runs, /** @type {any} */ summary) {
    if (!summary.environment || !summary.started_at || !summary.data) return null;
    return runs
      .filter(
        (run) =>
          run.number !== summary.number &&
          run.environment === summary.environment &&
          run.data === summary.data &&
          (run.started_at ?? "") < summary.started_at &&
          typeof run.reward?.mean === "number",
      )
      .reduce((newest, run) => (newest && newest.started_at >= run.started_at ? newest : run), null);
  }

  /** The difference from an earlier run, as a link to the comparison. */
  function SinceEarlier({ summary, earlier }) {
    if (!earlier || summary.reward.mean === null) return null;
    const change = summary.reward.mean - earlier.reward.mean,
      size = Math.abs(change);
    const look = size < 0.0005 ? "t2" : change > 0 ? "dl up" : "dl down";
    const sign = size < 0.0005 ? "as in" : `${change > 0 ? "▲" : "▼"} ${format.number(size)} against`;
    return html`<a class=${`since ${look}`} href=${router.compareAddress([earlier.number, summary.number])}>${sign} ${earlier.title ?? earlier.name}</a>`;
  }

  function Headline({ run, runs, summary, range }) {
    const { mean, interval_95: bounds, tasks } = summary.reward,
      passes = summary.pass_at_k ?? [];
    const rest = ["failed", "limit", "cancelled"]
      .map((outcome) => /** @type {[string, number]} */ ([outcome, countOf(summary, outcome)]))
      .filter(([, count]) => count);
    const notScored = rest.reduce((sum, [, count]) => sum + count, 0);
    const unsolved = passes.length ? summary.task_groups?.unsolved : undefined;
    const named = passes.length > 1 ? [passes[0], passes[passes.length - 1]] : passes;
    return html`<section class=${`card hero n${named.length + (unsolved === undefined ? 1 : 2)}`} aria-label="Score"><div><span class="lab">Mean reward${bounds ? ", 95 % interval" : ""}</span><div class="bigrow"><div class="big">${format.number(mean)}</div>${mean === null ? null : html`<${IntervalBar} mean=${mean} bounds=${bounds} range=${range} />`}</div>
        <div class="t2 gap-top-small">${bounds ? `${format.interval(bounds)}, clustered by task` : mean === null ? "no rollout is scored yet" : `of ${format.plural(tasks, "task")}; no interval from so few`} <${SinceEarlier} summary=${summary} earlier=${earlierRun(runs, summary)} /></div></div>
      ${named.map((/** @type {any} */ point) => html`<div key=${point.k}><span class="lab">pass@${point.k}</span><div class="mid">${format.number(point.chance)}</div><div class="t2 note">${point.interval_95 ? format.interval(point.interval_95) : `of ${format.plural(point.tasks, "task")}`}</div></div>`)}
      ${unsolved === undefined ? null : html`<div><span class="lab">Tasks never solved</span><div class="mid"><a class="plain-link" href=${router.address(run, "tasks", [], { group: "unsolved" })}>${format.count(unsolved)}</a></div><div class="t2 note">${format.percent(unsolved / Math.max(1, summary.task_groups.all))} of ${format.count(summary.task_groups.all)}</div></div>`}
      <div><span class="lab">Not scored</span><div class="mid">${notScored ? html`<a class="plain-link" href=${rolloutsAt(run)('outcome != "scored"')}>${format.count(notScored)}</a>` : "0"}</div><div class="t2 note">${rest.map(([outcome, count]) => `${format.count(count)} ${outcome}`).join(", ") || "all rollouts are scored"}</div></div></section>`;
  }

  function Outcomes({ run, summary, total }) {
    const at = rolloutsAt(run);
    const outcomes = ["scored", "limit", "failed", "cancelled"]
      .map((outcome) => ({ outcome, count: countOf(summary, outcome) }))
      .filter(({ count }) => count);
    const kinds = (summary.outcomes_by_kind ?? summary.outcomes ?? []).filter((/** @type {any} */ entry) => entry.kind);
    const others = kinds
      .slice(MOST_KINDS)
      .reduce((/** @type {number} */ sum, /** @type {any} */ entry) => sum + entry.count, 0);
    return html`<${ui.Card} title="Outcomes" note=${format.plural(total, "rollout")}><div class="stackbar" aria-hidden="true">${outcomes.map(({ outcome, count }) => html`<i key=${outcome} class=${`mark-${outcome}`} style=${{ flexGrow: String(count) }} data-tip=${`${outcome}: ${format.count(count)}`}></i>`)}</div>
      <div class="outcome-list">${outcomes.map(({ outcome, count }) => html`<a class="row plain-link" key=${outcome} href=${at(`outcome == "${outcome}"`)}><${ui.OutcomeBadge} outcome=${outcome} /><span class="grow"></span><b class="num">${format.count(count)}</b><span class="t3 num share">${format.percent(count / Math.max(1, total))}</span></a>`)}</div>
      ${kinds.length ? html`<div class="kinds">${kinds.slice(0, MOST_KINDS).map((/** @type {any} */ entry) => html`<a key=${entry.outcome + entry.kind} href=${at(entry.where ?? `outcome == "${entry.outcome}" and kind == "${entry.kind}"`)}><code class="ell">${entry.kind}</code><b>${format.count(entry.count)}</b></a>`)}${others ? html`<a href=${at('outcome != "scored"')}><span>${format.plural(kinds.length - MOST_KINDS, "other kind")}</span><b>${format.count(others)}</b></a>` : null}</div>` : null}<//>`;
  }

  function histogramBins(/** @type {any} */ histogram) {
    if (histogram?.bins) return histogram.bins;
    const counts = histogram?.counts ?? [],
      wide = counts.length ? (histogram.high - histogram.low) / counts.length : 0;
    const digits = (/** @type {number} */ value) => Number(value.toPrecision(10));
    return counts.map((/** @type {number} */ count, /** @type {number} */ index) => {
      const from = digits(histogram.low + index * wide),
        to = digits(from + wide),
        isLast = index === counts.length - 1;
      return {
        from,
        to,
        count,
        where: `reward >= ${from} and reward ${isLast ? "<=" : "<"} ${isLast ? histogram.high : to}`,
      };
    });
  }

  function Charts({ run, summary, range, total }) {
    const bins = histogramBins(summary.histogram),
      phases = (summary.latency ?? []).filter((/** @type {any} */ phase) => phase.phase !== "all");
    const points = summary.pass_at_k ?? [],
      at = rolloutsAt(run);
    const count = 1 + Number(bins.length > 0) + Number(points.length > 1) + Number(phases.length > 0);
    return html`<div class=${`grid g${count} charts`}>
      ${bins.length ? html`<${ui.Card} title="Reward" note=${`${format.count(summary.reward.n)} scored, √ scale`}><${charts.Histogram} bins=${bins} range=${range} addressOf=${at} total=${summary.reward.n} /><//>` : null}
      ${points.length > 1 ? html`<${ui.Card} title="pass@k" note="reward = 1, any of k"><${charts.PassAtK} points=${points} /><//>` : null}
      ${phases.length ? html`<${ui.Card} title="Time by phase" note="median, p95, share"><${charts.PhaseTimes} phases=${phases} addressOf=${at} /><//>` : null}
      <${Outcomes} run=${run} summary=${summary} total=${total} /></div>`;
  }

  function Health({ run, findings }) {
    const look = findings.filter(
      (/** @type {any} */ finding) => finding.level === "error" || finding.level === "warning",
    ).length;
    return html`<${ui.Card} title="Health" note=${look ? `${format.plural(look, "finding")} ${look === 1 ? "needs" : "need"} a look` : "nothing needs a look"} flush><ul class="find">${findings.map(
      (/** @type {any} */ finding) => {
        const [level, icon] = LEVELS[/** @type {keyof LEVELS} */ (finding.level)] ?? LEVELS.info;
        const page = finding.tasks || finding.group ? "tasks" : "rollouts";
        const noun = page === "tasks" ? "task" : "rollout";
        return html`<li key=${finding.title}><span class=${`sev ${level}`}><${Icon} name=${icon} /></span><span class="what">${finding.title}</span>${finding.detail ? html`<span class="why">${finding.detail}</span>` : null}${finding.where || finding.group ? html`<a class="btn sm act" href=${router.address(run, page, [], { where: finding.where, group: finding.group })}>${format.plural(finding.count, noun)}<${Icon} name="right" small /></a>` : null}</li>`;
      },
    )}</ul><//>`;
  }

  function Subsets({ run, subsets, range }) {
    return html`<${ui.Card} title="Subsets" note="mean reward, 95 % interval" flush><div class="scrollx gap-top-small" tabindex="0" role="region" aria-label="Subsets"><table class="tbl"><thead><tr><th>Subset</th><th class="n">Tasks</th><th class="only-wide w186"><span class="ends"><span>${format.value(range[0])}</span><span>${format.value(range[1])}</span></span></th><th class="n">Mean</th></tr></thead>
      <tbody>${subsets.map((/** @type {any} */ subset) => html`<tr key=${`${subset.name} ${subset.value}`} data-tip=${`${format.number(subset.mean)}${subset.interval_95 ? `, 95 % interval ${format.interval(subset.interval_95)}` : ""}`}><td class="ell"><a class="plain-link" href=${rolloutsAt(run)(subset.where)}><span class="t3">${subset.name}:</span> ${subset.value}</a></td><td class="n t2">${format.count(subset.tasks)}</td><td class="only-wide"><${charts.Forest} value=${subset.mean} low=${subset.interval_95?.[0]} high=${subset.interval_95?.[1]} from=${range[0]} to=${range[1]} width=${166} /></td><td class="n"><${ui.RewardChip} reward=${subset.mean} range=${range} digits=${3} cell /></td></tr>`)}</tbody></table></div><//>`;
  }

  const Folded = ({ title, value }) =>
    html`<details class="card fold-card"><summary><${Icon} name="right" small extra="chev" />${title}</summary><div class="scrollx" tabindex="0" role="region" aria-label=${title}><pre class="code">${JSON.stringify(value, null, 2)}</pre></div></details>`;

  function allRow(/** @type {any} */ matrix) {
    return matrix.all ?? matrix.rows.find((/** @type {any} */ row) => row.agent === null) ?? null;
  }

  function OverviewPage({ route, runs, summary }) {
    if (!summary) return html`<${ui.Skeleton} />`;
    const run = route.run,
      range = /** @type {[number, number]} */ (summary.scale ?? rangeOf(summary));
    const total = (summary.outcomes ?? []).reduce(
      (/** @type {number} */ sum, /** @type {any} */ entry) => sum + entry.count,
      0,
    );
    const { health = [], subsets = [], matrix, recorded_metrics: recorded } = summary;
    const annotations = gymView.annotations?.Summary;
    return html`<div class="page stack">${gymView.Reading ? html`<${gymView.Reading} summary=${summary} />` : null}
      <${Identity} route=${route} runs=${runs} summary=${summary} />
      ${
        total === 0
          ? html`<section class="card"><${ui.Empty} title="No rollout is stored yet" art="bars"><p>${summary.state === "running" ? "This page fills as soon as the first rollout is finished." : "The run has no finished rollout."}</p><//></section>`
          : html`
      <${Headline} run=${run} runs=${runs} summary=${summary} range=${range} />
      <${Charts} run=${run} summary=${summary} range=${range} total=${total} />
      ${
        health.length && subsets.length
          ? html`<div class="grid g21"><${Health} run=${run} findings=${health} /><${Subsets} run=${run} subsets=${subsets} range=${range} /></div>`
          : health.length
            ? html`<${Health} run=${run} findings=${health} />`
            : subsets.length
              ? html`<${Subsets} run=${run} subsets=${subsets} range=${range} />`
              : null
      }
      ${annotations && !api.isBundle ? html`<${annotations} run=${run} />` : null}
      ${matrix?.rows.length ? html`<${ui.Card} title="Metrics by agent" note="a cell leads to its rollouts" flush><${gymView.Matrix} matrix=${{ ...matrix, rows: matrix.rows.filter((/** @type {any} */ row) => row.agent !== null) }} run=${run} range=${range} all=${allRow(matrix)} /><//>` : null}
      ${recorded?.rows.length ? html`<${ui.Card} title="Recorded by the verifiers" note="mean over the rollouts that have the value" flush><${gymView.RecordedMetrics} recorded=${recorded} /><//>` : null}`
      }
      ${summary.identity ? html`<${Folded} title="Run identity" value=${summary.identity} />` : null}${summary.metrics ? html`<${Folded} title="All metrics" value=${summary.metrics} />` : null}</div>`;
  }

  const rangeOf = (/** @type {any} */ summary) => [
    Math.min(0, summary.histogram?.low ?? 0),
    Math.max(1, summary.histogram?.high ?? 1),
  ];
  gymView.rewardRange = (/** @type {any} */ summary) => summary?.scale ?? (summary ? rangeOf(summary) : [0, 1]);

  gymView.pages.overview = { component: OverviewPage, title: () => "Overview" };
})();
