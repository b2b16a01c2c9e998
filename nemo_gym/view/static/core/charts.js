"use strict";
// Charts: own SVG, drawn at the width of their box so that text keeps its size. Each is one image with a sentence, and a table.
(() => {
  const { html, format, useRef, useState, useWidth, ui } = gymView;
  const HEIGHT = 206;
  /** @typedef {(value: number) => number} Scale */

  const scale = (
    /** @type {number} */ from,
    /** @type {number} */ to,
    /** @type {number} */ start,
    /** @type {number} */ end,
  ) =>
    /** @type {Scale} */ (
      (value) => (to === from ? (start + end) / 2 : start + ((value - from) / (to - from)) * (end - start))
    );

  /** Return about `count` round numbers that cover a range. */
  function ticks(/** @type {number} */ low, /** @type {number} */ high, count = 4) {
    const rough = (high - low) / count || 1,
      power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999) ?? power;
    const values = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
      values.push(Number(value.toPrecision(12)));
    return values;
  }

  /** Return the largest number of the form 1, 2, 4 or 5 times a power of ten that is at most `value`. */
  function roundBelow(/** @type {number} */ value) {
    const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
    return ([5, 4, 2, 1].find((factor) => factor * power <= value * (1 + 1e-9)) ?? 1) * power;
  }

  const short = (/** @type {number} */ value) =>
    Math.abs(value) >= 1000 ? format.short(value).replace(".0", "") : String(Number(value.toPrecision(4)));

  /** A chart with a description for screen readers and a switch to its numbers as a table. */
  function Chart(/** @type {any} */ { draw, height = HEIGHT, label, table = null, hasLinks = false }) {
    const box = useRef(null),
      width = useWidth(box);
    const [asTable, setAsTable] = useState(false);
    const tall = typeof height === "function" ? height(width) : height;
    return html`<div class="chartbox" ref=${box}>
      ${
        asTable && table
          ? html`<div class="scrollx charttable" tabindex="0" role="region" aria-label=${label}><table class="tbl"><thead><tr>${table.head.map((/** @type {string} */ head) => html`<th key=${head}>${head}</th>`)}</tr></thead><tbody>${table.rows.map((/** @type {any[]} */ row, /** @type {number} */ index) => html`<tr key=${index}>${row.map((cell, place) => html`<td key=${place} class="num">${cell}</td>`)}</tr>`)}</tbody></table></div>`
          : html`<svg class="chart" viewBox=${`0 0 ${width || 300} ${tall}`} height=${tall} role=${hasLinks ? "group" : "img"} aria-label=${label}>${width ? draw(width, tall) : null}</svg>`
      }
      ${table ? html`<button type="button" class="astable" aria-pressed=${String(asTable)} onClick=${() => setAsTable(!asTable)}>${asTable ? "View as chart" : "View as table"}</button>` : null}
    </div>`;
  }

  const horizontal = (
    /** @type {number[]} */ values,
    /** @type {Scale} */ y,
    /** @type {number} */ left,
    /** @type {number} */ right,
    text = short,
  ) =>
    values.map(
      (value) =>
        html`<g key=${`y${value}`}><line class="gl" x1=${left} x2=${right} y1=${y(value)} y2=${y(value)} /><text x=${left - 7} y=${y(value) + 4} text-anchor="end">${text(value)}</text></g>`,
    );

  /** A mark that leads to its rollouts, if it has an address. */
  const Mark = ({ tip, href = "", hasText = false, children }) =>
    href
      ? html`<a href=${href} data-tip=${tip} aria-label=${hasText ? undefined : tip.replace("\n", ", ")}>${children}</a>`
      : html`<g data-tip=${tip}>${children}</g>`;

  function Histogram({ bins, range, addressOf, total }) {
    const most = Math.max(1, ...bins.map((/** @type {any} */ bin) => bin.count)),
      root = Math.sqrt(most);
    const low = bins[0].from,
      high = bins[bins.length - 1].to;
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 38,
        right = width - 2,
        top = 16,
        bottom = height - 22;
      const y = (/** @type {number} */ value) => bottom - ((bottom - top) * Math.sqrt(value)) / root;
      const x = scale(low, high, left, right),
        wide = (right - left) / bins.length;
      const lines = [
        0,
        ...[0.02, 0.2, 0.5, 1]
          .map((share) => roundBelow(most * share))
          .filter((value, index, all) => value >= 1 && value <= most && all.indexOf(value) === index),
      ];
      return html`${horizontal(lines, y, left, right)}
        ${bins.map((/** @type {any} */ bin, /** @type {number} */ index) => {
          const step = bin.count && bin.to >= high && bin.isTop ? 6 : ui.rewardStep((bin.from + bin.to) / 2, range);
          const color = index === 0 && low >= range[0] ? 0 : index === bins.length - 1 ? 6 : step;
          const text = `reward ${short(bin.from)} – ${short(bin.to)}\n${format.plural(bin.count, "rollout")} (${format.percent(bin.count / Math.max(1, total))})`;
          return html`<${Mark} key=${index} tip=${text} href=${bin.where && bin.count ? addressOf(bin.where) : ""}><rect class="hit" x=${left + index * wide} y=${top} width=${wide} height=${bottom - top} />${bin.count ? html`<rect class=${`fill-r${color}`} x=${left + index * wide + 1} y=${Math.min(y(bin.count), bottom - 1.5)} width=${Math.max(1, wide - 2)} height=${Math.max(1.5, bottom - y(bin.count))} rx="1.5" />` : null}<//>`;
        })}
        <text class="v" x=${left + 1} y=${y(bins[0].count) - 4}>${bins[0].count ? format.count(bins[0].count) : ""}</text>
        <text class="v" x=${right} y=${y(bins[bins.length - 1].count) - 4} text-anchor="end">${bins[bins.length - 1].count ? format.count(bins[bins.length - 1].count) : ""}</text>
        <line class="ax" x1=${left} x2=${right} y1=${bottom} y2=${bottom} />
        ${ticks(low, high).map((value) => html`<text key=${value} x=${x(value)} y=${height - 6} text-anchor=${value === low ? "start" : value === high ? "end" : "middle"}>${short(value)}</text>`)}`;
    };
    const rows = bins.map((/** @type {any} */ bin) => [
      `${short(bin.from)} – ${short(bin.to)}`,
      format.count(bin.count),
    ]);
    return html`<${Chart} draw=${draw} hasLinks label=${`Histogram of rewards: ${format.count(bins[0].count)} in the lowest of ${bins.length} bins, ${format.count(bins[bins.length - 1].count)} in the highest`} table=${{ head: ["Reward", "Rollouts"], rows }} />`;
  }

  function PassAtK({ points }) {
    const last = points[points.length - 1];
    const bounds = points.flatMap((/** @type {any} */ point) => point.interval_95 ?? [point.chance]);
    const low = Math.max(0, Math.floor(Math.min(...bounds) * 5) / 5),
      high = Math.min(1, Math.ceil(Math.max(...bounds) * 5) / 5);
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 34,
        right = width - 16,
        top = 16,
        bottom = height - 22;
      const x = last.k === 1 ? () => (left + right) / 2 : scale(1, last.k, left + 12, right),
        y = scale(low, high === low ? low + 0.2 : high, bottom, top);
      const at = (/** @type {number} */ k, /** @type {number} */ value) => `${x(k)} ${y(value)}`;
      const withInterval = points.filter((/** @type {any} */ point) => point.interval_95);
      const band =
        withInterval.length > 1
          ? `M${withInterval.map((/** @type {any} */ point) => at(point.k, point.interval_95[1])).join("L")}L${[
              ...withInterval,
            ]
              .reverse()
              .map((point) => at(point.k, point.interval_95[0]))
              .join("L")}Z`
          : null;
      const named = new Set([points[0].k, points[Math.floor((points.length - 1) / 2)].k, last.k]);
      return html`${horizontal(ticks(low, high), y, left, width)}
        ${band ? html`<path class="band" d=${band} />` : null}<path class="curve" d=${`M${points.map((/** @type {any} */ point) => at(point.k, point.chance)).join("L")}`} />
        ${points.map(
          (
            /** @type {any} */ point,
          ) => html`<${Mark} key=${point.k} tip=${`pass@${point.k}  ${format.number(point.chance)}${point.interval_95 ? `\n95 % interval ${format.interval(point.interval_95)}` : ""}\n${format.plural(point.tasks, "task")}`}><circle class="hit" cx=${x(point.k)} cy=${y(point.chance)} r="11" /><circle class="dot" cx=${x(point.k)} cy=${y(point.chance)} r="3.5" /><//>
          <text x=${x(point.k)} y=${height - 6} text-anchor="middle">${point.k === 1 ? "k = 1" : point.k}</text>
          ${named.has(point.k) ? html`<text class="v" x=${x(point.k)} y=${y(point.chance) - 9} text-anchor=${point.k === last.k && last.k > 1 ? "end" : "middle"}>${format.number(point.chance, 2)}</text>` : null}`,
        )}`;
    };
    const rows = points.map((/** @type {any} */ point) => [
      point.k,
      format.number(point.chance),
      format.interval(point.interval_95) || "–",
      format.count(point.tasks),
    ]);
    return html`<${Chart} draw=${draw} label=${`pass@k from ${format.number(points[0].chance, 2)} at k = 1 to ${format.number(last.chance, 2)} at k = ${last.k}`} table=${{ head: ["k", "pass@k", "95 % interval", "Tasks"], rows }} />`;
  }

  /** Median and 95th percentile of the time in each phase, on a logarithmic axis. */
  function PhaseTimes({ phases, addressOf }) {
    const longest = Math.max(0.1, ...phases.map((/** @type {any} */ phase) => phase.p95));
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 52,
        right = width - 92,
        rowHeight = Math.min(29, (height - 30) / phases.length);
      const place = (/** @type {number} */ value) => Math.log10(1 + value * 10),
        x = (/** @type {number} */ value) => left + ((right - left) * place(value)) / place(longest);
      const lines = /** @type {number[]} */ ([]);
      for (const value of [0, 0.1, 0.3, 1, 3, 10, 30, 60, 200, 600, 3600]) {
        if (value <= longest && (!lines.length || x(value) - x(lines[lines.length - 1]) >= 34)) lines.push(value);
      }

      return html`${lines.map((value, index) => html`<g key=${value}><line class="gl" x1=${x(value)} x2=${x(value)} y1="4" y2=${height - 22} /><text x=${x(value)} y=${height - 6} text-anchor="middle">${value}${index === lines.length - 1 ? " s" : ""}</text></g>`)}
        ${phases.map((/** @type {any} */ phase, /** @type {number} */ index) => {
          const top = 6 + index * rowHeight,
            name = ui.phaseName(phase),
            share = phase.share === null || phase.share === undefined ? "" : format.percent(phase.share, 0);
          return html`<${Mark} key=${phase.phase} hasText href=${phase.where ? addressOf(phase.where) : ""} tip=${`${name}\nmedian ${format.seconds(phase.p50)}, p95 ${format.seconds(phase.p95)}, longest ${format.seconds(phase.max)}${share ? `\n${share} of the time of all rollouts` : ""}`}>
            <rect class="hit" x="0" y=${top} width=${width} height=${rowHeight} /><text class="axislabel" x=${left - 8} y=${top + 13} text-anchor="end">${name[0].toUpperCase() + name.slice(1)}</text>
            <rect class=${`fill-${phase.phase === "seed_session" ? "seed" : phase.phase}`} x=${x(0)} y=${top + 3} width=${Math.max(2, x(phase.p50) - x(0))} height="13" rx="2" />
            <line class="whisker" x1=${x(phase.p50)} x2=${x(phase.p95)} y1=${top + 9.5} y2=${top + 9.5} /><line class="whisker end" x1=${x(phase.p95)} x2=${x(phase.p95)} y1=${top + 5} y2=${top + 14} />
            <text x=${width - 36} y=${top + 13} text-anchor="end">${format.duration(phase.p50)}</text><text class="v" x=${width} y=${top + 13} text-anchor="end">${share}</text><//>`;
        })}`;
    };
    const rows = phases.map((/** @type {any} */ phase) => [
      ui.phaseName(phase),
      format.seconds(phase.mean),
      format.seconds(phase.p50),
      format.seconds(phase.p95),
      format.seconds(phase.max),
      format.percent(phase.share),
    ]);
    return html`<${Chart} draw=${draw} hasLinks label="Median and 95th percentile of the time in each phase" table=${{ head: ["Phase", "Mean", "Median", "p95", "Longest", "Share"], rows }} />`;
  }

  /** @type {Record<string, string>} */
  const VERDICT_FILLS = { better: "fill-up", worse: "fill-down" };
  /** One line with an interval and a point, in the colour of its verdict: rows of a table share the scale from `from` to `to`. */
  function Forest({ value, low, high, from = 0, to = 1, zero = false, width = 150, verdict = "" }) {
    const x = scale(from, to, 4, width - 4),
      clamp = (/** @type {number} */ each) => Math.max(0, Math.min(width, x(each)));
    const color = zero ? (VERDICT_FILLS[verdict] ?? "fill-same") : "fill-text";
    return html`<svg class="chart forest" viewBox=${`0 0 ${width} 22`} width=${width} height="22" aria-hidden="true">${zero ? html`<line class="ax" x1=${x(0)} x2=${x(0)} y1="0" y2="22" />` : html`<line class="gl" x1="4" x2=${width - 4} y1="11" y2="11" />`}
      ${low === null || low === undefined ? null : html`<line class="whisker strong" x1=${clamp(low)} x2=${clamp(high)} y1="11" y2="11" />`}<circle class=${color} cx=${clamp(value)} cy="11" r="4" /></svg>`;
  }

  /** Points of two runs: each is a number of tasks; above the diagonal the second run is better. */
  function Scatter({
    points,
    xLabel,
    yLabel,
    range = [0, 1],
    corners = ["", ""],
    label = "Mean reward of each task in both runs",
  }) {
    const [low, high] = range;
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 52,
        right = width - 12,
        top = 8,
        bottom = height - 34,
        margin = (right - left) * 0.045;
      const x = scale(low, high, left + margin, right - margin),
        y = scale(low, high, bottom - margin, top + margin),
        lines = ticks(low, high);
      return html`${lines.map((value) => html`<g key=${value}><line class="gl" x1=${left} x2=${right} y1=${y(value)} y2=${y(value)} /><line class="gl" x1=${x(value)} x2=${x(value)} y1=${top} y2=${bottom} /><text x=${left - 8} y=${y(value) + 4} text-anchor="end">${short(value)}</text><text x=${x(value)} y=${height - 18} text-anchor="middle">${short(value)}</text></g>`)}
        <text class="corner up" x=${x(low) + 4} y=${y(high) - 4}>${corners[1]}</text><text class="corner down" x=${x(high) - 4} y=${y(low) + 14} text-anchor="end">${corners[0]}</text>
        <line class="diagonal" x1=${x(low)} y1=${y(low)} x2=${x(high)} y2=${y(high)} />
        ${points.map((/** @type {any} */ point, /** @type {number} */ index) => html`<${Mark} key=${index} tip=${point.tip} href=${point.href ?? ""}><circle class=${`point ${point.y > point.x ? "fill-up" : point.y < point.x ? "fill-down" : "fill-line"}`} cx=${x(point.x)} cy=${y(point.y)} r=${Math.min(18, 1.8 + Math.sqrt(point.n) * 1.3)} /><//>`)}
        <text class="axislabel" x=${(left + right) / 2} y=${height - 2} text-anchor="middle">${xLabel}</text><text class="axislabel" transform=${`translate(10 ${(top + bottom) / 2}) rotate(-90)`} text-anchor="middle">${yLabel}</text>`;
    };
    const rows = points.map((/** @type {any} */ point) => [format.number(point.x), format.number(point.y), point.n]);
    return html`<${Chart} draw=${draw} hasLinks=${points.some((/** @type {any} */ point) => point.href)} height=${(/** @type {number} */ width) => (width > 640 ? 360 : Math.max(260, width * 0.92))} label=${label} table=${{ head: [xLabel, yLabel, "Tasks"], rows }} />`;
  }

  /** A mean that settles while a run goes on, with its interval. */
  function RunningMean(/** @type {any} */ { points, planned, reference = null }) {
    const bounds = points.flatMap((/** @type {any} */ point) => [point.low ?? point.mean, point.high ?? point.mean]);
    const means = points.map((/** @type {any} */ point) => point.mean),
      settled = bounds.slice(Math.floor(bounds.length / 4));
    const low = Math.min(...means, ...settled, reference?.mean ?? Infinity),
      high = Math.max(...means, ...settled, reference?.mean ?? -Infinity);
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 40,
        right = width - 10,
        top = 10,
        bottom = height - 24,
        end = Math.max(planned ?? 0, points[points.length - 1].done);
      const x = scale(0, end, left, right),
        across = scale(low - 0.02, high + 0.02, bottom, top);
      const y = (/** @type {number} */ value) => Math.max(top, Math.min(bottom, across(value)));
      const at = (/** @type {any} */ point, /** @type {number} */ value) => `${x(point.done)} ${y(value)}`;
      const band = points.filter((/** @type {any} */ point) => point.low !== null && point.low !== undefined);
      return html`${horizontal(ticks(low - 0.02, high + 0.02), y, left, right)}
        ${
          band.length > 1
            ? html`<path class="band" d=${`M${band.map((/** @type {any} */ point) => at(point, point.high)).join("L")}L${[
                ...band,
              ]
                .reverse()
                .map((point) => at(point, point.low))
                .join("L")}Z`} />`
            : null
        }
        <path class="curve" d=${`M${points.map((/** @type {any} */ point) => at(point, point.mean)).join("L")}`} />
        ${reference ? html`<line class="reference" x1=${left} x2=${right} y1=${y(reference.mean)} y2=${y(reference.mean)} /><text x=${right} y=${y(reference.mean) + 15} text-anchor="end">${reference.name} ${format.number(reference.mean)}</text>` : null}
        ${ticks(0, end).map((value) => html`<text key=${value} x=${x(value)} y=${height - 6} text-anchor=${value === 0 ? "start" : value > end * 0.95 ? "end" : "middle"}>${format.count(value)}${value === 0 ? " done" : ""}</text>`)}`;
    };
    const rows = points.map((/** @type {any} */ point) => [
      format.count(point.done),
      format.number(point.mean),
      format.interval([point.low, point.high]),
    ]);
    return html`<${Chart} draw=${draw} height=${190} label="Mean reward so far with its 95 % interval" table=${{ head: ["Rollouts done", "Mean", "95 % interval"], rows }} />`;
  }

  /** Bars per minute; minutes in which a server limited the rate are orange. */
  function MinuteBars({ minutes }) {
    const most = Math.max(1, ...minutes.map((/** @type {any} */ minute) => minute.done));
    const draw = (/** @type {number} */ width, /** @type {number} */ height) => {
      const left = 26,
        bottom = height - 6,
        wide = (width - left) / Math.max(minutes.length, 10),
        y = scale(0, most, bottom, 8);
      return html`${horizontal(ticks(0, most, 2), y, left, width)}${minutes.map((/** @type {any} */ minute, /** @type {number} */ index) => html`<${Mark} key=${index} tip=${`${format.time(minute.at)}\n${format.plural(minute.done, "rollout")}${minute.rejected ? "\nrollouts waited: the endpoint rejected calls" : ""}`}><rect class=${minute.rejected ? "fill-limit" : "fill-scored"} x=${left + index * wide + 0.5} y=${y(minute.done)} width=${Math.max(1, wide - 1.5)} height=${bottom - y(minute.done)} rx="1" /><//>`)}`;
    };
    const rows = minutes.map((/** @type {any} */ minute) => [
      format.time(minute.at),
      format.count(minute.done),
      minute.rejected ? "yes" : "",
    ]);
    return html`<${Chart} draw=${draw} height=${92} label="Rollouts finished per minute since the start" table=${{ head: ["Minute", "Rollouts", "Calls rejected"], rows }} />`;
  }

  gymView.charts = {
    Chart,
    Mark,
    Histogram,
    PassAtK,
    PhaseTimes,
    Forest,
    Scatter,
    RunningMean,
    MinuteBars,
    scale,
    ticks,
    horizontal,
    short,
  };
})();
