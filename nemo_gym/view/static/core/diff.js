"use strict";
// Differences of texts: words inside of a line, lines inside of a text, and values of JSON.
(() => {
  const { html, format, ui, Icon, useState, useMemo } = gymView;
  const MOST_TOKENS = 2000;
  const MOST_WORDS = 3;
  const MOST_LINES = 4000;
  const MOST_CELLS = 4_000_000;
  const CONTEXT_LINES = 3;
  const MOST_LINE_PAIRS = 10_000;
  const LEAST_LIKENESS = 0.3; // below, marks inside of two lines are noise

  /** Return the pairs of equal items (longest common subsequence); equal ends are paired first. */
  function align(/** @type {string[]} */ one, /** @type {string[]} */ two) {
    /** @type {[number, number][]} */
    const pairs = [];
    let start = 0,
      endOne = one.length,
      endTwo = two.length;
    while (start < endOne && start < endTwo && one[start] === two[start]) pairs.push([start, start++]);
    /** @type {[number, number][]} */
    const tail = [];
    while (endOne > start && endTwo > start && one[endOne - 1] === two[endTwo - 1]) tail.push([--endOne, --endTwo]);
    const height = endOne - start,
      width = endTwo - start;
    if (height && width && height * width <= MOST_CELLS) {
      const lengths = Array.from({ length: height + 1 }, () => new Uint16Array(width + 1));
      for (let i = height - 1; i >= 0; i--) {
        for (let j = width - 1; j >= 0; j--) {
          lengths[i][j] =
            one[start + i] === two[start + j]
              ? lengths[i + 1][j + 1] + 1
              : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
        }
      }
      for (let i = 0, j = 0; i < height && j < width; ) {
        if (one[start + i] === two[start + j]) pairs.push([start + i++, start + j++]);
        else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
        else j++;
      }
    }
    return [...pairs, ...tail.reverse()];
  }

  /** @typedef {{ text: string, changed: boolean }} Part */

  function parts(/** @type {string[]} */ tokens, /** @type {Set<number>} */ equal) {
    /** @type {Part[]} */
    const joined = [];
    tokens.forEach((text, index) => {
      const changed = !equal.has(index),
        last = joined[joined.length - 1];
      if (last && last.changed === changed) last.text += text;
      else joined.push({ text, changed });
    });
    return joined;
  }

  /** Sentences are compared by word: letters that two words have in common by chance say nothing. */
  const isOfFewWords = (/** @type {string} */ text) => (text.match(/[\p{L}\p{N}_]+/gu) ?? []).length <= MOST_WORDS;

  /** Return both texts in parts that are marked as changed or not: by character for short ones, else by word. */
  function marks(/** @type {string} */ one, /** @type {string} */ two) {
    if (one === two) return [[{ text: one, changed: false }], [{ text: two, changed: false }]];
    const isShort = one.length + two.length <= 80 && [one, two].every(isOfFewWords);
    const split = (/** @type {string} */ text) => (isShort ? [...text] : (text.match(/\w+|\s+|[^\w\s]/gu) ?? []));
    const [a, b] = [split(one), split(two)];
    if (a.length > MOST_TOKENS || b.length > MOST_TOKENS)
      return [[{ text: one, changed: true }], [{ text: two, changed: true }]];
    const pairs = align(a, b);
    return [parts(a, new Set(pairs.map(([index]) => index))), parts(b, new Set(pairs.map(([, index]) => index)))];
  }

  const Marked = ({ list, look }) =>
    list.map((/** @type {Part} */ part, /** @type {number} */ index) =>
      part.changed && part.text
        ? html`<mark key=${index} class=${look}>${part.text}</mark>`
        : html`<span key=${index}>${part.text}</span>`,
    );

  /** Make values of any type comparable as text: objects with sorted keys, one value a line. */
  function readable(/** @type {any} */ value) {
    if (typeof value === "string") {
      const text = value.trim();
      if (/^[[{]/.test(text)) {
        try {
          return JSON.stringify(sortKeys(JSON.parse(text)), null, 2);
        } catch {
          /* not JSON: compare as text */
        }
      }
      return value;
    }
    return value !== null && typeof value === "object"
      ? JSON.stringify(sortKeys(value), null, 2)
      : format.stored(value);
  }

  /** @returns {any} */
  function sortKeys(/** @type {any} */ value) {
    if (Array.isArray(value)) return value.map(sortKeys);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.keys(value)
        .sort()
        .map((key) => [key, sortKeys(value[key])]),
    );
  }

  /** Return whether both are the same value, although one may be a number and the other its text. */
  const isSame = (/** @type {any} */ one, /** @type {any} */ two) =>
    readable(one) === readable(two) || format.stored(one) === format.stored(two);

  function AnswerDiff({ extracted, expected }) {
    const hasExtracted = extracted !== undefined && extracted !== null && extracted !== "";
    const hasExpected = expected !== undefined && expected !== null && expected !== "";
    const [one, two] = [readable(extracted), readable(expected)];
    const isLong = one.includes("\n") || two.includes("\n") || one.length > 160 || two.length > 160;
    if (hasExtracted && hasExpected && isLong)
      return html`<${TextDiff} a=${one} b=${two} labels=${["Extracted", "Expected"]} />`;
    const [left, right] =
      hasExtracted && hasExpected && !isSame(extracted, expected)
        ? marks(one, two)
        : [[{ text: one, changed: false }], [{ text: two, changed: false }]];
    return html`<div class="ans"><div><span class="lab">Extracted</span><code>${hasExtracted ? html`<${Marked} list=${left} look="del" />` : html`<i class="t3">nothing</i>`}</code></div>${hasExpected ? html`<div><span class="lab">Expected</span><code><${Marked} list=${right} look="add" /></code></div>` : null}</div>`;
  }

  /** @typedef {{ kind: "same" | "change", left: number | null, right: number | null }} Line */

  /** Return how alike two lines are, from 0 to 1: the share of words that both have. */
  function likeness(/** @type {string} */ one, /** @type {string} */ two) {
    const [words, others] = [one, two].map((text) => text.match(/[\p{L}\p{N}_]+/gu) ?? []);
    const total = words.length + others.length,
      rest = [...others];
    if (!total || total > MOST_TOKENS) return 0;
    let same = 0;
    for (const word of words) {
      const at = rest.indexOf(word);
      if (at >= 0) {
        rest.splice(at, 1);
        same++;
      }
    }
    return (2 * same) / total;
  }

  /** Return the pairs of changed lines that are alike, in the order of both texts, with the largest sum of likeness. */
  function alikeLines(/** @type {string[]} */ one, /** @type {string[]} */ two) {
    /** @type {[number, number][]} */
    const pairs = [];
    if (one.length * two.length > MOST_LINE_PAIRS) return pairs;
    const value = one.map((line) => two.map((other) => likeness(line, other))),
      best = Array.from({ length: one.length + 1 }, () => new Float64Array(two.length + 1));
    const joined = (/** @type {number} */ i, /** @type {number} */ j) =>
      value[i][j] >= LEAST_LIKENESS ? value[i][j] + best[i + 1][j + 1] : -1;
    for (let i = one.length - 1; i >= 0; i--)
      for (let j = two.length - 1; j >= 0; j--) best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], joined(i, j));
    for (let i = 0, j = 0; i < one.length && j < two.length; ) {
      if (joined(i, j) === best[i][j]) pairs.push([i++, j++]);
      else if (best[i + 1][j] >= best[i][j + 1]) i++;
      else j++;
    }
    return pairs;
  }

  /** Return the lines of both texts side by side: equal ones, else those that are alike, else in their order. */
  function alignLines(/** @type {string[]} */ one, /** @type {string[]} */ two) {
    /** @type {Line[]} */
    const lines = [];
    let left = 0,
      right = 0;
    const changeUntil = (/** @type {number} */ i, /** @type {number} */ j) => {
      while (left < i || right < j)
        lines.push({ kind: "change", left: left < i ? left++ : null, right: right < j ? right++ : null });
    };
    for (const [i, j] of [...align(one, two), /** @type {[number, number]} */ ([one.length, two.length])]) {
      const [from, start] = [left, right];
      for (const [a, b] of alikeLines(one.slice(from, i), two.slice(start, j))) {
        changeUntil(from + a, start + b);
        changeUntil(from + a + 1, start + b + 1);
      }
      changeUntil(i, j);
      if (i < one.length) lines.push({ kind: "same", left: left++, right: right++ });
    }
    return lines;
  }

  /** Group the lines into shown ones and folds of equal ones. */
  function foldLines(/** @type {Line[]} */ lines) {
    const near = new Set();
    lines.forEach((line, index) => {
      if (line.kind === "change")
        for (let offset = -CONTEXT_LINES; offset <= CONTEXT_LINES; offset++) near.add(index + offset);
    });
    /** @type {{ folded: boolean, lines: Line[] }[]} */
    const groups = [];
    lines.forEach((line, index) => {
      const folded = !near.has(index),
        last = groups[groups.length - 1];
      if (last && last.folded === folded) last.lines.push(line);
      else groups.push({ folded, lines: [line] });
    });
    return groups;
  }

  function DiffLine({ line, one, two }) {
    const a = line.left === null ? null : one[line.left],
      b = line.right === null ? null : two[line.right];
    if (line.kind === "same")
      return html`<div class="dpair"><div class="dln"><i></i><span>${a}</span></div><div class="dln"><i></i><span>${b}</span></div></div>`;
    const [left, right] =
      a !== null && b !== null && likeness(a, b) >= LEAST_LIKENESS
        ? marks(a, b)
        : [[{ text: a ?? "", changed: false }], [{ text: b ?? "", changed: false }]];
    return html`<div class="dpair">${a === null ? html`<div class="dln none"></div>` : html`<div class="dln del"><i>−</i><span><${Marked} list=${left} look="del" /></span></div>`}${b === null ? html`<div class="dln none"></div>` : html`<div class="dln add"><i>+</i><span><${Marked} list=${right} look="add" /></span></div>`}</div>`;
  }

  function FoldedLines({ group, one, two }) {
    const [isOpen, setOpen] = useState(!group.folded || group.lines.length <= 2);
    if (isOpen)
      return group.lines.map(
        (/** @type {Line} */ line, /** @type {number} */ index) =>
          html`<${DiffLine} key=${index} line=${line} one=${one} two=${two} />`,
      );
    return html`<button type="button" class="samefold" onClick=${() => setOpen(true)}>${format.plural(group.lines.length, "equal line")}</button>`;
  }

  /** Two texts side by side, line by line; JSON is compared with sorted keys, tables by row. */
  function TextDiff({ a, b, labels = ["A", "B"], wide = false }) {
    const [isWide, setWide] = useState(wide);
    const [one, two] = useMemo(
      () => [readable(a).split("\n", MOST_LINES), readable(b).split("\n", MOST_LINES)],
      [a, b],
    );
    const groups = useMemo(() => foldLines(alignLines(one, two)), [one, two]);
    const same = groups.every((group) => group.folded);
    const table = html`<div class="tdiff"><div class="dhead"><div class="lab">${labels[0]}</div><div class="lab">${labels[1]}</div></div>${same ? html`<div class="samefold"><${Icon} name="check" small />Both are the same</div>` : null}${groups.map((group, index) => html`<${FoldedLines} key=${index} group=${group} one=${one} two=${two} />`)}</div>`;
    return html`<div class="tdiffbox">${isWide ? html`<${WideDialog} label=${`${labels[0]} and ${labels[1]}`} onClose=${() => setWide(false)}>${table}<//>` : table}
      ${same ? null : html`<button type="button" class="btn sm ghost" onClick=${() => setWide(true)}><${Icon} name="columns" small />Full width</button>`}</div>`;
  }

  function WideDialog({ label, onClose, children }) {
    const open = (/** @type {HTMLDialogElement | null} */ dialog) => {
      if (dialog && !dialog.open) dialog.showModal();
    };
    return html`<dialog class="widedialog" ref=${open} aria-label=${label} onClose=${onClose}><div class="in"><h2 class="grow">${label}</h2><button type="button" class="btn ghost sm icon" aria-label="Close" onClick=${(/** @type {any} */ event) => event.target.closest("dialog").close()}><${Icon} name="close" small /></button></div><div class="widebody">${children}</div></dialog>`;
  }

  gymView.diff = { marks, Marked, AnswerDiff, TextDiff, readable, isSame };
  ui.AnswerDiff = AnswerDiff;
})();
