"use strict";
// A table of any number of rows: only the visible ones are in the document. The scrolled element is at most MOST_HEIGHT
// pixels tall; a longer table is scaled to it.
(() => {
  const { html, useState, useRef, useEffect, useLayoutEffect, useWidth } = gymView;
  const MOST_HEIGHT = 8_000_000;
  const HEAD = 34;
  const WINDOW = 200;
  const KEPT_WINDOWS = 30;
  const PHONE = "(max-width: 760px)";

  function usePhone() {
    const [isPhone, setPhone] = useState(() => matchMedia(PHONE).matches);
    useEffect(() => {
      const query = matchMedia(PHONE),
        change = () => setPhone(query.matches);
      query.addEventListener("change", change);
      return () => query.removeEventListener("change", change);
    }, []);
    return isPhone;
  }

  /**
   * Rows by position, fetched in windows of 200. The rows of the previous selection stay until the new ones are there.
   * @param {(start: number, count: number, signal: AbortSignal) => Promise<any>} load
   * @param {string} key identifies the selection
   */
  function useRowWindows(load, key) {
    const [, refresh] = useState(0);
    const store = useRef({
      key: "",
      windows: new Map(),
      waiting: new Map(),
      answer: null,
      error: null,
      abort: new AbortController(),
    });
    const current = store.current;
    if (current.key !== key) {
      current.abort.abort();
      Object.assign(current, { key, fresh: false, error: null, waiting: new Map(), abort: new AbortController() });
    }
    const take = (/** @type {string} */ of, /** @type {number} */ index, /** @type {any} */ answer) => {
      if (store.current.key !== of) return;
      if (!current.fresh) Object.assign(current, { windows: new Map(), fresh: true });
      current.windows.set(index, answer.rows);
      if (current.windows.size > KEPT_WINDOWS) current.windows.delete(current.windows.keys().next().value);
      Object.assign(current, { answer, error: null });
      refresh((/** @type {number} */ turn) => turn + 1);
    };
    const need = (/** @type {number} */ first, /** @type {number} */ last) => {
      if (current.key !== key) return; // an effect of an earlier selection may run after the next one was rendered
      for (let index = Math.floor(first / WINDOW); index <= Math.floor(Math.max(first, last - 1) / WINDOW); index++) {
        if (current.error || (current.fresh && current.windows.has(index)) || current.waiting.has(index)) continue;
        const asked = key;
        current.waiting.set(
          index,
          load(index * WINDOW, WINDOW, current.abort.signal)
            .then(
              (answer) => take(asked, index, answer),
              (error) => {
                if (store.current.key !== asked || error.name === "AbortError") return;
                current.error = error;
                refresh((/** @type {number} */ turn) => turn + 1);
              },
            )
            .finally(() => {
              if (store.current.key === asked) current.waiting.delete(index);
            }),
        );
      }
    };
    return {
      answer: current.answer,
      error: current.error,
      isFresh: Boolean(current.fresh),
      row: (/** @type {number} */ index) => current.windows.get(Math.floor(index / WINDOW))?.[index % WINDOW] ?? null,
      need,
    };
  }

  /** Return the first visible row for a scroll position, and back. */
  function geometry(/** @type {number} */ total, /** @type {number} */ rowHeight, /** @type {number} */ view) {
    const full = total * rowHeight,
      height = Math.min(full, MOST_HEIGHT),
      isScaled = full > height;
    const visible = view / rowHeight,
      most = Math.max(0, total - visible),
      travel = Math.max(1, height - view);
    return {
      height,
      isScaled,
      visible,
      first: (/** @type {number} */ top) => (isScaled ? Math.min(most, (top / travel) * most) : top / rowHeight),
      top: (/** @type {number} */ first) =>
        isScaled ? (Math.min(first, most) / Math.max(1, most)) * travel : first * rowHeight,
    };
  }

  /**
   * The table. `columns` are {id, title, width, grow?, numeric?, cell(row)}; `rowAt(index)` returns null while a row loads.
   * @param {any} props
   */
  function VirtualTable({
    columns,
    total,
    rowAt,
    need,
    rowHeight,
    selected,
    onSelect,
    onOpen,
    sort,
    onSort,
    onVisible,
    phoneRow,
    label,
    reveal,
    children,
  }) {
    const box = useRef(null),
      [scrollTop, setScrollTop] = useState(0),
      [view, setView] = useState(600);
    const isPhone = usePhone(),
      head = isPhone ? 0 : HEAD,
      height = isPhone ? 78 : rowHeight;
    const shape = geometry(total, height, Math.max(height, view - head));
    const first = Math.max(0, Math.floor(shape.first(scrollTop))),
      last = Math.min(total, first + Math.ceil(shape.visible) + 1);

    useLayoutEffect(() => {
      const element = box.current;
      if (!element) return undefined;
      const measure = () => setView(element.clientHeight);
      measure();
      const observer = new ResizeObserver(measure);
      observer.observe(element);
      return () => observer.disconnect();
    }, []);
    useEffect(() => {
      need(first, Math.max(last, first + 1));
      onVisible?.(
        total ? first : 0,
        Math.min(total, Math.max(first + 1, Math.floor(shape.first(scrollTop) + shape.visible + 0.01))),
      );
    });
    useLayoutEffect(() => {
      // bring the selected row into view
      const element = box.current;
      if (!element || reveal === null || reveal === undefined || reveal.index < 0) return;
      const from = shape.first(element.scrollTop),
        { index } = reveal;
      let to = from;
      if (reveal.centre && (index < from || index + 1 > from + shape.visible))
        to = index - Math.floor(shape.visible / 3);
      else if (index < from) to = index;
      else if (index + 1 > from + shape.visible) to = index + 1 - shape.visible;
      if (to !== from) {
        element.scrollTop = Math.max(0, shape.top(Math.max(0, to)));
        setScrollTop(element.scrollTop);
      }
    }, [reveal, total]);

    const template = columns
      .map((/** @type {any} */ column) => (column.grow ? `minmax(${column.width}px, 1fr)` : `${column.width}px`))
      .join(" ");
    const minimum = `${columns.reduce((/** @type {number} */ sum, /** @type {any} */ column) => sum + column.width, 0)}px`;
    const offset = shape.isScaled ? scrollTop - (shape.first(scrollTop) - first) * height : first * height;
    const rows = [];
    for (let index = first; index < last; index++)
      rows.push(renderRow(index, head + offset + (index - first) * height));

    function renderRow(/** @type {number} */ index, /** @type {number} */ top) {
      const row = rowAt(index),
        isSelected = index === selected;
      const common = {
        key: index,
        id: `row-${index}`,
        role: "row",
        "aria-rowindex": index + 2,
        "aria-selected": String(isSelected),
        class: "rw-row",
        style: { top: `${top}px` },
      };
      const events = { onClick: () => (isPhone ? onOpen(index) : onSelect(index)), onDblClick: () => onOpen(index) };
      if (!row)
        return html`<div ...${common}><div role="gridcell" class="loading-row"><span class="skel w70"></span></div></div>`;
      if (isPhone) return html`<div ...${common} ...${events}><div role="gridcell">${phoneRow(row)}</div></div>`;
      return html`<div ...${common} ...${events}>${columns.map((/** @type {any} */ column) => html`<div role="gridcell" key=${column.id} class=${column.numeric ? "n" : ""}>${column.cell(row)}</div>`)}</div>`;
    }

    const header = html`<div class="hd" role="row" aria-rowindex="1">${columns.map((/** @type {any} */ column) => {
      const direction = sort?.id === column.sortId ? (sort.down ? "descending" : "ascending") : undefined;
      return html`<div role="columnheader" key=${column.id} class=${`${column.numeric ? "n" : ""} ${direction ? "sorted" : ""}`} aria-sort=${direction}>${column.sortId ? html`<button type="button" tabindex="-1" onClick=${() => onSort(column.sortId)}>${column.title}${direction ? (sort.down ? " ↓" : " ↑") : ""}</button>` : column.title}</div>`;
    })}</div>`;
    const onScroll = (/** @type {any} */ event) => setScrollTop(event.currentTarget.scrollTop);
    return html`<div class="vt" ref=${box} tabindex="0" role="grid" aria-label=${label} aria-rowcount=${total + 1} aria-activedescendant=${selected >= first && selected < last ? `row-${selected}` : undefined} onScroll=${onScroll} style=${{ "--cols": template, "--minw": minimum, "--row": `${height}px` }}>
      ${header}${total ? rows : null}<div class="space" role="presentation" style=${{ height: `${total ? shape.height : 0}px` }}></div>${children}</div>`;
  }

  gymView.table = { VirtualTable, useRowWindows, usePhone, useWidth, WINDOW };
})();
