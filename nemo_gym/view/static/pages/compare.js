"use strict";
// Compare two or more runs: verdict, tasks of both, flips, conversations side by side, subsets, cost and speed.
(() => {
  const { html, api, charts, format, router, ui, useData, useKeys, useMemo, useState } = gymView;
  const LETTERS = "ABCDEFGH",
    MOST_RUNS = 8,
    SHOWN_FLIPS = 12;
  const VERDICTS = { better: "better", worse: "worse", "no clear change": "no clear change" };

  const points = (/** @type {any} */ value, /** @type {boolean} */ isPoints) =>
    value === null || value === undefined ? value : isPoints ? value * 100 : value;
  const formatP = (/** @type {number | null} */ p) =>
    p === null || p === undefined ? "–" : p < 0.001 ? "< 0.001" : String(Number(p.toPrecision(2)));

  /** The half width of an axis around 0 that holds all intervals. */
  function halfWidth(/** @type {any[]} */ rows, least = 0.02) {
    return (
      Math.max(least, ...rows.flatMap((row) => (row.interval_95 ?? [row.mean_difference ?? 0]).map(Math.abs))) * 1.05
    );
  }

  function unitText(/** @type {string} */ unit, /** @type {number} */ value) {
    if (unit === "dollars") return format.money(value);
    if (unit === "seconds") return format.seconds(value);
    if (unit === "share") return format.percent(value, 1);
    return unit === "count" ? format.count(Math.round(value)) : format.number(value, 1);
  }

  function RunPickers({ numbers, runs, onChange }) {
    const title = (/** @type {any} */ run) => [run.title ?? run.name, run.model].filter(Boolean).join(" · ");
    const pick = (/** @type {number} */ place, /** @type {number} */ number) =>
      onChange(
        numbers.map((/** @type {number} */ each, /** @type {number} */ index) =>
          index === place ? number : each === number ? numbers[place] : each,
        ),
      );
    const unused = runs.filter((/** @type {any} */ run) => !numbers.includes(run.number));
    return html`${numbers.map((/** @type {number} */ number, /** @type {number} */ place) => html`<label class="row runpick" key=${place}><${ui.RunTag} letter=${LETTERS[place]} /><select class="btn" aria-label=${`Run ${LETTERS[place]}`} value=${String(number)} onChange=${(/** @type {any} */ event) => pick(place, Number(event.target.value))}>${runs.map((/** @type {any} */ run) => html`<option key=${run.number} value=${String(run.number)} selected=${run.number === number}>${title(run)}</option>`)}</select>${numbers.length > 2 ? html`<button type="button" class="btn ghost sm icon" aria-label=${`Remove run ${LETTERS[place]}`} onClick=${() => onChange(numbers.filter((/** @type {number} */ each) => each !== number))}><${ui.Icon} name="close" small /></button>` : null}</label>`)}
      ${numbers.length === 2 ? html`<button type="button" class="btn ghost icon" aria-label="Swap A and B" data-tip="Swap A and B  x" onClick=${() => onChange([...numbers].reverse())}>⇄</button>` : null}
      ${unused.length && numbers.length < MOST_RUNS ? html`<button type="button" class="btn ghost" onClick=${() => onChange([...numbers, unused[0].number])}>+ Add a run</button>` : null}`;
  }

  /** What differs in how the runs were made; breaking differences are an alert. */
  function Differences({ result }) {
    const [isOpen, setOpen] = useState(false);
    if (!result.differences.length) return null;
    const breaking = result.differences.filter((/** @type {any} */ each) => each.breaking),
      shown = isOpen ? result.differences : result.differences.slice(0, Math.max(3, breaking.length));
    return html`<section class=${`card ${breaking.length ? "fail warn" : "padded"}`} aria-label="How the runs differ" role=${breaking.length ? "alert" : undefined}><h2>${breaking.length ? "These runs are not comparable" : "How the runs differ"}</h2>
      <dl class="kv gap-top">${shown.map((/** @type {any} */ each, /** @type {number} */ index) => html`<dt key=${`k${index}`}>${each.kind}</dt><dd key=${`v${index}`}>${each.text}</dd>`)}</dl>
      ${shown.length < result.differences.length ? html`<button type="button" class="btn sm ghost gap-top" onClick=${() => setOpen(true)}>Show all ${format.count(result.differences.length)}</button>` : null}</section>`;
  }

  /** The difference with its interval on an axis around 0. */
  function DifferenceLine({ result }) {
    if (result.mean_difference === null) return null;
    const half = halfWidth([result]),
      isPoints = result.points,
      [low, high] = result.interval_95 ?? [result.mean_difference, result.mean_difference];
    const look = result.verdict === "better" ? "up" : result.verdict === "worse" ? "down" : "same",
      unit = isPoints ? " points" : "";
    const draw = (/** @type {number} */ width) => {
      const x = charts.scale(-half, half, 12, width - 12),
        shown = points(result.mean_difference, isPoints);
      return html`<line class="ax" x1="12" x2=${width - 12} y1="40" y2="40" />
        ${charts.ticks(-half * 0.9, half * 0.9, 4).map((/** @type {number} */ value) => html`<g key=${value}><line class="ax" x1=${x(value)} x2=${x(value)} y1="36" y2="44" /><text x=${x(value)} y="62" text-anchor="middle">${format.signed(points(value, isPoints), Math.abs(points(half, isPoints)) < 5 ? 1 : 0)}</text></g>`)}
        <line class="reference" x1=${x(0)} x2=${x(0)} y1="26" y2="52" />
        ${result.interval_95 ? html`<rect class=${`interval ${look}`} x=${x(low)} y="32" width=${Math.max(2, x(high) - x(low))} height="16" rx="4" />` : null}
        <line class=${`middle ${look}`} x1=${x(result.mean_difference)} x2=${x(result.mean_difference)} y1="26" y2="54" />
        <text class="v" x=${Math.min(width - 60, Math.max(60, x(result.mean_difference)))} y="18" text-anchor="middle">${look === "up" ? "▲ " : look === "down" ? "▼ " : ""}${format.signed(shown, isPoints ? 1 : 3)}${unit}</text>`;
    };
    const text = `Difference ${format.signed(points(result.mean_difference, isPoints), isPoints ? 1 : 3)}${unit}${result.interval_95 ? `, 95 % interval ${format.interval([points(low, isPoints), points(high, isPoints)], 1)}` : ""}`;
    const table = {
      head: ["Difference", "Low", "High", "p"],
      rows: [
        [format.signed(result.mean_difference, 4), format.signed(low, 4), format.signed(high, 4), formatP(result.p)],
      ],
    };
    return html`<${charts.Chart} draw=${draw} height=${74} label=${text} table=${table} />`;
  }

  function Verdict({ result }) {
    return html`<section class="card say-card" aria-label="Verdict"><div class="grid g21"><div><p class="say">${result.sentence.replaceAll(" – ", "\u00a0–\u2060\u00a0").replaceAll("95 % CI ", "95\u00a0%\u00a0CI\u00a0")}</p>${result.details ? html`<p class="t2 gap-top">${result.details}</p>` : null}</div><${DifferenceLine} result=${result} /></div></section>`;
  }

  function Tasks({ result, letters, addressOf }) {
    const isUnit = result.points,
      low = Math.min(0, ...result.scatter.map((/** @type {any} */ each) => Math.min(each.a, each.b))),
      high = Math.max(1, ...result.scatter.map((/** @type {any} */ each) => Math.max(each.a, each.b)));
    const marks = result.scatter.map((/** @type {any} */ each) => ({
      x: each.a,
      y: each.b,
      n: each.count,
      href: addressOf(each.task),
      tip: `${letters[0]} ${format.number(each.a, 2)} → ${letters[1]} ${format.number(each.b, 2)}\n${each.count === 1 ? `task ${each.task}` : `${format.count(each.count)} tasks, first task ${each.task}`}`,
    }));
    return html`<${ui.Card} title="Tasks" note="size = number of tasks">${marks.length ? html`<${charts.Scatter} points=${marks} xLabel=${`mean reward in ${letters[0]}`} yLabel=${`mean reward in ${letters[1]}`} corners=${letters.map((/** @type {string} */ letter) => `${letter} better`)} range=${isUnit ? [0, 1] : [low, high]} />` : html`<p class="t3">No task is scored in both runs.</p>`}<//>`;
  }

  function Flips({ result, letters, selected, onSelect, direction, onDirection, range }) {
    const [isOpen, setOpen] = useState(false);
    const rows = flipRows(result, direction),
      shown = isOpen ? rows : rows.slice(0, SHOWN_FLIPS),
      { up, down, threshold } = result.flips;
    return html`<${ui.Card} title="Flips" note=${`mean moved across ${format.number(threshold, 1)}`} flush>
      <div class="row flips-head"><${ui.Segments} label="Direction of the flips" options=${[["all", "All", up + down], ["up", "▲ Up", up], ["down", "▼ Down", down]]} value=${direction} onChange=${onDirection} /><span class="grow"></span><span class="t3 only-wide small"><kbd>j</kbd> <kbd>k</kbd> compare below</span></div>
      ${rows.length ? html`<div class="scrollx" tabindex="0" role="group" aria-label="Table"><table class="tbl flips-table"><thead><tr><th class="w72">Task</th><th>Question</th><th class="n w72">${letters[0]}</th><th class="n w72">${letters[1]}</th><th class="n w100">Change</th></tr></thead><tbody>${shown.map((/** @type {any} */ row) => html`<tr key=${row.task} class=${row.task === selected ? "selected" : ""} aria-selected=${String(row.task === selected)}><td class="mono t2 small-mono">${row.task}</td><td class="ell"><button type="button" class="linklike ell" data-tip=${[row.question, row.agent].filter(Boolean).join("\n")} onClick=${() => onSelect(row.task)}>${row.question || `Task ${row.task}`}</button></td><td class="n"><${ui.RewardChip} reward=${row.first} range=${range} /></td><td class="n"><${ui.RewardChip} reward=${row.second} range=${range} /></td><td class="n"><${ui.Delta} value=${row.second - row.first} /></td></tr>`)}</tbody></table></div>` : html`<p class="t3 flips-empty">No task flipped ${direction === "all" ? "" : direction}.</p>`}
      ${shown.length < rows.length ? html`<div class="flips-more"><button type="button" class="btn sm ghost" onClick=${() => setOpen(true)}>All ${format.count(rows.length)} flips</button></div>` : null}<//>`;
  }

  /** The flips of a direction; without any, the tasks that changed most. */
  function flipRows(/** @type {any} */ result, /** @type {string} */ direction) {
    const rows = result.flip_rows ?? [];
    return direction === "all"
      ? rows
      : rows.filter((/** @type {any} */ row) => (direction === "up") === row.second > row.first);
  }

  function textOf(/** @type {any} */ data) {
    return data.events
      .filter((/** @type {any} */ event) => event.side === "came")
      .map(
        (/** @type {any} */ event) =>
          `${event.kind === "message" ? "" : `[${event.kind.replace("_", " ")}${event.name ? ` ${event.name}` : ""}]\n`}${event.text}`,
      )
      .join("\n\n");
  }

  /** The prompt of a rollout as text: both runs should have been asked the same. */
  const promptOf = (/** @type {any} */ data) =>
    JSON.stringify(
      data.events
        .filter((/** @type {any} */ event) => event.side === "asked")
        .map((/** @type {any} */ event) => [event.role, event.text]),
    );

  function Column({ letter, run, task, data, repeat, addressOf, range, mode, scored }) {
    const repeats = data.repeats ?? [];
    return html`<div><div class="colh"><${ui.RunTag} letter=${letter} /><b class="nowrap">Repeat ${repeat}</b>${data.facts.outcome === "scored" ? html`<${ui.RewardChip} reward=${data.facts.reward} range=${range} />` : html`<${ui.OutcomeBadge} outcome=${data.facts.outcome} />`}<span class="grow"></span>${repeats.length > 1 ? html`<${ui.RepeatStrip} run=${run} task=${task} repeats=${repeats} current=${repeat} range=${range} label=${`Repeats of run ${letter}`} addressOf=${addressOf} />` : null}<a class="btn sm ghost" href=${router.rollout(run, task, repeat)}>Open</a></div>
      <div class="in">${mode === "everything" ? html`<${gymView.conversation.Conversation} events=${data.events} turns=${data.turns ?? []} compact />` : null}
        ${data.failure ? html`<p class="oc failed">${data.failure.cause}</p>` : null}${scored && data.verdict?.why ? html`<p class="t2 gap-top">${data.verdict.why}</p>` : null}${data.verdict?.extracted !== undefined ? html`<p class="t2 gap-top">Extracted <code>${gymView.diff.readable(data.verdict.extracted) || "nothing"}</code></p>` : null}</div></div>`;
  }

  /** Load one rollout of a task in a run: the repeat asked for, else the first one. */
  async function loadSide(
    /** @type {number} */ run,
    /** @type {number} */ task,
    /** @type {number | null} */ repeat,
    /** @type {any} */ signal,
  ) {
    const query = { count: 500 };
    if (repeat !== null) return { repeat, data: await api.rollout({ run, task, repeat }, query, signal) };
    const page = await api.rollouts(run, { where: `task == ${task}`, count: 1 }, signal);
    if (!page.rows.length) throw new Error(`Task ${task} is not in run ${run}.`);
    const first = page.rows[0].rollout;
    return { repeat: first, data: await api.rollout({ run, task, repeat: first }, query, signal) };
  }

  function SideBySide({ numbers, letters, task, question, range, repeats, addressOf }) {
    const [mode, setMode] = useState("differences"),
      [showsPrompt, setShowsPrompt] = useState(false);
    const { data, error, reload } = useData(
      (signal) =>
        Promise.all(
          numbers.map((/** @type {number} */ number, /** @type {number} */ place) =>
            loadSide(number, task, repeats[place], signal),
          ),
        ),
      [task, ...numbers, ...repeats],
    );
    if (error) return html`<${ui.ErrorState} error=${error} retry=${reload} />`;
    if (!data || data[0].data.facts.task !== task)
      return html`<section class="card"><p class="t3 padded" role="status">Loading task ${task}</p></section>`;
    const isSamePrompt = promptOf(data[0].data) === promptOf(data[1].data);
    const prompts = data.map((side) =>
      side.data.events
        .filter((/** @type {any} */ event) => event.side === "asked")
        .map((/** @type {any} */ event) => `${event.role}: ${event.text}`)
        .join("\n\n"),
    );
    return html`<section class="card" aria-label=${`Task ${task}, side by side`}><header class="sbs-head"><h2>Task ${task}, side by side</h2><span class="note ell">${question}</span><span class="grow"></span><${ui.Segments} label="What to show" options=${[["differences", "Differences"], ["everything", "Everything"]]} value=${mode} onChange=${setMode} /></header>
      <div class="samefold"><${ui.Icon} name=${isSamePrompt ? "check" : "warn"} small />${isSamePrompt ? "System and user messages are the same in both" : "The messages to the model differ"} <button type="button" class="btn sm ghost" aria-expanded=${String(showsPrompt)} onClick=${() => setShowsPrompt(!showsPrompt)}>${showsPrompt ? "Hide" : "Show"}</button></div>
      ${showsPrompt ? html`<div class="padded"><${gymView.diff.TextDiff} a=${prompts[0]} b=${prompts[1]} labels=${letters} /></div>` : null}
      <div class="sbs">${data.map((side, place) => html`<${Column} key=${place} letter=${letters[place]} run=${numbers[place]} task=${task} data=${side.data} repeat=${side.repeat} addressOf=${addressOf(place)} range=${range} mode=${mode} scored />`)}</div>
      ${mode === "differences" ? html`<div class="padded"><${gymView.diff.TextDiff} key=${`${task}-${data.map((side) => side.repeat).join("-")}`} a=${textOf(data[0].data)} b=${textOf(data[1].data)} labels=${letters} /></div>` : null}</section>`;
  }

  function Subsets({ result, letters }) {
    if (!result.subsets.length) return null;
    const whole = {
      name: "",
      value: "All tasks",
      tasks: result.tasks,
      means: result.means,
      mean_difference: result.mean_difference,
      interval_95: result.interval_95,
      verdict: result.verdict,
      p_corrected: result.p,
    };
    const rows = [whole, ...result.subsets],
      half = halfWidth(rows),
      isPoints = result.points;
    const edge = format.number(points(half, isPoints), isPoints ? 0 : 2);
    return html`<${ui.Card} title="By agent and subset" note=${`${isPoints ? "points, " : ""}${letters[1]} − ${letters[0]}, 95 % interval, p corrected (Holm)`} flush><div class="scrollx" tabindex="0" role="group" aria-label="Table"><table class="tbl subsets-table"><thead><tr><th>Subset</th><th class="only-wide n">Tasks</th><th class="only-wide n">${letters[0]}</th><th class="only-wide n">${letters[1]}</th><th class="n">Change</th><th class="only-wide forest-head"><span>−${edge}</span><span>0</span><span>+${edge}</span></th><th class="only-wide n">p</th><th>Verdict</th></tr></thead><tbody>${rows.map((row, index) => html`<tr key=${index} class=${index ? "" : "total"}><td>${row.name && row.name !== "agent" ? `${row.name}: ` : ""}<span class=${row.name === "agent" ? "mono small-mono" : ""}>${row.value}</span></td><td class="only-wide n t2">${format.count(row.tasks)}</td><td class="only-wide n">${format.number(row.means[0])}</td><td class="only-wide n">${format.number(row.means[1])}</td><td class="n"><${ui.Delta} value=${points(row.mean_difference, isPoints)} digits=${isPoints ? 1 : 3} /></td><td class="only-wide"><${charts.Forest} value=${row.mean_difference} low=${row.interval_95?.[0]} high=${row.interval_95?.[1]} from=${-half} to=${half} zero verdict=${row.verdict} width=${130} /></td><td class="only-wide n t2">${formatP(row.p_corrected)}</td><td class=${row.verdict === "no clear change" ? "t3" : ""}>${VERDICTS[/** @type {keyof VERDICTS} */ (row.verdict)]}</td></tr>`)}</tbody></table></div><//>`;
  }

  /** A change that is shown as 0 has no sign. */
  const unsignedZero = (/** @type {number} */ value) => (Math.abs(value) < 0.5 ? 0 : value);

  function Costs({ result, letters }) {
    if (!result.costs.length) return null;
    const change = (/** @type {any} */ row) =>
      row.change === null
        ? "–"
        : row.unit === "share"
          ? `${format.signed(row.change * 100, 1)} points`
          : `${format.signed(unsignedZero(row.change * 100), 0)} %`;
    return html`<${ui.Card} title="Cost and speed" note="per rollout" flush><div class="scrollx" tabindex="0" role="group" aria-label="Table"><table class="tbl"><thead><tr><th><span class="sr">Fact</span></th><th class="n">${letters[0]}</th><th class="n">${letters[1]}</th><th class="n">Change</th></tr></thead><tbody>${result.costs.map((/** @type {any} */ row) => html`<tr key=${row.name}><td>${row.title}</td><td class="n t2">${unitText(row.unit, row.values[0])}</td><td class="n">${unitText(row.unit, row.values[1])}</td><td class="n strong">${change(row)}</td></tr>`)}</tbody></table></div><//>`;
  }

  function TwoRuns({ route, numbers, result, range }) {
    const { first, second, ...others } = route.query;
    const swap = () =>
      router.go(router.compareAddress([...numbers].reverse(), { ...others, first: second, second: first }));
    return html`<${Verdict} result=${result} /><${Differences} result=${result} /><${Pair} route=${route} numbers=${numbers} all=${numbers} letters=${["A", "B"]} result=${result} range=${range} bindings=${[["x", "Swap A and B", swap]]} />`;
  }

  /** Tasks, flips, conversations, subsets and costs of two of the compared runs; `all` are those of the address. */
  function Pair({ route, numbers, all, letters, result, range, bindings = [] }) {
    const { query } = route,
      direction = query.flips ?? "all",
      rows = flipRows(result, direction);
    const fallback = (result.flip_rows ?? [])[0] ?? result.rows[0],
      task = query.task === undefined ? (fallback?.task ?? null) : Number(query.task);
    const { first, second, ...withoutRepeats } = query; // another task begins at its first repeats
    const addressWith = (/** @type {any} */ next) => router.compareAddress(all, { ...withoutRepeats, ...next });
    const set = (/** @type {any} */ next) => router.replace(addressWith(next));
    const repeatAddress = (/** @type {number} */ place) => (/** @type {number} */ repeat) =>
      router.compareAddress(all, { ...query, task, [place ? "second" : "first"]: String(repeat) });
    const move = (/** @type {number} */ step) => () => {
      const place = rows.findIndex((/** @type {any} */ row) => row.task === task),
        next = rows[Math.max(0, Math.min(rows.length - 1, place + step))];
      if (next) set({ task: next.task });
    };
    useKeys("Compare", [["j ArrowDown", "Next flip", move(1)], ["k ArrowUp", "Previous flip", move(-1)], ...bindings]);
    const question = useMemo(
      () =>
        [...(result.flip_rows ?? []), ...result.rows].find((/** @type {any} */ row) => row.task === task)?.question ??
        "",
      [result, task],
    );
    return html`<div class="grid g12"><${Tasks} result=${result} letters=${letters} addressOf=${(/** @type {number} */ each) => addressWith({ task: each })} /><${Flips} result=${result} letters=${letters} selected=${task} onSelect=${(/** @type {number} */ each) => set({ task: each })} direction=${direction} onDirection=${(/** @type {string} */ each) => set({ flips: each === "all" ? "" : each })} range=${range} /></div>
      ${task === null || Number.isNaN(task) ? null : html`<${SideBySide} numbers=${numbers} letters=${letters} task=${task} question=${question} range=${range} repeats=${[first, second].map((repeat) => (/^\d+$/.test(repeat ?? "") ? Number(repeat) : null))} addressOf=${repeatAddress} />`}
      <div class="grid g21"><${Subsets} result=${result} letters=${letters} /><${Costs} result=${result} letters=${letters} /></div>`;
  }

  /** The pair of the baseline and a chosen run, below the table of many runs. */
  function ChosenPair({ route, numbers, place, range }) {
    const pair = [numbers[0], numbers[place]],
      { data, error, reload } = useData(() => api.compare(pair), [pair.join(",")]);
    if (error) return html`<${ui.ErrorState} error=${error} retry=${reload} />`;
    if (!data) return html`<${ui.Skeleton} />`;
    return html`<h2 class="pair-title"><${ui.RunTag} letter="A" /> and <${ui.RunTag} letter=${LETTERS[place]} /></h2><${Differences} result=${data} /><${Pair} route=${route} numbers=${pair} all=${numbers} letters=${["A", LETTERS[place]]} result=${data} range=${range} />`;
  }

  function ManyRuns({ route, numbers, result, isPoints, range }) {
    const wanted = numbers.indexOf(Number(route.query.with ?? -1)),
      chosen = wanted > 0 ? wanted : 1;
    const hasModel = result.runs.some((/** @type {any} */ row) => row.model);
    const hasCost = result.runs.some((/** @type {any} */ row) => row.dollars !== undefined);
    const half = halfWidth(result.runs);
    const edge = format.number(points(half, isPoints), isPoints ? 0 : 2);
    return html`<section class="card" aria-label="Verdict"><div class="padded"><p class="say">${result.sentence}</p><p class="t2 gap-top">Each run against A, paired by task; p values are corrected for ${format.plural(result.runs.length - 1, "comparison")} (Holm).</p></div>
      <div class="scrollx" tabindex="0" role="group" aria-label="Table"><table class="tbl runs-compared"><thead><tr><th>Run</th>${hasModel ? html`<th class="only-wide">Model</th>` : null}<th class="n">Mean</th><th class="n">Against A</th><th class="only-wide forest-head wide"><span>−${edge}</span><span>0</span><span>+${edge}</span></th><th class="only-wide n">p</th><th class="only-wide">Flips</th><th>Verdict</th>${hasCost ? html`<th class="only-wide n">Cost</th>` : null}</tr></thead><tbody>${result.runs.map(
        (/** @type {any} */ row, /** @type {number} */ place) =>
          html`<tr key=${row.number} class=${place === chosen ? "selected" : ""}><td><span class="row"><${ui.RunTag} letter=${LETTERS[place]} />${place ? html`<a class="plain-link" aria-current=${place === chosen ? "true" : undefined} data-tip="Show its tasks below" href=${router.compareAddress(numbers, { with: row.number })}>${row.title ?? row.name}</a>` : (row.title ?? row.name)}</span></td>${hasModel ? html`<td class="only-wide mono t2 small-mono">${row.model}</td>` : null}<td class="n">${row.mean === null ? "–" : html`<${ui.RewardChip} reward=${row.mean} digits=${3} cell />`}</td><td class="n">${place ? html`<${ui.Delta} value=${points(row.mean_difference, isPoints)} digits=${isPoints ? 1 : 3} />` : html`<span class="t3">baseline</span>`}</td><td class="only-wide">${place && row.mean_difference !== null ? html`<${charts.Forest} value=${row.mean_difference} low=${row.interval_95?.[0]} high=${row.interval_95?.[1]} from=${-half} to=${half} zero verdict=${row.verdict} width=${240} />` : null}</td><td class="only-wide n t2">${place ? formatP(row.p_corrected) : ""}</td><td class="only-wide t2 num">${place ? `▲ ${row.flips.up}  ▼ ${row.flips.down}` : ""}</td><td class="verdict-cell">${
            !place
              ? ""
              : row.comparable
                ? row.verdict
                : html`<span data-tip=${row.differences
                    .filter((/** @type {any} */ each) => each.breaking)
                    .map((/** @type {any} */ each) => each.text)
                    .join("\n")}>not comparable</span>`
          }</td>${hasCost ? html`<td class="only-wide n">${row.dollars === undefined ? "" : format.money(row.dollars)}</td>` : null}</tr>`,
      )}</tbody></table></div></section>
      <${ChosenPair} key=${`${numbers[0]}-${numbers[chosen]}`} route=${route} numbers=${numbers} place=${chosen} range=${range} />`;
  }

  /** The repeats of each task, if there are several. */
  function repeatText(/** @type {any} */ { repeats }) {
    if (!repeats || Math.max(...repeats) < 2) return "";
    return repeats[0] === repeats[1] ? `, ${repeats[0]} repeats each` : `, ${repeats[0]} and ${repeats[1]} repeats`;
  }

  /** The digest of the rows of both runs, if both recorded it. */
  function dataText(/** @type {any} */ { runs }) {
    const [first, second] = runs.map((/** @type {any} */ run) => (run.data ?? "").split(":").at(-1).slice(0, 8));
    if (!first || !second) return "";
    return first === second ? `, same data ${first}` : `, other data: ${first} and ${second}`;
  }

  const numbersOf = (/** @type {any} */ route) =>
    [...new Set((route.parts[0] ?? "").split(",").map(Number))]
      .filter((number) => Number.isInteger(number) && number >= 0)
      .slice(0, MOST_RUNS);

  function ComparePage({ route, runs }) {
    const numbers = numbersOf(route),
      key = numbers.join(",");
    const { data, error, reload } = useData(
      () => (numbers.length < 2 ? Promise.resolve(null) : api.compare(numbers)),
      [key],
    );
    const onChange = (/** @type {number[]} */ next) => router.go(router.compareAddress(next));
    const first = runs?.find((/** @type {any} */ run) => run.number === numbers[0]),
      range = first?.scale ?? [0, 1];
    const head = html`<div class="row wraps compare-head"><h1 class="sr">Compare runs</h1><${RunPickers} numbers=${numbers} runs=${runs ?? []} onChange=${onChange} /><span class="grow"></span>${data && numbers.length === 2 && data.tasks !== undefined ? html`<span class="t3 small">${format.plural(data.tasks, "task")} in both${repeatText(data)}${dataText(data)}${data.only_first || data.only_second ? `, ${format.count(data.only_first)} only in A, ${format.count(data.only_second)} only in B` : ""}</span>` : null}</div>`;
    if (numbers.length < 2)
      return html`<div class="page stack">${head}<section class="card"><${ui.Empty} title="Choose two runs"><p>Select two or more runs on the page of all runs, or open a folder with several runs.</p><a class="btn" href="#/runs">All runs</a><//></section></div>`;
    if (error) return html`<div class="page stack">${head}<${ui.ErrorState} error=${error} retry=${reload} /></div>`;
    const isMany = Array.isArray(data?.runs) && data.tasks === undefined;
    if (!data || isMany !== numbers.length > 2) return html`<${ui.Skeleton} />`;
    return html`<div class="page stack compare">${head}${isMany ? html`<${ManyRuns} route=${route} range=${range} numbers=${numbers} result=${data} isPoints=${range[0] === 0 && range[1] === 1} />` : html`<${TwoRuns} route=${route} numbers=${numbers} result=${data} range=${range} />`}</div>`;
  }

  gymView.pages.compare = {
    component: ComparePage,
    title: ({ route, runs }) => {
      const names = numbersOf(route)
        .map((number) => runs?.find((/** @type {any} */ run) => run.number === number))
        .map((run) => run?.title ?? run?.name ?? "")
        .filter(Boolean);
      return `Compare ${names.join(" and ")}`;
    },
  };
})();
