"use strict";
// The filter above a table: inline errors that replace nothing, saved filters, and what to do when nothing matches.
(() => {
  const { html, Icon, api, format, store, ui, useState, useEffect, useRef, useData } = gymView;
  const DELAY_MS = 250;
  const WORDS = /^[^<>=()"']+$/;
  const OPERATORS = /\b(?:and|or|not|in)\b/;
  const EXAMPLES = [
    { title: "Look first", where: 'extracted == "" and outcome == "scored"' },
    { title: "Failed", where: 'outcome == "failed"' },
    { title: "Limits", where: 'outcome == "limit"' },
    { title: "Partial", where: "reward > 0 and reward < 1" },
    { title: "Long, unsolved", where: "reward < 1 and turns > 5" },
  ];

  /** Plain words search the texts; everything else is an expression. */
  function selectionOf(/** @type {string} */ text) {
    const isWords = WORDS.test(text) && !OPERATORS.test(text);
    return isWords ? { where: "", words: text.trim() } : { where: text.trim(), words: "" };
  }
  const textOf = (/** @type {any} */ query) => query.where || query.words || "";

  function FilterError({ error, text, isUnfiltered, onUse }) {
    const { from = 0, to = text.length, suggestion, repaired } = error.detail ?? {};
    return html`<div class="ferr" role="alert"><${Icon} name="warning" small /><span>${error.detail?.message ?? error.message}</span><code>${text.slice(0, from)}<u>${text.slice(from, to) || "\u2002"}</u>${text.slice(to)}</code>
      ${repaired ? html`<button type="button" class="btn sm" onClick=${() => onUse(repaired)}>Use ${suggestion}</button>` : null}<span class="t3">${isUnfiltered ? "The table shows all rollouts." : "The table still shows the last valid filter."}</span></div>`;
  }

  /** The input. It applies while one types, and keeps what is typed when that is wrong. */
  function FilterInput({ query, error, isUnfiltered = false, onApply }) {
    const applied = textOf(query),
      [text, setText] = useState(applied),
      timer = useRef(0),
      input = useRef(null);
    useEffect(() => {
      if (document.activeElement !== input.current || applied === "") setText(applied);
    }, [applied]);
    const apply = (/** @type {string} */ next) => {
      clearTimeout(timer.current);
      onApply(selectionOf(next));
    };
    const onInput = (/** @type {any} */ event) => {
      const next = event.target.value;
      setText(next);
      clearTimeout(timer.current);
      timer.current = window.setTimeout(() => apply(next), DELAY_MS);
    };
    const use = (/** @type {string} */ next) => {
      setText(next);
      apply(next);
    };
    return html`<div class=${`filter ${error ? "bad" : ""}`}><${Icon} name="search" /><input id="filter" ref=${input} value=${text} spellcheck="false" autocomplete="off" aria-label="Filter" aria-invalid=${error ? "true" : undefined} placeholder="reward < 1 and turns > 3, or words to search for"
        onInput=${onInput} onKeyDown=${(/** @type {any} */ event) => {
          if (event.key === "Enter") apply(event.target.value);
        }} />
      <span class="right">${
        text
          ? html`<button type="button" class="btn ghost sm icon" aria-label="Clear the filter" onClick=${() => {
              use("");
              input.current?.focus();
            }}><${Icon} name="close" small /></button>`
          : null
      }<kbd class="only-wide">/</kbd></span>
      ${error ? html`<${FilterError} error=${error} text=${text} isUnfiltered=${isUnfiltered} onUse=${use} />` : null}</div>`;
  }

  /** Filters of the run and filters that the user saved for this environment. */
  function SavedFilters({ query, offered, environment, onApply, total }) {
    const [own, setOwn] = useState(() => store.get(`filters:${environment}`, []));
    useEffect(() => setOwn(store.get(`filters:${environment}`, [])), [environment]);
    const current = textOf(query),
      all = [...(offered ?? EXAMPLES), ...own];
    const keep = (/** @type {any[]} */ next) => {
      setOwn(next);
      store.set(`filters:${environment}`, next);
    };
    const isSaved = all.some((filter) => filter.where === current);
    const save = () => {
      keep([...own, { title: current.length > 28 ? `${current.slice(0, 27)}…` : current, where: current }]);
      ui.toast("Saved as a filter of this environment");
    };
    return html`<div class="chips"><span class="t3 only-wide note">Saved</span>${all.map((filter) => {
      const isOn = filter.where === current && current !== "";
      return html`<button type="button" class="chip" key=${filter.title + filter.where} aria-pressed=${String(isOn)} data-tip=${filter.where} onClick=${() => onApply(isOn ? { where: "", words: "" } : selectionOf(filter.where))}>${filter.title}${filter.count === undefined ? null : html`<span class="c">${format.count(filter.count)}</span>`}</button>`;
    })}${current && !isSaved ? html`<button type="button" class="btn sm ghost" onClick=${save}><${Icon} name="star" small />Save this filter</button>` : null}
      ${own.some((/** @type {any} */ filter) => filter.where === current) && current ? html`<button type="button" class="btn sm ghost" onClick=${() => keep(own.filter((/** @type {any} */ filter) => filter.where !== current))}><${Icon} name="close" small />Forget this filter</button>` : null}
      <span class="grow only-wide"></span>${total === undefined ? null : html`<span class="t3 only-wide note keyhint"><kbd>↑</kbd> <kbd>↓</kbd> move  <kbd>Space</kbd> preview  <kbd>↵</kbd> open  <kbd>?</kbd> all keys</span>`}</div>`;
  }

  /** No row matches: how many match each part, the range of its columns, and what to do. */
  function NoResult({ run, query, onApply }) {
    const { data } = useData(async () => (query.where ? api.filterParts(run, query.where) : null), [run, query.where]);
    const parts = data?.parts ?? [],
      best = parts
        .filter((/** @type {any} */ part) => part.total > 0)
        .sort((/** @type {any} */ a, /** @type {any} */ b) => a.total - b.total)[0];
    return html`<div class="nores"><${ui.Empty} title="No rollout matches this filter">
      ${query.words ? html`<p>No question, answer or message has words that begin with <code>${query.words}</code>.</p>` : null}
      ${parts.length > 1 ? html`<p>Each part on its own: ${parts.map((/** @type {any} */ part, /** @type {number} */ index) => html`<span key=${part.text}>${index ? ", " : ""}<code>${part.text}</code> matches ${format.count(part.total)}</span>`)}.</p>` : null}
      ${(data?.columns ?? []).map((/** @type {any} */ column) => (column.min === undefined || column.min === null ? null : html`<p key=${column.name}><code>${column.name}</code> of this run lies between ${format.value(column.min)} and ${format.value(column.max)}.</p>`))}
      <div class="row wraps"><button type="button" class="btn primary" onClick=${() => onApply({ where: "", words: "" })}>Clear the filter</button>${best ? html`<button type="button" class="btn" onClick=${() => onApply({ where: best.text, words: "" })}>Keep only <code>${best.text}</code></button>` : null}</div><//></div>`;
  }

  gymView.toolbar = { FilterInput, SavedFilters, NoResult, selectionOf, textOf };
})();
