"use strict";
// Find in the conversation. Hits are highlighted by ranges, so that the elements of the messages stay as they are.
(() => {
  const { html, Icon, useState, useEffect, useRef } = gymView;
  const LEAST = 2;
  const PAUSE_MS = 250;
  const MOST_HITS = 2000;

  function ranges(/** @type {Element} */ root, /** @type {string} */ wanted) {
    const found = /** @type {Range[]} */ ([]),
      walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && found.length < MOST_HITS; node = walker.nextNode()) {
      const text = (node.nodeValue ?? "").toLowerCase();
      if (node.parentElement?.closest("svg, .peek, .gut, button")) continue;
      for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + wanted.length);
        found.push(range);
      }
    }
    return found;
  }

  function paint(/** @type {Range[]} */ all, /** @type {number} */ chosen) {
    if (!CSS.highlights) return;
    CSS.highlights.set("find", new Highlight(...all));
    if (all[chosen]) CSS.highlights.set("find-current", new Highlight(all[chosen]));
    else CSS.highlights.delete("find-current");
  }

  function reveal(/** @type {Range} */ range) {
    const element = range.startContainer.parentElement;
    for (let details = element?.closest("details"); details; details = details.parentElement?.closest("details"))
      details.open = true;
    element?.scrollIntoView({ block: "center" });
  }

  /** The numbers of the items with the text that stand in other parts of a long conversation; none without parts. */
  function useElsewhere(/** @type {string} */ wanted, /** @type {any} */ parts) {
    const [numbers, setNumbers] = useState(/** @type {number[]} */ ([]));
    useEffect(() => {
      setNumbers([]);
      if (!parts || wanted.length < LEAST) return undefined;
      let isCurrent = true;
      const timer = setTimeout(async () => {
        const { events } = await parts.find(wanted).catch(() => ({ events: [] }));
        if (isCurrent) setNumbers(events);
      }, PAUSE_MS);
      return () => {
        isCurrent = false;
        clearTimeout(timer);
      };
    }, [wanted, Boolean(parts)]);
    return parts ? numbers.filter((number) => number < parts.start || number >= parts.end) : [];
  }

  /**
   * The field above a conversation. `onSearch` unfolds what is folded, so that it is searched; `parts` says which items
   * of a long conversation are on the page, how to find others and how to go there.
   * @param {any} props
   */
  function FindBar({ root, more, onSearch, parts = null, children }) {
    const [text, setText] = useState(""),
      [chosen, setChosen] = useState(0),
      [hits, setHits] = useState(/** @type {Range[]} */ ([]));
    const input = useRef(null),
      elsewhere = useElsewhere(text.trim().toLowerCase(), parts);
    useEffect(() => {
      if (text.trim().length >= LEAST) onSearch?.();
    }, [text]);
    useEffect(() => {
      const wanted = text.trim().toLowerCase(),
        found = root.current && wanted.length >= LEAST ? ranges(root.current, wanted) : [];
      setHits(found);
      setChosen(0);
      paint(found, 0);
      if (found[0]) reveal(found[0]);
      return () => paint([], 0);
    }, [text, more]);
    const go = (/** @type {number} */ step) => {
      const isAtEnd = !hits.length || (step > 0 ? chosen === hits.length - 1 : chosen === 0);
      if (isAtEnd && elsewhere.length) {
        const [first, last] = [elsewhere[0], elsewhere[elsewhere.length - 1]];
        const target =
          step > 0
            ? (elsewhere.find((number) => number >= parts.end) ?? first)
            : (elsewhere.findLast((number) => number < parts.start) ?? last);
        parts.show(target);
        return;
      }
      if (!hits.length) return;
      const next = (chosen + step + hits.length) % hits.length;
      setChosen(next);
      paint(hits, next);
      reveal(hits[next]);
    };
    const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        go(event.shiftKey ? -1 : 1);
      }
    };
    const isSearching = text.trim().length >= LEAST,
      count = `${hits.length ? chosen + 1 : 0} of ${hits.length}`;
    return html`<div class="cfind"><div class="in"><${Icon} name="search" small /><input id="find" ref=${input} value=${text} placeholder="Find in conversation" aria-label="Find in conversation" autocomplete="off" onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown} /><span class="count" role="status">${isSearching ? count : html`<kbd class="only-wide">/</kbd>`}</span></div>${elsewhere.length ? html`<span class="t2 note nowrap" role="status">and in ${gymView.format.plural(elsewhere.length, "item")} of other parts</span>` : null}${hits.length || elsewhere.length ? html`<button type="button" class="btn sm icon" aria-label="Previous hit" onClick=${() => go(-1)}><${Icon} name="up" small /></button><button type="button" class="btn sm icon" aria-label="Next hit" onClick=${() => go(1)}><${Icon} name="down" small /></button>` : null}<span class="grow"></span>${children}</div>`;
  }

  gymView.FindBar = FindBar;
})();
