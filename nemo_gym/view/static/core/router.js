"use strict";
// Addresses. Everything a page shows is in the hash: #/run/0/rollouts?where=…, #/run/0/rollout/5/1?tab=tokens, #/compare/0,1
(() => {
  const EMPTY = new Set(["", null, undefined, false]);
  /** @type {Set<() => void>} */
  const listeners = new Set();

  function queryText(/** @type {Record<string, any>} */ query) {
    const text = new URLSearchParams(Object.entries(query).filter(([, value]) => !EMPTY.has(value))).toString();
    return text ? `?${text}` : "";
  }

  /** Parse an address; addresses of earlier versions of the viewer still open. */
  function parse(/** @type {string} */ hash) {
    const [path, text = ""] = hash.replace(/^#/, "").split("?");
    const query = Object.fromEntries(new URLSearchParams(text));
    const [first = "", ...rest] = path
      .split("/")
      .filter(Boolean)
      .map((part) => decodeURIComponent(part));
    if (first === "compare") {
      const parts = rest.length ? rest : ["0"];
      const [baseline, candidate = baseline] = parts[0].split(",");
      return { page: "compare", run: Number(candidate) || 0, parts, query };
    }
    if (first !== "run") return { page: first === "runs" ? "runs" : "start", run: 0, parts: [], query };
    const [run, page = "overview", ...parts] = rest;
    if (page === "compare") return parse(`#/compare/${run},${parts[0] ?? 0}${queryText(query)}`);
    return { page, run: Number(run) || 0, parts, query };
  }

  const router = {
    parse,
    current: () => parse(location.hash),
    address: (
      /** @type {number} */ run,
      page = "overview",
      /** @type {any[]} */ parts = [],
      /** @type {Record<string, any>} */ query = {},
    ) =>
      `#/run/${[run, ...(page === "overview" ? [] : [page]), ...parts].map((part) => encodeURIComponent(part)).join("/")}${queryText(query)}`,
    rollout: (
      /** @type {number} */ run,
      /** @type {number} */ task,
      /** @type {number} */ repeat,
      /** @type {Record<string, any>} */ query = {},
    ) => router.address(run, "rollout", [task, repeat], query),
    compareAddress: (/** @type {number[]} */ runs, /** @type {Record<string, any>} */ query = {}) =>
      `#/compare/${runs.join(",")}${queryText(query)}`,
    go(/** @type {string} */ hash) {
      location.hash = hash;
    },
    /** Change the address without a new entry in the history, for what changes while one looks: the row, the turn. */
    replace(/** @type {string} */ hash) {
      if (hash === location.hash) return;
      history.replaceState(history.state, "", hash);
      for (const listener of listeners) listener();
    },
    listen(/** @type {() => void} */ listener) {
      listeners.add(listener);
      addEventListener("hashchange", listener);
      return () => {
        listeners.delete(listener);
        removeEventListener("hashchange", listener);
      };
    },
    /** The part of a query that selects rows: it goes along from the table to a rollout and back. */
    selection: (/** @type {Record<string, string>} */ { where, words, sort, down }) => ({ where, words, sort, down }),
  };
  gymView.router = router;
})();
