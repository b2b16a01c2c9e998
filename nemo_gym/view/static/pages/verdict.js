"use strict";
// The verdict beside the conversation: reward, components, answers with their difference, why, judges, limits.
(() => {
  const { html, Icon, format, router, ui, diff } = gymView;
  const INTERNAL_SHOWN = "gym-internal";

  /** What is not in the answer's `verdict` (a server of an earlier version) comes from the row and the fields. */
  function verdictOf(/** @type {any} */ data) {
    if (data.verdict) return data.verdict;
    const { facts, fields = {} } = data;
    const internal = Object.fromEntries(Object.entries(fields).filter(([name]) => /^_?ng_/.test(name)));
    const recorded = Object.fromEntries(
      Object.entries(fields).filter(([name]) => !/^_?ng_/.test(name) && name !== "reward"),
    );
    return {
      reward: facts.reward,
      extracted: facts.extracted,
      expected: facts.expected,
      rule: facts.rule,
      recorded,
      internal,
      judge: data.judgements,
    };
  }

  function headline(/** @type {any} */ verdict, /** @type {any} */ facts) {
    if (verdict.headline) return verdict.headline;
    if (facts.outcome !== "scored") return facts.outcome;
    return verdict.reward >= 1 ? "Correct" : verdict.reward > 0 ? "Partial credit" : "Wrong answer";
  }

  function Components({ components, range }) {
    const hasWeights = components.some((/** @type {any} */ component) => component.weight !== undefined);
    return html`<section><h3>Components</h3><div class=${`comp ${hasWeights ? "" : "unweighted"}`}><span class="hd">component</span><span class="hd"></span><span class="hd num right">value</span>${hasWeights ? html`<span class="hd num right">weight</span>` : null}
      ${components.map((/** @type {any} */ { name, value, weight }) => html`<span class="mono small-mono ell" data-tip=${name} key=${name}>${name}</span><span class="tr">${value >= range[0] && value <= range[1] ? html`<i class=${`r${ui.rewardStep(value, range)}`} style=${{ width: `${Math.max(3, (100 * (value - range[0])) / (range[1] - range[0] || 1))}%` }}></i>` : null}</span><span class="right">${format.number(value, Number.isInteger(value) && Math.abs(value) > 1 ? 0 : 2)}</span>${hasWeights ? html`<span class="t3 right">${weight === undefined ? "" : `× ${Number(weight.toFixed(3))}`}</span>` : null}`)}</div></section>`;
  }

  /** The turn of an item of the conversation, in words. */
  function turnOf(/** @type {any[]} */ turns, /** @type {number} */ event) {
    const turn = turns.findLast((each) => each.event <= event);
    return turn ? `turn ${turn.turn}` : "the conversation";
  }

  function Answer({ verdict, route, isScored, turns }) {
    const has = (/** @type {any} */ value) => value !== undefined && value !== null && value !== "";
    if (!has(verdict.extracted) && !has(verdict.expected)) return null;
    if (!isScored && !has(verdict.extracted))
      return html`<section><h3>Expected answer</h3><pre class="code wrap inpane" tabindex="0" role="group" aria-label="Expected answer">${diff.readable(verdict.expected)}</pre></section>`;
    const others = verdict.same_answer ?? [];
    return html`<section><h3>Answer</h3><${diff.AnswerDiff} extracted=${verdict.extracted} expected=${verdict.expected} />
      ${
        verdict.rule || verdict.extracted_event !== undefined || others.length
          ? html`<p class="t2 rule">${verdict.rule ? html`Rule <code>${verdict.rule}</code>` : ""}${
              verdict.extracted_event !== undefined
                ? html`${verdict.rule ? ", " : ""}found in <a href=${`#event-${verdict.extracted_event}`} onClick=${(
                    /** @type {Event} */ event,
                  ) => {
                    event.preventDefault();
                    gymView.showEvent?.(verdict.extracted_event);
                  }}>${turnOf(turns, verdict.extracted_event)}</a>`
                : ""
            }${verdict.rule || verdict.extracted_event !== undefined ? ". " : ""}${others.length ? html`${others.length === 1 ? "Repeat " : "Repeats "}${others.map((/** @type {number} */ repeat, /** @type {number} */ index) => html`${index ? ", " : ""}<a key=${repeat} href=${router.rollout(route.run, Number(route.parts[0]), repeat, route.query)}>${repeat}</a>`)} gave the same answer.` : ""}</p>`
          : null
      }</section>`;
  }

  function Judge({ entry, index, isOpen }) {
    const notes = [
      entry.tokens === undefined ? "" : `${format.count(entry.tokens)} tok`,
      entry.seconds === undefined ? "" : format.seconds(entry.seconds),
    ]
      .filter(Boolean)
      .join(", ");
    return html`<details class="judge" open=${isOpen || undefined}><summary><${Icon} name="right" small extra="chev" /><b>Judge ${index + 1}</b><span class="t2 ell">${entry.verdict}</span><span class="grow"></span>${notes ? html`<span class="t3 num note nowrap">${notes}</span>` : null}</summary><div class="in"><p class="judge-label">Asked</p><p class="judge-text" dir="auto">${entry.asked}</p><p class="judge-label">Answered</p><p class="judge-text" dir="auto">${entry.answered}</p></div></details>`;
  }

  function Why({ verdict }) {
    const judges = verdict.judge ?? [];
    if (!verdict.why && !judges.length) return null;
    return html`<section><h3>Why</h3>${verdict.why ? html`<p class="why-text">${verdict.why}</p>` : null}${judges.length ? html`<div class="calllist">${judges.map((/** @type {any} */ entry, /** @type {number} */ index) => html`<${Judge} key=${index} entry=${entry} index=${index} isOpen=${judges.length === 1} />`)}</div>` : null}</section>`;
  }

  function Limits({ limits }) {
    return html`<section><h3>Limits</h3><div class="bars">${limits.map(
      (/** @type {any} */ { name, used, limit, unit }) => {
        const show = (/** @type {number} */ value) =>
          unit === "s" ? format.number(value, value < 100 ? 1 : 0) : format.count(value);
        return html`<span class="t2" key=${name}>${name}</span><span class="tr"><i class=${used >= limit ? "mark-limit" : "mark-scored"} style=${{ width: `${Math.min(100, (100 * used) / (limit || 1))}%` }}></i></span><span class="num t2">${show(used)} of ${Number.isInteger(limit) ? format.count(limit) : String(limit)}${unit === "s" ? " s" : ""}</span>`;
      },
    )}</div></section>`;
  }

  /** A recorded value: short ones as they are, long ones folded. */
  function Value({ value }) {
    if (typeof value === "boolean") return html`${value ? "yes" : "no"}`;
    if (typeof value === "number") return html`${format.value(value)}`;
    const text = format.stored(value);
    if (text.length <= 160)
      return html`<span class=${typeof value === "string" ? "" : "mono small-mono"}>${text}</span>`;
    return html`<details><summary class="t3"><${Icon} name="right" small extra="chev" /><span class="ell peek">${text.slice(0, 60)}</span></summary><pre class="code wrap inpane" tabindex="0" role="region" aria-label="Value">${text}</pre></details>`;
  }

  const Fields = ({ fields }) =>
    html`<dl class="kv fields">${Object.entries(fields).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd><${Value} value=${value} /></dd>`)}</dl>`;

  function Recorded({ verdict }) {
    const recorded = verdict.recorded ?? {},
      internal = verdict.internal ?? {},
      count = Object.keys(internal).length;
    if (!Object.keys(recorded).length && !count) return null;
    const hasRecorded = Object.keys(recorded).length > 0;
    return html`<section><h3>${hasRecorded ? "Recorded by the verifier" : "Recorded"}</h3>${hasRecorded ? html`<${Fields} fields=${recorded} />` : null}${count ? html`<details class=${INTERNAL_SHOWN}><summary class="btn sm ghost">Show ${format.plural(count, "internal field")}</summary><${Fields} fields=${internal} /></details>` : null}</section>`;
  }

  function VerdictPane({ data, route, summary, children }) {
    const verdict = verdictOf(data),
      range = verdict.scale ?? gymView.rewardRange(summary),
      { facts } = data;
    const means = [
      verdict.mean_of_task === undefined || verdict.mean_of_task === null
        ? ""
        : `mean of this task ${format.number(verdict.mean_of_task, 2)}`,
      verdict.mean_of_run === undefined || verdict.mean_of_run === null
        ? ""
        : `of the run ${format.number(verdict.mean_of_run, 2)}`,
    ]
      .filter(Boolean)
      .join(", ");
    const components =
      verdict.components ?? Object.entries(facts.components ?? {}).map(([name, value]) => ({ name, value }));
    const Annotation = gymView.annotations?.Panel;
    return html`<aside class="verdict" aria-label="Verdict">${facts.outcome === "scored" ? html`<section><div class="score"><span class=${`v r${ui.rewardStep(verdict.reward, range)}`}>${format.number(verdict.reward, 2)}</span><div><h2 class="headline">${headline(verdict, facts)}</h2><div class="t3 note">${means}</div></div></div></section>` : null}
      ${children}${components.length && facts.outcome === "scored" ? html`<${Components} components=${components} range=${range} />` : null}<${Answer} verdict=${verdict} route=${route} isScored=${facts.outcome === "scored"} turns=${data.turns ?? []} /><${Why} verdict=${verdict} />
      ${Annotation && !gymView.api.isBundle ? html`<${Annotation} route=${route} data=${data} />` : null}
      ${verdict.limits?.length ? html`<${Limits} limits=${verdict.limits} />` : null}<${Recorded} verdict=${verdict} /></aside>`;
  }

  gymView.VerdictPane = VerdictPane;
  gymView.verdictOf = verdictOf;
  gymView.verdictHeadline = headline;
})();
