"use strict";
// Find in the conversation. Hits are highlighted by ranges, so that the elements of the messages stay as they are.
(() => {
  const { html, Icon, useState, useEffect, useRef } = gymView;
  const LEAST = 2;
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

  function FindBar({ root, more, children }) {
    const [text, setText] = useState(""),
      [chosen, setChosen] = useState(0),
      [hits, setHits] = useState(/** @type {Range[]} */ ([]));
    const input = useRef(null);
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
    return html`<div class="cfind"><div class="in"><${Icon} name="search" small /><input id="find" ref=${input} value=${text} placeholder="Find in conversation" aria-label="Find in conversation" autocomplete="off" onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown} /><span class="count" role="status">${text.trim().length >= LEAST ? `${hits.length ? chosen + 1 : 0} of ${hits.length}` : html`<kbd class="only-wide">/</kbd>`}</span></div>${hits.length ? html`<button type="button" class="btn sm icon" aria-label="Previous hit" onClick=${() => go(-1)}><${Icon} name="up" small /></button><button type="button" class="btn sm icon" aria-label="Next hit" onClick=${() => go(1)}><${Icon} name="down" small /></button>` : null}<span class="grow"></span>${children}</div>`;
  }

  gymView.FindBar = FindBar;
})();
