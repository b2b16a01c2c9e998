"use strict";
// Tokens of a rollout: what the trainer sees. Surprise by colour, masked tokens hatched.
(() => {
  const { html, api, format, charts, ui, useState, useData } = gymView;
  const COUNT = 2000;
  const LEVELS = [0.05, 0.3, 0.55, 0.8];
  const MOST_BARS = 400;

  /** Return the step of the surprise scale, 0 to 4, for 1 - probability. */
  function surprise(/** @type {number} */ logProb) {
    const chance = 1 - Math.exp(logProb),
      level = LEVELS.findIndex((limit) => chance < limit);
    return level < 0 ? 4 : level;
  }

  const nameOf = (/** @type {any} */ segment) => (segment.kind === "turn" ? `turn ${segment.turn}` : segment.kind);

  function SequenceMap({ sequence, start }) {
    const { segments, total } = sequence;
    const draw = (
      /** @type {number} */ width,
    ) => html`<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="fill-line" width="1.2" height="5" /></pattern></defs>
      ${segments.map((/** @type {any} */ segment) => {
        const x = (width * segment.start) / total,
          wide = Math.max(1, (width * segment.count) / total - 2);
        return html`<g key=${segment.start} data-tip=${`${nameOf(segment)}: ${format.plural(segment.count, "token")}, ${segment.trained ? "trained on" : "masked"}${segment.mean_log_prob === undefined || segment.mean_log_prob === null ? "" : `\nmean log-prob ${format.number(segment.mean_log_prob, 2)}`}`}><rect class=${segment.trained ? "seg-trained" : "seg-masked"} x=${x} y="0" width=${wide} height="40" rx="2" />${wide > 34 ? html`<text x=${x + 2} y="56">${nameOf(segment)}${wide > 110 ? `, ${format.count(segment.count)}` : ""}</text>` : null}</g>`;
      })}${bars(sequence, width)}${total > COUNT ? html`<rect class="seg-window" x=${(width * start) / total} y="-3" width=${Math.max(4, (width * Math.min(COUNT, total - start)) / total)} height="46" rx="3" />` : null}`;
    const rows = segments.map((/** @type {any} */ segment) => [
      nameOf(segment),
      format.count(segment.start),
      format.count(segment.count),
      segment.trained ? "yes" : "no",
    ]);
    return html`<div class="seqmap"><div class="row note"><b>Whole sequence</b><span class="t3">${format.plural(total, "token")}, ${format.percent(sequence.trained / Math.max(1, total), 0)} trained on</span></div><${charts.Chart} draw=${draw} height=${62} label="Surprise along the sequence, masked parts hatched" table=${{ head: ["Part", "Start", "Tokens", "Trained on"], rows }} /></div>`;
  }

  /** Surprise of the loaded tokens as bars, at most MOST_BARS. */
  function bars(/** @type {any} */ sequence, /** @type {number} */ width) {
    const size = Math.max(1, Math.ceil(sequence.log_probs.length / MOST_BARS)),
      shown = [];
    for (let index = 0; index < sequence.log_probs.length; index += size) {
      const group = sequence.log_probs
        .slice(index, index + size)
        .filter((/** @type {any} */ value) => value !== null && value !== undefined);
      if (!group.length) continue;
      const worst = Math.min(...group),
        level = surprise(worst),
        tall = 3 + 35 * (1 - Math.exp(worst));
      shown.push(
        html`<rect key=${index} class=${`fill-t${Math.max(1, level)}`} x=${(width * (sequence.start + index)) / sequence.total} y=${39 - tall} width=${Math.max(1, (width * size) / sequence.total - 0.5)} height=${tall} pointer-events="none" />`,
      );
    }
    return shown;
  }

  function Token({ id, text, logProb, mask, position, isChosen, onChoose, mode }) {
    const level = mask === 0 || logProb === null || logProb === undefined ? null : surprise(logProb);
    const shown = text ?? String(id);
    const tip = `${text === undefined ? "" : `${text}   `}id ${id}, place ${format.count(position)}${logProb === null || logProb === undefined ? "" : `\nlog-prob ${format.number(logProb, 2)}, probability ${format.number(Math.exp(logProb), 2)}`}${mask === 0 ? "\nmasked: not trained on" : ""}`;
    return html`<span class=${`${mask === 0 ? "msk" : level === null ? "" : `t${level} t${level}b`} ${isChosen ? "pick2" : ""}`} data-tip=${tip} onClick=${onChoose}>${mode === "log_prob" && level !== null ? format.number(logProb, 2) : shown}</span>${" "}`;
  }

  function Surprising({ entries, onGo }) {
    return html`<section><h3>Most surprising tokens</h3><table class="tbl pane-table"><tbody>${entries.map((/** @type {any} */ entry) => html`<tr key=${entry.position}><td><code>${entry.text ?? entry.id}</code></td><td class="n t2">${format.number(entry.log_prob, 2)}</td><td class="n"><button type="button" class="linklike" onClick=${() => onGo(entry.position)}>${entry.turn === undefined ? `place ${format.count(entry.position)}` : `turn ${entry.turn}`}</button></td></tr>`)}</tbody></table></section>`;
  }

  function TokensTab({ id, attempt }) {
    const [start, setStart] = useState(0),
      [chosen, setChosen] = useState(/** @type {number | null} */ (null)),
      [mode, setMode] = useState("ids");
    const { data, error } = useData(
      () => api.sequence(id, { start, count: COUNT, attempt }),
      [id.run, id.task, id.repeat, start, attempt],
    );
    if (error)
      return html`<div class="two"><div class="convo"><${ui.Empty} title="No tokens are shown"><p>${error.status === 404 ? "This rollout holds no token ids." : error.message}</p><//></div></div>`;
    if (!data) return html`<${ui.Skeleton} rows=${4} />`;
    const go = (/** @type {number} */ position) => {
      setStart(Math.floor(position / COUNT) * COUNT);
      setChosen(position);
    };
    const at = chosen === null ? -1 : chosen - data.start;
    const inWindow = data.segments.filter(
      (/** @type {any} */ segment) =>
        segment.start < data.start + data.ids.length && segment.start + segment.count > data.start,
    );
    return html`<div class="two"><div><div class="cfind"><div class="legend"><span class="row">likely<span class="sw">${[0, 1, 2, 3, 4].map((level) => html`<i key=${level} class=${`t${level}b`}></i>`)}</span>surprising</span><span class="row"><span class="hatch"></span>masked: not trained on</span></div><span class="grow"></span><${ui.Segments} label="Show" options=${[["ids", data.texts ? "Text" : "Ids"], ["log_prob", "Log-prob"]]} value=${mode} onChange=${setMode} /></div>
      <div class="convo"><${SequenceMap} sequence=${data} start=${data.start} />
        ${data.total > COUNT ? html`<div class="row seqmap"><button type="button" class="btn sm" disabled=${start === 0} onClick=${() => setStart(Math.max(0, start - COUNT))}>Earlier</button><span class="num t2">${format.count(data.start + 1)} – ${format.count(data.start + data.ids.length)} of ${format.count(data.total)}</span><button type="button" class="btn sm" disabled=${data.start + COUNT >= data.total} onClick=${() => setStart(start + COUNT)}>Later</button></div>` : null}
        ${inWindow.map((/** @type {any} */ segment) => {
          const from = Math.max(segment.start, data.start),
            to = Math.min(segment.start + segment.count, data.start + data.ids.length),
            indices = Array.from({ length: to - from }, (_, index) => from - data.start + index);
          return html`<article class=${`turn by-${segment.trained ? "assistant" : "tool"}`} key=${segment.start}><div class="gut">${segment.kind === "turn" ? html`<b>Turn ${segment.turn}</b>` : null}<span>${format.count(segment.count)} tok</span></div><div class="msg"><div class="who">${nameOf(segment)}<span class="t3">${segment.trained ? "trained on" : "masked"}</span></div><div class="box toks">${indices.map((index) => html`<${Token} key=${index} id=${data.ids[index]} text=${data.texts?.[index]} logProb=${data.log_probs[index]} mask=${segment.trained ? (data.mask[index] ?? 1) : 0} position=${data.start + index} isChosen=${index === at} onChoose=${() => setChosen(data.start + index)} mode=${mode} />`)}</div></div></article>`;
        })}</div></div>
      <aside class="verdict" aria-label="Tokens">${at >= 0 && data.ids[at] !== undefined ? html`<section><h3>Selected token</h3><dl class="kv">${data.texts ? html`<dt>text</dt><dd><code>${data.texts[at]}</code></dd>` : null}<dt>id, place</dt><dd>${format.count(data.ids[at])} at ${format.count(data.start + at)} of ${format.count(data.total)}</dd>${data.log_probs[at] === null || data.log_probs[at] === undefined ? null : html`<dt>log-prob</dt><dd>${format.number(data.log_probs[at], 3)} (p = ${format.number(Math.exp(data.log_probs[at]), 2)})</dd>`}</dl></section>` : html`<section><h3>Selected token</h3><p class="t3">Click a token to see its id, place and probability.</p></section>`}
        ${data.surprising?.length ? html`<${Surprising} entries=${data.surprising} onGo=${go} />` : null}
        <section><h3>Sequence</h3><dl class="kv"><dt>Trained on</dt><dd>${format.plural(data.trained, "token")}</dd><dt>Masked</dt><dd>${format.plural(data.total - data.trained, "token")}: prompt and tool outputs</dd>${data.mean_log_prob === null || data.mean_log_prob === undefined ? null : html`<dt>Mean log-prob</dt><dd>${format.number(data.mean_log_prob, 2)}</dd>`}${data.policy_version === undefined ? null : html`<dt>Policy version</dt><dd>${data.policy_version}</dd>`}${data.contiguous === undefined || data.contiguous === null ? null : html`<dt>Contiguous</dt><dd>${data.contiguous ? "yes: each prompt begins with the tokens before it" : "no: a prompt does not begin with the tokens before it"}</dd>`}</dl></section></aside></div>`;
  }

  gymView.TokensTab = TokensTab;
})();
