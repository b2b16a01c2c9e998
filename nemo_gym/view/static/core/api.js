"use strict";
// Where the data comes from: the server, or the files beside this page (see disk.js).
(() => {
  class ApiError extends Error {
    constructor(/** @type {string} */ message, /** @type {number} */ status, /** @type {any} */ detail = {}) {
      super(message);
      this.status = status;
      this.detail = detail;
    }
  }

  function withQuery(/** @type {string} */ path, /** @type {Record<string, any>} */ query) {
    const entries = Object.entries(query).filter(
      ([, value]) => value !== "" && value !== undefined && value !== null && value !== false,
    );
    const text = new URLSearchParams(entries).toString();
    return text ? `api/${path}?${text}` : `api/${path}`;
  }

  async function readError(/** @type {Response} */ response) {
    const text = await response.text();
    try {
      const detail = JSON.parse(text);
      return new ApiError(detail.message ?? detail.error ?? text, response.status, detail);
    } catch {
      return new ApiError(text || `The server answered ${response.status}.`, response.status);
    }
  }

  async function request(/** @type {string} */ path, /** @type {RequestInit} */ options) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError("The server of this page has ended. Start it again with gym view.", 0);
    }
    if (!response.ok) throw await readError(response);
    return response.json();
  }

  const get = (/** @type {string} */ path, { query = {}, signal = undefined } = {}) =>
    request(withQuery(path, query), { signal });
  const rollout = (/** @type {any} */ { run, task, repeat }) => `runs/${run}/rollouts/${task}/${repeat}`;

  /** The methods by which pages read; `disk` in disk.js has the same ones. */
  const server = {
    runs: (/** @type {any} */ signal) => get("runs", { signal }),
    summary: (/** @type {number} */ run, /** @type {any} */ signal) => get(`runs/${run}`, { signal }),
    progress: (/** @type {number} */ run) => get(`runs/${run}/progress`),
    columns: (/** @type {number} */ run) => get(`runs/${run}/columns`),
    rollouts: (/** @type {number} */ run, /** @type {any} */ query, /** @type {any} */ signal) =>
      get(`runs/${run}/rollouts`, { query, signal }),
    filterParts: (/** @type {number} */ run, /** @type {string} */ where) =>
      get(`runs/${run}/filter`, { query: { where } }),
    tasks: (/** @type {number} */ run, /** @type {any} */ query, /** @type {any} */ signal) =>
      get(`runs/${run}/tasks`, { query, signal }),
    rollout: (/** @type {any} */ id, /** @type {any} */ query, /** @type {any} */ signal) =>
      get(rollout(id), { query, signal }),
    text: (/** @type {any} */ id, /** @type {number} */ event, /** @type {any} */ query) =>
      get(`${rollout(id)}/text/${event}`, { query }),
    find: (/** @type {any} */ id, /** @type {any} */ query) => get(`${rollout(id)}/find`, { query }),
    tokens: (/** @type {any} */ id, /** @type {number} */ event) => get(`${rollout(id)}/tokens/${event}`),
    tools: (/** @type {any} */ id, /** @type {any} */ query) => get(`${rollout(id)}/tools`, { query }),
    sequence: (/** @type {any} */ id, /** @type {any} */ query) => get(`${rollout(id)}/sequence`, { query }),
    raw: (/** @type {any} */ id, /** @type {any} */ query) => get(`${rollout(id)}/raw`, { query }),
    row: (/** @type {any} */ id) => get(`${rollout(id)}/row`),
    live: (/** @type {number} */ run, /** @type {any} */ signal) => get(`runs/${run}/live`, { signal }),
    compare: (/** @type {number[]} */ runs) =>
      runs.length === 2 ? get(`compare/${runs.join("/")}`) : get("compare", { query: { runs: runs.join(",") } }),
    csvAddress: (/** @type {number} */ run, /** @type {any} */ query) => withQuery(`runs/${run}/rollouts.csv`, query),
  };

  const isBundle = location.protocol === "file:" || Boolean(document.documentElement.dataset.bundle);
  gymView.ApiError = ApiError;
  gymView.api = {
    ...server,
    isBundle,
    get,
    /** Write an annotation: the only request that is not a GET. It needs the token that the server put into the page. */
    send(/** @type {string} */ method, /** @type {string} */ path, /** @type {any} */ body) {
      const token = document.querySelector('meta[name="gym-view-token"]')?.getAttribute("content") ?? "";
      const headers = { "Content-Type": "application/json", "X-Gym-View-Token": token };
      return request(`api/${path}`, { method, headers, body: JSON.stringify(body) });
    },
    bundle: () => Promise.reject(new ApiError("this page is not a bundle", 0)),
  };
})();
