"use strict";
// The table of rollouts: filter, saved filters, columns, row height, preview, keyboard, CSV; any number of rows.
(() => {
  const {
    html,
    Icon,
    api,
    format,
    router,
    store,
    ui,
    table,
    columns: columnModule,
    toolbar,
    useState,
    useEffect,
    useMemo,
    useRef,
    useData,
    useKeys,
  } = gymView;
  const HEIGHTS = { compact: 28, regular: 34, two: 54 };
  const DENSITIES = [
    ["compact", "Compact"],
    ["regular", "Regular"],
    ["two", "Two lines"],
  ];
  const PREVIEW_WIDTHS = [320, 388, 480, 600];

  function csvOf(/** @type {any[]} */ rows, /** @type {string[]} */ names) {
    const value = (/** @type {any} */ row, /** @type {string} */ name) => gymView.filter.columnReader(name, {})(row);
    const cell = (/** @type {any} */ raw) => {
      let text = raw === null || raw === undefined ? "" : typeof raw === "object" ? JSON.stringify(raw) : String(raw);
      if (typeof raw === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet would run it
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [names.join(","), ...rows.map((row) => names.map((name) => cell(value(row, name))).join(","))].join("\r\n");
  }

  async function downloadCsv(
    /** @type {number} */ run,
    /** @type {string} */ name,
    /** @type {any} */ selection,
    /** @type {string[]} */ ids,
  ) {
    const names = ids.flatMap((id) => ({ task: ["task", "repeat"], answers: ["extracted", "expected"] })[id] ?? [id]);
    const address = api.csvAddress(run, { ...selection, columns: names.join(",") });
    const link = document.createElement("a");
    link.download = `${name.replace(/[^\w.-]+/g, "-")}.csv`;
    link.href =
      address ?? URL.createObjectURL(new Blob([csvOf(await api.allRows(run, selection), names)], { type: "text/csv" }));
    link.click();
    if (!address) URL.revokeObjectURL(link.href);
    ui.toast("The rows and columns shown here, as CSV");
  }

  /** Rows that came while one looks: they are announced, not inserted under the pointer. */
  function NewRows({ count, onShow }) {
    return count > 0
      ? html`<button type="button" class="newrows" role="status" onClick=${onShow}><${Icon} name="up" small />${format.plural(count, "new row")}</button>`
      : null;
  }

  function StatusLine({ visible, isLoaded, total, of, isFiltered, seconds, words }) {
    const [first, last] = visible;
    if (!isLoaded) return html`<div class="status" id="range" role="status"><span class="t3">loading</span></div>`;
    if (!total)
      return html`<div class="status" id="range" role="status"><span>0 of ${format.count(of)} rollouts match</span></div>`;
    return html`<div class="status" role="status"><span id="range"><b>${format.count(first + 1)} – ${format.count(Math.max(last, first + 1))}</b> of ${format.count(total)}</span><span class="pos" aria-hidden="true"><i style=${{ left: `${Math.min(96, (100 * first) / total)}%`, width: `${Math.max(3, (100 * (last - first)) / total)}%` }}></i></span>
      <span class="t3 only-wide">${isFiltered ? `${format.count(total)} of ${format.count(of)} rollouts match (${format.percent(total / Math.max(1, of))})${words ? `, words beginning with ${words}` : ""}` : "all rollouts"}</span><span class="grow"></span>${seconds === undefined ? null : html`<span class="only-wide t3">answered in ${seconds < 0.01 ? "less than 0.01" : seconds.toFixed(2)} s</span>`}</div>`;
  }

  function Toolbar({
    route,
    summary,
    error,
    isUnfiltered,
    density,
    setDensity,
    all,
    chosen,
    onColumns,
    onApply,
    onCsv,
    environment,
  }) {
    return html`<div class="toolbar"><h1 class="sr">Rollouts</h1><div class="filterrow"><${toolbar.FilterInput} query=${route.query} error=${error} isUnfiltered=${isUnfiltered} onApply=${onApply} />
        <${columnModule.ColumnChooser} all=${all} chosen=${chosen} onChange=${onColumns} /><span class="only-wide"><${ui.Segments} options=${DENSITIES} value=${density} onChange=${setDensity} label="Row height" /></span>
        <button type="button" class="btn only-wide" onClick=${onCsv}><${Icon} name="download" />CSV</button></div>
      <${toolbar.SavedFilters} query=${route.query} offered=${summary?.saved_filters} environment=${environment} onApply=${onApply} total=${0} /></div>`;
  }

  const phoneRow = (/** @type {[number, number]} */ range) => (/** @type {any} */ row) =>
    html`<div class="prow1">${row.question || `Task ${row.task}, repeat ${row.rollout}`}</div><div class="prow2"><${ui.RewardChip} reward=${row.reward} range=${range} /><${ui.OutcomeBadge} outcome=${row.outcome} /><span class="mono ell">${row.agent}</span><span class="grow"></span><span class="num nowrap">${format.short(row.tokens_in + row.tokens_out)} tok</span></div>`;

  /** The selected row, by its position and its identity; the identity is in the address. */
  function useSelected(/** @type {any} */ route, /** @type {any} */ rows, /** @type {string} */ key) {
    const [selected, setSelected] = useState({ key, index: -1 });
    const [reveal, setReveal] = useState(/** @type {any} */ (null));
    const at = route.query.at ?? "",
      selection = JSON.stringify([route.run, router.selection(route.query)]),
      shown = useRef(selection);
    useEffect(() => {
      // the row of the address, after a reload or "back"; another selection without one begins at its first row
      const isOther = shown.current !== selection;
      shown.current = selection;
      if (!at) {
        if (isOther) setReveal({ index: 0, centre: false });
        return undefined;
      }
      const abort = new AbortController();
      api.rollouts(route.run, { ...router.selection(route.query), at, count: 1 }, abort.signal).then(
        (/** @type {any} */ answer) => {
          const index = answer.position ?? -1;
          setSelected({ key, index });
          if (index >= 0) setReveal({ index, centre: true });
        },
        () => undefined,
      );
      return () => abort.abort();
    }, [key]);
    const select = (/** @type {number} */ index, centre = false) => {
      setSelected({ key, index });
      setReveal({ index, centre });
    };
    const index = selected.key === key ? selected.index : -1,
      row = index >= 0 ? rows.row(index) : null;
    const place = row ? `${row.task}:${row.rollout}` : "";
    useEffect(() => {
      if (place && place !== at)
        router.replace(router.address(route.run, "rollouts", [], { ...route.query, at: place }));
    }, [place]);
    return { index, row, select, reveal };
  }

  function RolloutsPage({ route, runs, summary, progress }) {
    const { run, query } = route,
      selection = router.selection(query);
    const info = runs.find((/** @type {any} */ each) => each.number === run) ?? {},
      environment = info.environment ?? "all";
    const range = gymView.rewardRange(summary);
    const [version, setVersion] = useState(0),
      key = JSON.stringify([run, selection, version]);
    const hasValidRows = useRef(false);
    const rows = table.useRowWindows(async (start, count, signal) => {
      try {
        return await api.rollouts(run, { ...selection, start, count }, signal);
      } catch (error) {
        if (/** @type {any} */ (error).status !== 400 || hasValidRows.current) throw error;
        const every = { ...selection, where: "", words: "", start, count }; // an address with a mistake replaces no rows
        return { ...(await api.rollouts(run, every, signal)), filterError: error };
      }
    }, key);
    const isUnfiltered = Boolean(rows.answer?.filterError);
    hasValidRows.current = Boolean(rows.answer) && !isUnfiltered;
    const known = useData(() => api.columns(run).catch(() => ({ columns: [] })), [run, version]);
    const all = useMemo(() => columnModule.available(known.data?.columns ?? []), [known.data]);
    const chosen = columnModule.chosenIds(route, environment).filter((/** @type {string} */ id) => all.has(id));
    const [density, setDensityState] = useState(() => store.get(`density:${environment}`, "regular"));
    const [isOpen, setOpenState] = useState(() => store.get("preview", true) && innerWidth > 1180);
    const [width, setWidthState] = useState(() => store.get("preview-width", 388));
    const [visible, setVisible] = useState([0, 0]);
    const grid = useRef(null),
      room = table.useWidth(grid);
    const { index, row, select, reveal } = useSelected(route, rows, key);
    const total = rows.answer?.total ?? 0,
      of = rows.answer?.of ?? info.rollouts ?? total;
    const isPhone = table.usePhone();

    const change = (/** @type {any} */ next) => router.go(router.address(run, "rollouts", [], { ...query, ...next }));
    const onApply = (/** @type {any} */ filter) => {
      if (filter.where !== (query.where ?? "") || filter.words !== (query.words ?? "")) change({ ...filter, at: "" }); // a new filter is read from its first row
    };
    const onSort = (/** @type {string} */ id) =>
      change(
        query.sort === id && query.down
          ? { sort: "", down: "" }
          : { sort: id, down: query.sort === id || (query.sort === undefined && id === "task") ? "1" : "" },
      );
    const onColumns = (/** @type {string[]} */ ids) => {
      store.set(`columns:${environment}`, ids);
      router.replace(
        router.address(run, "rollouts", [], {
          ...query,
          cols: ids.join() === columnModule.DEFAULT.join() ? "" : ids.join(","),
        }),
      );
    };
    const setDensity = (/** @type {string} */ next) => {
      setDensityState(next);
      store.set(`density:${environment}`, next);
    };
    const setOpen = (/** @type {boolean} */ next) => {
      setOpenState(next);
      store.set("preview", next);
    };
    const setWidth = (/** @type {number} */ step) => {
      const next =
        PREVIEW_WIDTHS[Math.max(0, Math.min(PREVIEW_WIDTHS.length - 1, PREVIEW_WIDTHS.indexOf(width) + step))] ?? 388;
      setWidthState(next);
      store.set("preview-width", next);
    };
    const open = (/** @type {number} */ at) => {
      const target = rows.row(at);
      if (target) router.go(gymView.rowHref(run, target, query));
    };
    const step = (/** @type {number} */ by) => {
      if (total) select(Math.max(0, Math.min(total - 1, index < 0 ? (by > 0 ? visible[0] : 0) : index + by)));
    };
    const page = Math.max(1, visible[1] - visible[0] - 1);
    const nextFailed = async () => {
      const where = [query.where ? `(${query.where})` : "", 'outcome == "failed"'].filter(Boolean).join(" and ");
      const failedAt = async (/** @type {number} */ place) => {
        const { rows: found, total: count } = await api.rollouts(run, { ...selection, where, start: place, count: 1 });
        if (!found.length) return { position: -1, count };
        const at = `${found[0].task}:${found[0].rollout}`;
        return { position: (await api.rollouts(run, { ...selection, at, count: 1 })).position ?? -1, count };
      };
      // Failed rollouts have the order of the table: halve their number until the first one below this row is found.
      const failures = (await failedAt(0)).count;
      let [low, high, next] = [0, failures, -1];
      while (low < high) {
        const middle = Math.floor((low + high) / 2),
          { position } = await failedAt(middle);
        if (position > index) [high, next] = [middle, position];
        else low = middle + 1;
      }
      if (next >= 0) return select(next, true);
      return ui.toast(failures ? "No failed rollout below this row" : "No failed rollout in this filter");
    };
    useKeys("Table", [
      ["j ArrowDown", "Next row", () => step(1)],
      ["k ArrowUp", "Previous row", () => step(-1)],
      ["PageDown", "", () => step(page)],
      ["PageUp", "", () => step(-page)],
      ["Home", "First row", () => total && select(0)],
      ["End", "Last row", () => total && select(total - 1)],
      ["Space", "Open or close the preview", () => setOpen(!isOpen)],
      ["Enter", "Open the rollout", () => open(index)],
      [
        "Escape",
        "Close the preview, then the overview",
        () => (isOpen && row && !isPhone ? setOpen(false) : router.go(router.address(run))),
      ],
      ["[", "Narrower preview", () => setWidth(-1)],
      ["]", "Wider preview", () => setWidth(1)],
      ["f", "Next failed", nextFailed],
      ["d", "Row height", () => setDensity(DENSITIES[(DENSITIES.findIndex(([id]) => id === density) + 1) % 3][0])],
      ["/", "Filter", () => /** @type {HTMLElement | null} */ (document.getElementById("filter"))?.focus()],
    ]);

    const [seen, setSeen] = useState(/** @type {any} */ (null));
    const now = progress.rows ?? info.rollouts ?? null;
    useEffect(() => {
      if (rows.answer && rows.isFresh) setSeen({ version, rows: of, all: now });
    }, [rows.isFresh, key]);
    const fresh = seen && now !== null && seen.all !== null ? Math.max(0, now - Math.max(seen.all, seen.rows)) : 0;
    useEffect(() => {
      if (rows.answer && total === 0 && fresh) setVersion(version + 1);
    }, [fresh, total]);

    const sort = { id: query.sort ?? "task", down: Boolean(query.down) };
    const shown = columnModule.fit(
      chosen
        .map((/** @type {string} */ id) => all.get(id))
        .map((/** @type {any} */ column) => ({
          ...column,
          grow: column.grow || (chosen.includes("question") ? false : column.id === chosen[chosen.length - 1]),
          width: column.id === "task" ? Math.max(78, 34 + 8 * String(`${of}:9`).length) : column.width,
          cell: (/** @type {any} */ each) => column.cell(each, { range }),
        })),
      (room || 1200) - (isOpen && row && innerWidth > 1180 ? width : 0),
      query.sort ?? null,
    );
    const filterError =
      rows.error?.status === 400 ? rows.error : rows.isFresh ? (rows.answer?.filterError ?? null) : null;
    if (rows.error && !filterError && !rows.answer)
      return html`<${ui.ErrorState} error=${rows.error} retry=${() => setVersion(version + 1)} />`;
    const isFiltered = Boolean(query.where || query.words) && !isUnfiltered && (rows.isFresh || total !== of);
    return html`<div class=${`appgrid dens-${density}`}><${Toolbar} route=${route} summary=${summary} error=${filterError} isUnfiltered=${isUnfiltered} density=${density} setDensity=${setDensity} all=${all} chosen=${chosen} onColumns=${onColumns} onApply=${onApply} environment=${environment}
        onCsv=${() =>
          downloadCsv(
            run,
            info.title ?? info.name ?? "rollouts",
            selection,
            shown.map((/** @type {any} */ column) => column.id),
          )} />
      <div class=${`md ${isOpen && row && !isPhone ? `open w${width}` : ""} ${rows.isFresh || rows.error ? "" : "stale"}`} ref=${grid}><${table.VirtualTable} columns=${shown} total=${rows.answer ? total : 20} rowAt=${rows.row} need=${rows.need} rowHeight=${HEIGHTS[/** @type {keyof HEIGHTS} */ (density)] ?? 34} selected=${index} onSelect=${(
        /** @type {number} */ at,
      ) => {
        select(at);
        if (!isOpen) setOpen(true);
      }} onOpen=${open} sort=${sort} onSort=${onSort}
          onVisible=${(/** @type {number} */ from, /** @type {number} */ to) => {
            if (from !== visible[0] || to !== visible[1]) setVisible([from, to]);
          }} phoneRow=${phoneRow(range)} label="Rollouts" reveal=${reveal}><//>
        ${isOpen && row && !isPhone ? html`<${gymView.Preview} run=${run} row=${row} range=${range} query=${selection} onStep=${step} onClose=${() => setOpen(false)} href=${gymView.rowHref(run, row, query)} />` : null}
        ${rows.answer && rows.isFresh && total === 0 ? html`<div class="overtable"><${toolbar.NoResult} run=${run} query=${query} onApply=${onApply} /></div>` : null}
        <${NewRows} count=${fresh} onShow=${() => setVersion(version + 1)} /></div>
      <${StatusLine} isLoaded=${Boolean(rows.answer)} visible=${visible} total=${total} of=${of} isFiltered=${isFiltered} seconds=${rows.answer?.seconds} words=${query.words} /></div>`;
  }

  gymView.pages.rollouts = {
    component: RolloutsPage,
    title: (/** @type {any} */ { route }) =>
      toolbar.textOf(route.query) ? `Rollouts: ${toolbar.textOf(route.query)}` : "Rollouts",
  };
})();
