"use strict";
// A run in progress: planned, running, done, rate, time left, what the oldest rollouts wait for, rewards so far.
(() => {
  const { html, Icon, api, format, router, ui, charts, useState, useEffect, useRef, useData, useWidth } = gymView;
  const UPDATE_MS = 2000;
  const OUTCOMES = ["scored", "limit", "failed", "cancelled"];

  function useTicks(/** @type {boolean} */ isOn) {
    const [tick, setTick] = useState(0);
    useEffect(() => {
      if (!isOn) return undefined;
      const timer = setInterval(() => {
        if (!document.hidden) setTick((/** @type {number} */ old) => old + 1);
      }, UPDATE_MS);
      return () => clearInterval(timer);
    }, [isOn]);
    return tick;
  }

  function Progress({ live, run }) {
    const { planned, done, outcomes = {} } = live,
      running = live.running ?? 0;
    const rest = planned === undefined || planned === null ? 0 : Math.max(0, planned - done - running);
    const parts = [
      ...OUTCOMES.map((outcome) => ({
        name: outcome,
        count: outcomes[outcome] ?? 0,
        look: `mark-${outcome}`,
        where: `outcome == "${outcome}"`,
      })),
      { name: "running", count: running, look: "run", where: "" },
      { name: "planned", count: rest, look: "planned", where: "" },
    ].filter(({ count }) => count);
    return html`<div class="progressbox"><div class="prog" role="progressbar" aria-valuenow=${planned ? Math.floor((100 * done) / planned) : undefined} aria-valuemin="0" aria-valuemax="100" aria-label=${`${format.count(done)}${planned ? ` of ${format.count(planned)}` : ""} done`}>${parts.map(({ name, count, look }) => html`<i key=${name} class=${look} style=${{ flexGrow: String(count) }}></i>`)}</div>
      <div class="lg gap-top">${parts.map(({ name, count, look, where }) => html`<span key=${name}><i class=${look}></i>${where ? html`<a class="plain-link" href=${router.address(run, "rollouts", [], { where })}><b>${format.count(count)}</b> ${name}</a>` : html`<b>${format.count(count)}</b> ${name}`}</span>`)}</div></div>`;
  }

  function clock(/** @type {number} */ secondsFromNow) {
    return format.time(Date.now() + secondsFromNow * 1000);
  }

  function Figures({ live }) {
    const { rate, left, reward, cost } = live;
    const tiles = [
      [
        "Done",
        html`${format.count(live.done)}${live.planned ? html` <span class="of">of ${format.count(live.planned)}</span>` : null}`,
        live.planned ? format.percent(live.done / live.planned, 0) : "",
      ],
    ];
    if (rate)
      tiles.push([
        "Rate",
        html`${format.number(rate.per_minute, rate.per_minute < 10 ? 1 : 0)} <span class="of">a minute</span>`,
        rate.earlier_per_minute === undefined || rate.earlier_per_minute === null
          ? ""
          : `${format.number(rate.earlier_per_minute, rate.earlier_per_minute < 10 ? 1 : 0)} a minute without rejected calls`,
      ]);
    if (left)
      tiles.push([
        "Time left",
        format.duration(left.seconds),
        `at ${clock(left.seconds)}${left.low === undefined || left.low === null ? "" : `, or ${clock(left.low)} – ${clock(left.high)}`}`,
      ]);
    if (reward && reward.mean !== null)
      tiles.push([
        "Mean reward so far",
        format.number(reward.mean),
        `${format.interval(reward.interval_95) || `of ${format.plural(reward.n, "rollout")}`}, easy tasks end first`,
      ]);
    if (cost)
      tiles.push([
        "Cost so far",
        format.money(cost.dollars),
        [
          cost.expected === undefined || cost.expected === null
            ? ""
            : `about ${format.money(cost.expected)} in the end`,
          cost.limit ? `limit ${format.money(cost.limit)}` : "",
        ]
          .filter(Boolean)
          .join(", "),
      ]);
    return html`<div class=${`big3 n${tiles.length}`}>${tiles.map(([label, value, note]) => html`<div key=${label}><span class="lab">${label}</span><div class="mid">${value}</div><small>${note}</small></div>`)}</div>`;
  }

  function isRejected(/** @type {string | undefined} */ reason) {
    return /^(rate limited|overloaded) /.test(reason ?? "");
  }

  /** The server of a call to a model or verifier, the tool of a call to a tool. */
  function shortCall(/** @type {any} */ { waits_for: call = "", phase }) {
    const [server, path = ""] = call.split(" ");
    return phase === "agent" ? call : phase === "tools" && path ? path.split("/").at(-1) : server;
  }

  /** How many of the running rollouts are in each phase. */
  function PhaseBar({ phases, running }) {
    const bar = useRef(null),
      width = useWidth(bar);
    return html`<div class="byphase"><h3>All ${format.count(running)}, by phase</h3><span class="timebar" ref=${bar} role="img" aria-label=${phases.map((/** @type {any} */ { phase, count }) => `${count} in ${phase}`).join(", ")}>${phases.map((/** @type {any} */ { phase, count }) => html`<i key=${phase} class=${`ph-${phase}`} style=${{ flexGrow: String(count) }} data-tip=${`${format.plural(count, "rollout")} in ${phase}`}>${ui.fitting(`${phase} ${count}`, (width * count) / running)}</i>`)}</span></div>`;
  }

  function Oldest({ live }) {
    const isPhone = gymView.table.usePhone(),
      hasReasons = !isPhone && live.oldest.some((/** @type {any} */ each) => each.reason);
    const phases = Object.entries(live.phases ?? {}).map(([phase, count]) => ({ phase, count: Number(count) }));
    return html`<${ui.Card} title="What the oldest rollouts wait for" note=${live.running === undefined ? "" : `${format.count(live.running)} running`} flush><div class="scrollx gap-top-small" tabindex="0" role="region" aria-label="Oldest rollouts"><table class="tbl"><thead><tr><th>Rollout</th><th class="only-wide">Agent</th><th class="only-wide">Phase</th><th>Waits for</th><th class="n">For</th>${hasReasons ? html`<th>State</th>` : null}</tr></thead><tbody>${live.oldest.map((/** @type {any} */ each, /** @type {number} */ index) => html`<tr key=${`${each.task}:${each.rollout}`}><td class="mono small-mono">${each.task}:${each.rollout}</td><td class="only-wide mono small-mono">${each.agent ?? ""}</td><td class="only-wide">${each.phase ?? ""}</td><td class="mono small-mono" data-tip=${each.waits_for || undefined}>${shortCall(each)}${isPhone && each.reason ? html`<div class=${`wait-reason ${isRejected(each.reason) ? "rejected" : "t2"}`}>${each.reason}</div>` : null}</td><td class=${`n ${index === 0 ? "strong" : ""}`}>${format.duration(each.seconds)}</td>${hasReasons ? html`<td class=${`wait-reason ${isRejected(each.reason) ? "rejected" : "t2"}`}>${each.reason ?? "running"}</td>` : null}</tr>`)}</tbody></table></div>
      ${phases.length ? html`<${PhaseBar} phases=${phases} running=${live.running} />` : null}<//>`;
  }

  function Latest({ live, run, range, hasTitle }) {
    return html`${hasTitle ? html`<h3 class="latest-title">Just finished</h3>` : null}<div class="latest">${live.latest.map((/** @type {any} */ row) => html`<a class="row plain-link" key=${`${row.task}:${row.rollout}`} href=${router.rollout(run, row.task, row.rollout)}><span class="mono t3 small-mono">${row.task}:${row.rollout}</span><span class="ell grow">${row.question}</span>${row.reward === null ? html`<${ui.OutcomeBadge} outcome=${row.outcome} />` : html`<${ui.RewardChip} reward=${row.reward} range=${range} />`}</a>`)}</div>`;
  }

  function Rejections({ live }) {
    return live.rejections.map(
      (/** @type {any} */ { server, status, rollouts }) =>
        html`<section class="fail warn limited" key=${`${server} ${status}`} aria-label="Rejected calls"><span class="sev w"><${Icon} name="warning" /></span><div class="grow"><b>${server} ${status === 429 ? "is limiting our rate" : "is overloaded"}: ${format.count(rollouts)} of ${format.plural(live.running ?? rollouts, "running rollout")} ${rollouts === 1 ? "waits" : "wait"} after a ${status}</b><p class="t2 gap-top-small">Calls are sent again after growing pauses; no rollout has failed for this. ${status === 429 ? "Ask the provider for a higher limit, or lower" : "Give the endpoint more capacity, or lower"} <code>--concurrency</code>.</p></div></section>`,
    );
  }

  function LivePage({ route, runs, summary }) {
    const [isPaused, setPaused] = useState(false),
      tick = useTicks(!isPaused);
    const { data: live, error, reload } = useData((signal) => api.live(route.run, signal), [route.run, tick]);
    const run = runs.find((/** @type {any} */ each) => each.number === route.run) ?? {},
      range = gymView.rewardRange(summary);
    if (error && !live) return html`<${ui.ErrorState} error=${error} retry=${reload} />`;
    if (!live) return html`<${ui.Skeleton} rows=${5} />`;
    const isRunning = live.state === "running",
      hasMinutes = live.minutes?.length > 0,
      hasLatest = live.latest?.length > 0;
    return html`<div class="page stack"><section class="card" aria-label="Progress"><div class="runhead"><div class="grow"><div class="row"><h1>${run.title ?? run.name}</h1>${isRunning ? html`<span class="pill live"><i></i>running</span>` : html`<span class="pill">${live.state}</span>`}</div><div class="sub"><span class="mono small-mono">${run.model ?? ""}</span>${run.environment ? html`<span><span class="t3 dot">·</span>${run.environment}</span>` : null}${live.started_at ? html`<span><span class="t3 dot">·</span>started ${format.date(live.started_at)}, ${format.duration(live.seconds)} ${isRunning ? "ago" : "in all"}</span>` : null}</div></div>
        <div class="row only-wide">${isRunning ? html`<button type="button" class="btn" aria-pressed=${String(isPaused)} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Continue updates" : "Pause updates"}</button>` : html`<a class="btn" href=${router.address(route.run)}>Overview</a>`}</div></div>
        <${Progress} live=${live} run=${route.run} /><${Figures} live=${live} /></section>
      ${live.rejections?.length ? html`<${Rejections} live=${live} />` : null}
      ${live.oldest?.length || hasMinutes || hasLatest ? html`<div class=${live.oldest?.length ? "grid g21" : ""}>${live.oldest?.length ? html`<${Oldest} live=${live} />` : null}${hasMinutes || hasLatest ? html`<${ui.Card} title=${hasMinutes ? "Finished per minute" : "Just finished"} note=${hasMinutes && live.started_at ? `since ${format.time(live.started_at)}` : ""}>${hasMinutes ? html`<${charts.MinuteBars} minutes=${live.minutes} />${live.minutes.some((/** @type {any} */ minute) => minute.rejected) ? html`<div class="lg gap-top-small"><span><i class="mark-scored"></i>normal</span><span><i class="mark-limit"></i>calls rejected</span></div>` : null}` : null}${hasLatest ? html`<${Latest} live=${live} run=${route.run} range=${range} hasTitle=${hasMinutes} />` : null}<//>` : null}</div>` : null}
      ${live.reward_so_far?.length > 1 ? html`<${ui.Card} title="Reward so far" note="running mean and 95 % interval, clustered by task"><${charts.RunningMean} points=${live.reward_so_far} planned=${live.planned} reference=${live.earlier_run ?? null} /><//>` : null}</div>`;
  }

  gymView.pages.live = {
    component: LivePage,
    title: (/** @type {any} */ { progress }) => (progress.status ? `Running, ${progress.status}` : "Live"),
  };
})();
