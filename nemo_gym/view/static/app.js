"use strict";
// The frame of the viewer: reads the address, keeps runs and summary up to date, and shows one page.
(() => {
  const {
    html,
    h,
    api,
    router,
    store,
    ui,
    dialogs,
    pages,
    Header,
    useState,
    useEffect,
    useRef,
    useKeys,
    useErrorBoundary,
  } = gymView;
  const POLL_MS = 1500;

  const theme = store.get("theme", null);
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

  function useRoute() {
    const [route, setRoute] = useState(router.current);
    useEffect(() => router.listen(() => setRoute(router.current())), []);
    return route;
  }

  /** Poll the progress of a run; `version` changes when something of the run changed. */
  function useProgress(/** @type {number} */ run) {
    const [progress, setProgress] = useState({ run, version: "", status: "", rows: null });
    useEffect(() => {
      let isMounted = true,
        timer = 0;
      const poll = async () => {
        if (!document.hidden) {
          try {
            const found = await api.progress(run);
            const share = found.size ? Math.floor((found.indexed / found.size) * 100) : 100;
            if (isMounted)
              setProgress((/** @type {any} */ old) => {
                const next = {
                  run,
                  version: found.version ?? `${found.indexed}`,
                  status: share < 100 ? `reading ${share} %` : "",
                  rows: found.rows ?? null,
                };
                return JSON.stringify(old) === JSON.stringify(next) ? old : next;
              });
          } catch (error) {
            if (isMounted && error.status !== 404)
              setProgress((/** @type {any} */ old) => ({
                ...old,
                status: error.status === 0 ? "the server has ended" : error.message,
              }));
          }
        }
        if (isMounted && !api.isBundle) timer = window.setTimeout(poll, POLL_MS);
      };
      poll();
      return () => {
        isMounted = false;
        clearTimeout(timer);
      };
    }, [run]);
    return progress;
  }

  /** Runs and the summary of the current run; both follow a live run. */
  function useRuns(/** @type {any} */ route) {
    const [runs, setRuns] = useState(null),
      [error, setError] = useState(null),
      [summary, setSummary] = useState({ run: -1, data: null, error: null });
    const progress = useProgress(route.run);
    const [turn, setTurn] = useState(0);
    useEffect(() => {
      let isCurrent = true;
      api.runs().then(
        (/** @type {any} */ found) => {
          if (!isCurrent) return;
          setRuns(found);
          setError(null);
        },
        (/** @type {any} */ problem) => isCurrent && setError(problem),
      );
      api.summary(route.run).then(
        (/** @type {any} */ data) => isCurrent && setSummary({ run: route.run, data, error: null }),
        (/** @type {any} */ problem) => isCurrent && setSummary({ run: route.run, data: null, error: problem }),
      );
      return () => {
        isCurrent = false;
      };
    }, [route.run, progress.version, turn]);
    const own = summary.run === route.run ? summary : { data: null, error: null };
    return { runs, error, summary: own.data, summaryError: own.error, progress, retry: () => setTurn(turn + 1) };
  }

  function choosePage(/** @type {any} */ route, /** @type {any[]} */ runs) {
    if (route.page === "start") return runs.length === 1 ? "overview" : "runs";
    return Object.hasOwn(pages, route.page) ? route.page : "missing";
  }

  function PageFrame({ name, children }) {
    const [error, reset] = useErrorBoundary((/** @type {any} */ problem) => console.error(problem));
    useEffect(() => {
      if (error) reset();
    }, [name]);
    return error ? html`<${ui.ErrorState} error=${error} retry=${reset} />` : children;
  }

  function setTitle(/** @type {string} */ page, /** @type {any} */ run) {
    document.title = [page, run?.title ?? run?.name, "gym view"]
      .filter(Boolean)
      .map((text) => gymView.plain(String(text)))
      .join(" – ");
  }

  function App() {
    const route = useRoute();
    const { runs, error, summary, summaryError, progress, retry } = useRuns(route);
    const [dialog, setDialog] = useState(null);
    const main = useRef(null);
    const name = runs ? choosePage(route, runs) : "loading";
    const page = pages[name];
    const props = {
      route: { ...route, page: name === "loading" ? route.page : name },
      runs: runs ?? [],
      summary,
      progress,
    };
    const run = runs?.find((/** @type {any} */ each) => each.number === route.run);

    gymView.dispatchCopy = (/** @type {string} */ text) => setDialog({ name: "copy", text });
    useEffect(() => {
      if (page) setTitle(page.title(props), name === "runs" ? null : run);
    });
    useEffect(() => scrollTo(0, 0), [name, route.run, route.page === "rollout" ? route.parts.join("/") : ""]);
    const compareAddress = gymView.compareAddressOf(props.runs, route.run);
    useKeys("Everywhere", [
      ["Ctrl+k", "Go to task, run, page", () => setDialog({ name: "palette" })],
      ["?", "This list", () => setDialog({ name: "keys" })],
      ["g o", "Overview", () => router.go(router.address(route.run))],
      ["g r", "Rollouts", () => router.go(router.address(route.run, "rollouts"))],
      ["g t", "Tasks", () => router.go(router.address(route.run, "tasks"))],
      ["g c", "Compare", compareAddress ? () => router.go(compareAddress) : null],
      ["c", "Copy a link to this view", () => gymView.copyLink()],
      [
        "Escape",
        "Close, then go back",
        () => {
          if (name !== "runs" && name !== "overview") router.go(router.address(route.run));
        },
      ],
    ]);

    const close = () => setDialog((/** @type {any} */ current) => (current === dialog ? null : current)); // a late event of the last dialog
    const skip = (/** @type {Event} */ event) => {
      event.preventDefault();
      main.current?.focus();
    };
    return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
      <${Header} route=${props.route} runs=${props.runs} summary=${summary} status=${progress.status} open=${(/** @type {string} */ which) => setDialog({ name: which })} />
      <main id="main" tabindex="-1" ref=${main}>${
        error && !runs
          ? html`<${ui.ErrorState} error=${error} retry=${retry} />`
          : summaryError && !["runs", "compare"].includes(name)
            ? html`<${ui.ErrorState} error=${summaryError} retry=${retry} />`
            : page
              ? html`<${PageFrame} name=${location.hash}>${h(page.component, { ...props, key: `${name} ${route.run}` })}<//>`
              : name === "missing"
                ? html`<${ui.ErrorState} error=${new gymView.ApiError("The viewer has no page of this name.", 404)} />`
                : html`<${ui.Skeleton} />`
      }</main>
      ${dialog?.name === "palette" ? html`<${dialogs.Palette} runs=${props.runs} route=${route} onClose=${close} />` : null}
      ${dialog?.name === "keys" ? html`<${dialogs.KeyMap} onClose=${close} />` : null}
      ${dialog?.name === "copy" ? html`<${dialogs.CopyByHand} text=${dialog.text} onClose=${close} />` : null}`;
  }

  addEventListener("unhandledrejection", ({ reason }) => {
    if (!(reason instanceof DOMException && reason.name === "AbortError")) ui.toast(reason?.message ?? String(reason));
  });
  gymView.render(html`<${App} />`, document.getElementById("app"));
})();
