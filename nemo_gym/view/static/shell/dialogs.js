"use strict";
// Dialogs of every page: go to (⌘K), the key map (?), and a text to be copied by hand.
(() => {
  const { html, Icon, format, router, keys, useState, useEffect, useRef, useMemo } = gymView;
  const MOST_ENTRIES = 12;

  function Dialog({ label, onClose, children }) {
    const element = useRef(null);
    useEffect(() => {
      const dialog = element.current;
      if (!dialog) return undefined;
      if (!dialog.open) dialog.showModal();
      const close = (/** @type {Event} */ event) => {
        if (event.target === dialog) dialog.close();
      };
      const leave = () => dialog.close(); // the page below is another one now
      dialog.addEventListener("click", close);
      addEventListener("hashchange", leave);
      return () => {
        dialog.removeEventListener("click", close);
        removeEventListener("hashchange", leave);
      };
    }, []);
    return html`<dialog ref=${element} aria-label=${label} onClose=${onClose}>${children}</dialog>`;
  }

  /** Return where a text of the palette leads: tasks by number (412 or 412:3), pages and runs by name. */
  function targets(/** @type {string} */ text, /** @type {any[]} */ runs, /** @type {any} */ route) {
    const found = [],
      place = /^\s*(?:task\s*)?(\d+)(?:\s*[:. -]\s*(\d+))?\s*$/i.exec(text);
    if (place) {
      const task = Number(place[1]),
        repeat = Number(place[2] ?? 0);
      found.push({
        icon: "rows",
        label: `Task ${task}, repeat ${repeat}`,
        note: "open the rollout",
        href: router.rollout(route.run, task, repeat),
      });
      if (place[2] === undefined)
        found.push({
          icon: "rows",
          label: `All repeats of task ${task}`,
          note: "table",
          href: router.address(route.run, "rollouts", [], { where: `task == ${task}` }),
        });
    }
    const pages = [
      ["Overview", "overview"],
      ["Rollouts", "rollouts"],
      ["Tasks", "tasks"],
      ["Live", "live"],
    ].map(([label, page]) => ({ icon: "right", label, note: "page", href: router.address(route.run, page) }));
    const other = runs.findIndex((run) => run.number !== route.run);
    const all = [
      ...pages,
      { icon: "right", label: "All runs", note: "page", href: "#/runs" },
      ...(other < 0
        ? []
        : [
            {
              icon: "scale",
              label: "Compare",
              note: "page",
              href: router.compareAddress([runs[other].number, route.run]),
            },
          ]),
      ...runs.map((run) => ({
        icon: "rows",
        label: run.title ?? run.name,
        note: run.rollouts === undefined ? "run" : format.plural(run.rollouts, "rollout"),
        href: router.address(run.number),
      })),
    ];
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return [...found, ...all.filter(({ label }) => words.every((word) => label.toLowerCase().includes(word)))].slice(
      0,
      MOST_ENTRIES,
    );
  }

  function Palette({ runs, route, onClose }) {
    const [text, setText] = useState(""),
      [chosen, setChosen] = useState(0);
    const entries = useMemo(() => targets(text, runs, route), [text, runs]);
    const list = useRef(null);
    const open = (/** @type {string} */ href) => {
      onClose();
      router.go(href);
    };
    const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        const next = (chosen + (event.key === "ArrowDown" ? 1 : entries.length - 1)) % Math.max(1, entries.length);
        setChosen(next);
        list.current?.children[next]?.scrollIntoView({ block: "nearest" });
      } else if (event.key === "Enter" && entries[chosen]) {
        event.preventDefault();
        open(entries[chosen].href);
      }
    };
    return html`<${Dialog} label="Go to" onClose=${onClose}><div class="in"><${Icon} name="search" /><input autofocus placeholder="Type a task number, a run or a page" aria-label="Go to" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${entries.length ? `palette-${chosen}` : undefined}
        value=${text} onInput=${(/** @type {any} */ event) => {
          setText(event.target.value);
          setChosen(0);
        }} onKeyDown=${onKeyDown} /><kbd>Esc</kbd></div>
      <ul id="palette-list" role="listbox" aria-label="Places" ref=${list}>${entries.map((entry, index) => html`<li key=${entry.href + entry.label} id=${`palette-${index}`} role="option" aria-selected=${String(index === chosen)} class=${index === chosen ? "on" : ""} onClick=${() => open(entry.href)}><${Icon} name=${entry.icon} /><span>${entry.label}</span><span class="t3">${entry.note}</span></li>`)}</ul>
      ${entries.length ? null : html`<p class="palette-none t3">No page, run or task of this name.</p>`}<//>`;
  }

  function keyCaps(/** @type {string} */ names) {
    const shown = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Enter: "↵", "Ctrl+k": "⌘K" };
    return names
      .split(" ")
      .map(
        (name, index) =>
          html`<span key=${name}>${index && !/^g /.test(names) ? html`<span class="t3"> or </span>` : " "}<kbd>${shown[/** @type {keyof shown} */ (name)] ?? name}</kbd></span>`,
      );
  }

  function KeyMap({ onClose }) {
    const merged = new Map();
    for (const { title, bindings } of keys.groups()) merged.set(title, [...(merged.get(title) ?? []), ...bindings]);
    return html`<${Dialog} label="Keyboard shortcuts" onClose=${onClose}><div class="in"><h2 class="grow">Keyboard shortcuts</h2><button type="button" class="btn ghost sm icon" aria-label="Close" onClick=${(/** @type {any} */ event) => event.target.closest("dialog").close()}><${Icon} name="close" small /></button></div>
      <div class="keygrid">${[...merged].map(([title, bindings]) => html`<h3 key=${title}>${title}</h3>${bindings.filter((/** @type {any[]} */ [, label]) => label).map((/** @type {any[]} */ [names, label]) => html`<div key=${names}><span>${label}</span><span class="nowrap">${keyCaps(names)}</span></div>`)}`)}</div><//>`;
  }

  function CopyByHand({ text, onClose }) {
    return html`<${Dialog} label="Copy by hand" onClose=${onClose}><div class="in"><h2 class="grow">Copy by hand</h2><kbd>Esc</kbd></div><div class="copybox"><p class="t2">The browser does not let this page use the clipboard.</p><textarea readonly rows="10" aria-label="Text to copy" onFocus=${(/** @type {any} */ event) => event.target.select()} value=${text}></textarea></div><//>`;
  }

  gymView.dialogs = { Palette, KeyMap, CopyByHand };
})();
