"use strict";
// The key map: components register their keys while they are shown, and the `?` dialog lists what is registered.
(() => {
  const SEQUENCE_MS = 900;
  /** @typedef {[keys: string, label: string, handler: ((event: KeyboardEvent) => void) | null]} Binding */
  /** @type {{ title: string, bindings: Binding[] }[]} */
  const groups = [];
  let prefix = "",
    prefixUntil = 0;

  const isTyping = (/** @type {any} */ target) =>
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      /^(TEXTAREA|SELECT)$/.test(target.tagName) ||
      (target instanceof HTMLInputElement && !/^(checkbox|radio|button)$/.test(target.type)));
  const keyName = (/** @type {KeyboardEvent} */ event) => (event.key === " " ? "Space" : event.key);

  function find(/** @type {string} */ keys) {
    for (const group of [...groups].reverse()) {
      // what was opened last comes first
      for (const [names, , handler] of group.bindings) {
        const alternatives = /^g \w$/.test(names) ? [names] : names.split(" ");
        if (handler && alternatives.includes(keys)) return handler;
      }
    }
    return null;
  }

  function dispatch(/** @type {KeyboardEvent} */ event) {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      find("Ctrl+k")?.(event);
      return;
    }
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape" && event.target instanceof HTMLElement && !document.querySelector("dialog[open]"))
        event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const name = keyName(event),
      now = Date.now();
    const inSequence = prefix !== "" && now < prefixUntil;
    const handler = find(inSequence ? `${prefix} ${name}` : name);
    prefix = !inSequence && name === "g" ? "g" : "";
    prefixUntil = now + SEQUENCE_MS;
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if ((name === "Enter" || name === "Space") && target.closest("a, button, summary, input")) return; // they have a meaning of their own
    if (/^Arrow(Left|Right)$/.test(name) && target.closest("[role=tablist], [role=radiogroup]")) return;
    if (handler) {
      event.preventDefault();
      handler(event);
    }
  }

  addEventListener("keydown", dispatch);

  gymView.keys = { groups: () => groups };
  /** Register keys while a component is mounted; the handlers of the last render are used. */
  gymView.useKeys = (/** @type {string} */ title, /** @type {Binding[]} */ bindings) => {
    const group = gymView.useRef({ title, bindings });
    group.current.bindings = bindings;
    gymView.useLayoutEffect(() => {
      groups.push(group.current);
      return () => {
        groups.splice(groups.indexOf(group.current), 1);
      };
    }, []);
  };
})();
