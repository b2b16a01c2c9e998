"use strict";
// Build the document with Preact. Text of models reaches it as text only: `html` and `h` create text nodes, and
// characters that would turn text around or stay invisible are shown as their code points.
(() => {
  const preact = window.htmPreact;
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

  /** Show control and direction characters as ⟦U+202E⟧ instead of obeying them. */
  function plain(/** @type {string} */ text) {
    return text.replace(
      HIDDEN,
      (character) => `⟦U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`,
    );
  }

  function clean(/** @type {any} */ value) {
    if (typeof value === "string") return plain(value);
    return Array.isArray(value) && value.some((item) => typeof item === "string") ? value.map(clean) : value;
  }

  function html(/** @type {TemplateStringsArray} */ strings, /** @type {any[]} */ ...values) {
    return preact.html(strings, ...values.map(clean));
  }

  function h(/** @type {any} */ tag, /** @type {any} */ props, /** @type {any[]} */ ...children) {
    return preact.h(tag, props, ...children.map(clean));
  }

  /**
   * Load data for a component. The previous data stays while new data is loading or when loading fails.
   * @param {(signal: AbortSignal) => Promise<any>} load
   * @param {any[]} dependencies
   */
  function useData(load, dependencies) {
    const [state, setState] = preact.useState({ data: null, error: null, loading: true });
    const [turn, setTurn] = preact.useState(0);
    preact.useEffect(() => {
      const abort = new AbortController();
      setState((/** @type {any} */ old) => ({ ...old, loading: true }));
      load(abort.signal).then(
        (data) => abort.signal.aborted || setState({ data, error: null, loading: false }),
        (error) => abort.signal.aborted || setState((/** @type {any} */ old) => ({ ...old, error, loading: false })),
      );
      return () => abort.abort();
    }, [...dependencies, turn]);
    return { ...state, reload: () => setTurn((/** @type {number} */ number) => number + 1) };
  }

  /** Return the width of an element and follow its changes. */
  function useWidth(/** @type {{ current: HTMLElement | null }} */ reference) {
    const [width, setWidth] = preact.useState(0);
    preact.useLayoutEffect(() => {
      const element = reference.current;
      if (!element) return undefined;
      setWidth(element.clientWidth);
      const observer = new ResizeObserver(() => setWidth(element.clientWidth));
      observer.observe(element);
      return () => observer.disconnect();
    }, []);
    return width;
  }

  window.gymView = {
    ...preact,
    html,
    h,
    plain,
    useData,
    useWidth,
    /** Pages by name, filled by the scripts in pages/. */
    pages: {},
  };
})();
