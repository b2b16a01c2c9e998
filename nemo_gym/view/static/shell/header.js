"use strict";
// The header: run picker, tabs with counts, go to, theme, help.
(() => {
  const { html, Icon, format, router, store, ui, useState } = gymView;

  const Logo = () =>
    html`<svg viewBox="0 0 20 20" aria-hidden="true"><rect class="fill-inverse" width="20" height="20" rx="5" /><g class="fill-on-inverse"><rect x="4" y="11" width="3" height="5" rx="1" /><rect x="8.5" y="7.5" width="3" height="8.5" rx="1" /><rect x="13" y="4" width="3" height="12" rx="1" /></g></svg>`;

  function currentTheme() {
    return (
      document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")
    );
  }
  function ThemeButton() {
    const [theme, setTheme] = useState(currentTheme);
    const change = () => {
      const next = currentTheme() === "dark" ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      store.set("theme", next);
      setTheme(next);
    };
    return html`<button type="button" class="btn ghost icon" id="theme" aria-label=${`Switch to the ${theme === "dark" ? "light" : "dark"} theme`} data-tip="Theme: light / dark" onClick=${change}><${Icon} name=${theme === "dark" ? "sun" : "moon"} /></button>`;
  }

  const total = (/** @type {any} */ run, /** @type {any} */ summary) =>
    run?.rollouts ??
    summary?.outcomes?.reduce?.((/** @type {number} */ sum, /** @type {any} */ entry) => sum + entry.count, 0);

  /** Return the other run that a run is compared with: the newest earlier one of the same rows, or of the same environment. */
  function otherRun(/** @type {any[]} */ runs, /** @type {number} */ number) {
    const own = runs.find((run) => run.number === number),
      others = runs.filter((run) => run.number !== number);
    const isLike = (/** @type {any} */ run, /** @type {string} */ name) =>
      Boolean(own?.[name]) && run[name] === own[name];
    const rank = (/** @type {any} */ run) =>
      4 * Number(isLike(run, "data")) +
      2 * Number(run.started_at < own?.started_at) +
      Number(isLike(run, "environment"));
    const isBetter = (/** @type {any} */ one, /** @type {any} */ two) =>
      rank(one) > rank(two) || (rank(one) === rank(two) && one.started_at > two.started_at);
    return others.reduce((best, run) => (best && !isBetter(run, best) ? best : run), null);
  }

  /** Return the address that compares a run with another one, the earlier run first; empty without another one. */
  function compareAddressOf(/** @type {any[]} */ runs, /** @type {number} */ number) {
    const own = runs.find((run) => run.number === number),
      other = otherRun(runs, number);
    if (!own || !other) return "";
    const isLater =
      (own.started_at ?? "") === (other.started_at ?? "")
        ? own.number > other.number
        : own.started_at > other.started_at;
    return router.compareAddress(isLater ? [other.number, own.number] : [own.number, other.number]);
  }

  function tabs(/** @type {any} */ route, /** @type {any[]} */ runs, /** @type {any} */ summary) {
    const run = runs.find((each) => each.number === route.run);
    const isLive = run?.state === "running" || summary?.state === "running" || route.page === "live";
    const isCompare = route.page === "compare" && runs.length > 1;
    const compare = isCompare
      ? router.compareAddress(route.parts[0].split(",").map(Number))
      : compareAddressOf(runs, route.run);
    return [
      ["overview", "Overview", undefined, router.address(route.run)],
      ["rollouts", "Rollouts", total(run, summary), router.address(route.run, "rollouts")],
      ["tasks", "Tasks", run?.tasks ?? summary?.reward?.tasks, router.address(route.run, "tasks")],
      ...(compare ? [["compare", "Compare", undefined, compare]] : []),
      ...(isLive ? [["live", "Live", undefined, router.address(route.run, "live")]] : []),
    ];
  }

  function Header({ route, runs, summary, status, open }) {
    const run = runs.find((/** @type {any} */ each) => each.number === route.run);
    const isRunPage = route.page !== "runs" && runs.length > 0;
    const page = route.page === "rollout" ? "rollouts" : route.page;
    const isLive = run?.state === "running" || summary?.state === "running";
    return html`<header class="top" id="top"><a class="brand" href="#/runs" aria-label="gym view, all runs"><${Logo} /><span class="only-wide">gym view</span></a>
      ${
        isRunPage
          ? html`<span class="slash only-wide" aria-hidden="true">/</span><button type="button" class="pick" aria-haspopup="dialog" onClick=${() => open("palette")}><span class="ell">${run?.title ?? run?.name ?? "run"}</span><${Icon} name="down" small /></button>
        ${isLive ? html`<a class="pill live" href=${router.address(route.run, "live")}><i></i>running</a>` : null}
        <nav aria-label="Run">${tabs(route, runs, summary).map(([id, label, count, href]) => html`<a key=${id} href=${href} aria-current=${page === id ? "page" : undefined}>${label}${count === undefined || count === null ? null : html`<span class="c">${format.count(count)}</span>`}</a>`)}</nav>`
          : null
      }
      <span class="grow"></span><span id="status" role="status" class="t3">${status}</span>
      <button type="button" class="searchbtn" onClick=${() => open("palette")}><${Icon} name="search" /><span>Go to task, run, page</span><kbd aria-hidden="true">⌘K</kbd></button>
      <${ThemeButton} /><button type="button" class="btn ghost icon only-wide" aria-label="Keyboard shortcuts" data-tip="Keyboard shortcuts  ?" onClick=${() => open("keys")}><${Icon} name="help" /></button></header>`;
  }

  gymView.Header = Header;
  gymView.compareAddressOf = compareAddressOf;
  gymView.copyLink = () => ui.copyText(location.href, "Link to this view copied");
})();
