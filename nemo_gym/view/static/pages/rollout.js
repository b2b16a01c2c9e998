"use strict";
// A rollout: conversation and verdict, its repeats, previous and next in the current filter, tabs, copy as dataset row.
(() => {
  const {
    html,
    Icon,
    api,
    format,
    router,
    store,
    ui,
    failed,
    conversation,
    rolloutTabs,
    useState,
    useEffect,
    useRef,
    useData,
    useKeys,
  } = gymView;
  const EVENTS = 200;
  const OUTLINE_FROM = 200;
  const STICKY = 110;

  const idOf = (/** @type {any} */ route) => ({
    run: route.run,
    task: Number(route.parts[0]),
    repeat: Number(route.parts[1]),
  });

  function datasetRow(/** @type {any} */ record) {
    return Object.fromEntries(
      Object.entries(record).filter(([name]) => name !== "response" && name !== "reward" && !/^_?ng_/.test(name)),
    );
  }
  async function rowText(/** @type {any} */ id, /** @type {string} */ attempt) {
    try {
      return JSON.stringify(await api.row(id));
    } catch {
      return JSON.stringify(datasetRow(await api.raw(id, { attempt })));
    }
  }
  async function curlText(/** @type {any} */ id, /** @type {string} */ attempt) {
    return `curl -s http://127.0.0.1:PORT/run -H 'content-type: application/json' -d '${(await rowText(id, attempt)).replaceAll("'", "'\\''")}'`;
  }

  function Position({ data, query }) {
    if (data.position === undefined || data.position === null) return null;
    const filter = query.where || query.words;
    return html`<span class="t3 num only-wide note">${format.count(data.position + 1)} of ${format.count(data.matches)}${filter ? html` with <code>${filter}</code>` : ""}</span>`;
  }

  function Step({ label, icon, target, tip }) {
    return html`<a class="btn sm icon" aria-label=${label} data-tip=${tip} href=${target ?? undefined} role=${target ? undefined : "link"} aria-disabled=${target ? undefined : "true"}><${Icon} name=${icon} small /></a>`;
  }

  function Attempts({ data, route }) {
    if (!(data.attempts > 1)) return null;
    const chosen = Number(route.query.attempt ?? 0),
      count = Math.min(data.attempts, 12);
    const address = (/** @type {number} */ attempt) =>
      router.address(route.run, "rollout", route.parts, { ...route.query, attempt: attempt || "" });
    return html`<span class="row attempts"><span class="t3 note">Attempts</span><span class="seg">${Array.from({ length: count }, (_, index) => count - 1 - index).map((attempt) => html`<a key=${attempt} href=${address(attempt)} aria-current=${attempt === chosen ? "true" : undefined}>${data.attempts - attempt}${attempt === 0 ? ", last" : ""}</a>`)}</span></span>`;
  }

  function timePhases(/** @type {any} */ data) {
    if (data.timeline?.length) return data.timeline;
    return (data.timings ?? []).map((/** @type {any} */ { name, ms }) => ({ phase: name, seconds: ms / 1000 }));
  }

  function Head({ data, route, id, tab, tabs, links }) {
    const { facts } = data,
      phases = timePhases(data),
      selection = router.selection(route.query);
    const repeats = data.repeats?.length ? data.repeats : [facts];
    const total =
      facts.seconds ?? phases.reduce((/** @type {number} */ sum, /** @type {any} */ phase) => sum + phase.seconds, 0);
    return html`<div class="rhead"><div class="l1"><a href=${links.table} id="go-back" class="t3 only-wide crumb">Rollouts</a><span class="t3 only-wide" aria-hidden="true">/</span><h1>Task ${id.task}, repeat ${id.repeat}</h1><${ui.OutcomeBadge} outcome=${facts.outcome} tag />${facts.reward === null || facts.reward === undefined ? null : html`<${ui.RewardChip} reward=${facts.reward} range=${links.range} />`}<span class="t3 only-wide mono note">${facts.agent}</span><span class="grow"></span>
        <${Position} data=${data} query=${route.query} /><span class="row only-wide steps"><${Step} label="Previous rollout" tip="Previous  k" icon="up" target=${links.previous} /><${Step} label="Next rollout" tip="Next  j" icon="down" target=${links.next} /></span>
        <span class="only-wide"><${ui.CopyButton} text=${() => rowText(id, route.query.attempt)} label="Copy as dataset row" said="Copied as a dataset row" look="" /></span><span class="only-wide"><${ui.CopyButton} text=${() => curlText(id, route.query.attempt)} label="curl" said="Copied as a curl command" /></span></div>
      <div class="l2"><span class="row"><span class="t3 only-wide note">Repeats</span><${ui.RepeatStrip} run=${id.run} task=${id.task} repeats=${repeats} current=${id.repeat} query=${{ ...selection, tab: route.query.tab }} range=${links.range} /></span>${phases.length ? html`<span class="row grow only-wide"><span class="t3 note nowrap">${format.duration(total)}</span><${ui.TimeBar} phases=${phases} label="Time by phase" total=${total} /></span>` : html`<span class="grow"></span>`}<${Attempts} data=${data} route=${route} /></div>
      <nav class="tabs" aria-label="Views of the rollout">${tabs.map((/** @type {any} */ [name, label, note]) => html`<a key=${name} aria-current=${tab === name ? "page" : undefined} aria-selected=${undefined} class=${tab === name ? "on" : ""} href=${links.tab(name)}>${label}<span class="c">${note}</span></a>`)}</nav></div>`;
  }

  /** The outline of a long conversation: one line for each turn. */
  function Outline({ turns, current, onGo }) {
    const list = useRef(null);
    useEffect(() => {
      list.current?.querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" });
    }, [current]);
    return html`<nav class="outline" aria-label="Turns"><h2>Turns</h2><ol ref=${list}>${turns.map((/** @type {any} */ turn) => html`<li key=${turn.turn}><button type="button" aria-current=${turn.turn === current ? "true" : undefined} onClick=${() => onGo(turn)}><span class="num t3">${turn.turn}</span><span class="ell">${turn.title || (turn.tools ?? []).join(", ") || "turn"}</span>${turn.seconds === undefined ? null : html`<span class=${`num t3 ${turn.slowest ? "hot" : ""}`}>${format.seconds(turn.seconds)}</span>`}</button></li>`)}</ol></nav>`;
  }

  function Pager({ total, start, links }) {
    if (total <= EVENTS) return null;
    return html`<nav class="row pager" aria-label="Parts of the conversation"><a class="btn sm" href=${start > 0 ? links.at(Math.max(0, start - EVENTS)) : undefined} aria-disabled=${start > 0 ? undefined : "true"} role=${start > 0 ? undefined : "link"}>Earlier</a><span class="t2 num">items ${format.count(start + 1)} – ${format.count(Math.min(start + EVENTS, total))} of ${format.count(total)}</span><a class="btn sm" href=${start + EVENTS < total ? links.at(start + EVENTS) : undefined} aria-disabled=${start + EVENTS < total ? undefined : "true"} role=${start + EVENTS < total ? undefined : "link"}>Later</a></nav>`;
  }

  function endText(/** @type {any} */ data) {
    const { facts } = data;
    if (facts.outcome === "scored") return `The rollout ended, reward ${format.number(facts.reward, 2)}`;
    return facts.outcome === "limit"
      ? "The rollout was stopped at a limit"
      : "The rollout ended here; no verdict was computed";
  }

  /** Scroll to a turn, or to the event that holds something. */
  function scrollToElement(/** @type {Element | null | undefined} */ element) {
    if (!element) return false;
    for (let details = element.closest("details"); details; details = details.parentElement?.closest("details") ?? null)
      details.open = true;
    element.scrollIntoView({ block: "start" });
    return true;
  }

  const turnElements = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".convo [data-turn]")]);

  /** The turn whose beginning was scrolled past last; at the end of the page, the chosen one if it is visible. */
  function useTurnInView(/** @type {number} */ first, /** @type {any} */ data, /** @type {boolean} */ isOn) {
    const [current, setCurrent] = useState(first);
    useEffect(() => {
      if (!isOn) return undefined;
      let frame = 0;
      const look = () => {
        frame = 0;
        const turns = turnElements(),
          isAtEnd = scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
        const topOf = (/** @type {HTMLElement} */ each) => each.getBoundingClientRect().top;
        const isChosen = (/** @type {HTMLElement} */ each) =>
          Number(each.dataset.turn) === first && topOf(each) >= STICKY - 8 && topOf(each) < innerHeight;
        const passed = turns.filter((each) => isAtEnd || topOf(each) <= STICKY + 8);
        const shown = (isAtEnd && turns.find(isChosen)) || passed.at(-1) || turns[0];
        const turn = Number(shown?.dataset.turn ?? 0);
        if (turn) setCurrent(turn);
      };
      const onScroll = () => {
        frame ||= requestAnimationFrame(look);
      };
      onScroll();
      addEventListener("scroll", onScroll, { passive: true });
      return () => {
        cancelAnimationFrame(frame);
        removeEventListener("scroll", onScroll);
      };
    }, [data, first, isOn]);
    return current;
  }

  function stepTurn(/** @type {number} */ by) {
    const turns = turnElements(),
      tops = turns.map((element) => element.getBoundingClientRect().top - STICKY);
    const target = by > 0 ? turns[tops.findIndex((top) => top > 8)] : turns[tops.findLastIndex((top) => top < -8)];
    scrollToElement(target);
  }

  function ConversationTab({ data, id, route, failure, summary, start, links, state }) {
    const root = useRef(null),
      { unfolded, setUnfolded, rendered, setRendered } = state;
    const turns = data.turns ?? [],
      hasOutline = turns.length >= OUTLINE_FROM || data.total >= OUTLINE_FROM;
    const current = useTurnInView(Number(route.query.turn ?? 0), data, hasOutline && turns.length > 0);
    const attempt = route.query.attempt ?? "";
    const fetchMore = async (/** @type {any} */ event, /** @type {number} */ from) =>
      (await api.text(id, event.number, { start: from, attempt })).text;
    const goTurn = (/** @type {any} */ turn) => {
      if (turn.event >= start && turn.event < start + EVENTS) {
        router.replace(router.address(route.run, "rollout", route.parts, { ...route.query, turn: turn.turn }));
        scrollToElement(document.getElementById(`turn-${turn.turn}`));
      } else
        router.go(
          router.address(route.run, "rollout", route.parts, {
            ...route.query,
            start: Math.floor(turn.event / EVENTS) * EVENTS || "",
            turn: turn.turn,
          }),
        );
    };
    const link = (/** @type {any} */ event) =>
      ui.copyText(
        `${location.href.split("#")[0]}${router.address(route.run, "rollout", route.parts, { ...route.query, turn: event.turn ?? "", start: start || "" })}`,
        "Link to this turn copied",
      );
    useEffect(() => {
      // the turn of the address
      const wanted = Number(route.query.turn ?? 0);
      if (wanted) requestAnimationFrame(() => scrollToElement(document.getElementById(`turn-${wanted}`)));
    }, [data, route.query.turn]);
    const goEvent = (/** @type {number} */ number) => router.go(links.at(Math.floor(number / EVENTS) * EVENTS));
    const parts =
      data.total > EVENTS
        ? {
            start,
            end: start + EVENTS,
            find: (/** @type {string} */ text) => api.find(id, { text, attempt }),
            show: goEvent,
          }
        : null;
    gymView.showEvent = (/** @type {number} */ number) => {
      if (!scrollToElement(root.current?.querySelector(`[data-event="${number}"]`))) goEvent(number);
    };
    return html`<div class=${`two ${hasOutline && turns.length ? "outlined" : ""}`}>${hasOutline && turns.length ? html`<${Outline} turns=${turns} current=${current} onGo=${goTurn} />` : null}
      <div><${gymView.FindBar} root=${root} more=${`${data.events[0]?.number} ${unfolded}`} onSearch=${unfolded ? undefined : () => setUnfolded(1)} parts=${parts}><button type="button" class="btn sm ghost only-wide" onClick=${() => setUnfolded(unfolded + 1)}>Unfold all <kbd>e</kbd></button><span class="only-wide"><${ui.Segments} label="Messages" options=${[[true, "Rendered"], [false, "Plain text"]]} value=${rendered} onChange=${setRendered} /></span><//>
        <section class="convo" aria-label="Conversation" ref=${root}>${failure ? html`<${failed.FailurePanel} failure=${failure} run=${id.run} />` : null}<${Pager} total=${data.total} start=${start} links=${links} />
          <${conversation.Conversation} events=${data.events} turns=${turns} rendered=${rendered} unfolded=${unfolded} fetchMore=${fetchMore} link=${link} last=${failure && start + EVENTS >= data.total ? html`<${failed.FailedCall} failure=${failure} />` : null} end=${start + EVENTS >= data.total ? endText(data) : ""} /><${Pager} total=${data.total} start=${start} links=${links} /></section></div>
      <${gymView.VerdictPane} data=${data} route=${route} summary=${summary}>${failure ? html`<${failed.FailureFacts} failure=${failure} data=${data} run=${id.run} />` : null}<//></div>`;
  }

  function tabsOf(/** @type {any} */ data, /** @type {any} */ failure) {
    const { facts } = data,
      tools = data.tools;
    const hasTokens = data.has_tokens ?? data.events.some((/** @type {any} */ event) => event.tokens);
    const kept = failure?.kept?.turns ?? facts.turns;
    return [
      ["conversation", "Conversation", format.plural(kept ?? 0, "turn")],
      ...(hasTokens ? [["tokens", "Tokens", typeof hasTokens === "number" ? format.count(hasTokens) : ""]] : []),
      ...(tools === 0 || (tools === undefined && !facts.tool_calls)
        ? []
        : [["tools", "Tools", tools === undefined ? "" : format.count(tools)]]),
      ["json", "Raw JSON", ""],
      ...(failure?.traceback ? [["traceback", "Traceback", ""]] : []),
    ];
  }

  function linksOf(/** @type {any} */ route, /** @type {any} */ data, /** @type {any} */ summary) {
    const selection = router.selection(route.query),
      { run } = route,
      [task, repeat] = route.parts;
    const to = (/** @type {any} */ place, /** @type {any} */ query = selection) =>
      place ? router.rollout(run, place[0], place[1], query) : null;
    return {
      range: gymView.rewardRange(summary),
      table: router.address(run, "rollouts", [], { ...selection, at: `${task}:${repeat}` }),
      previous: to(data?.previous),
      next: to(data?.next),
      nextFailed: to(data?.next_failed),
      tab: (/** @type {string} */ name) =>
        router.address(run, "rollout", route.parts, {
          ...selection,
          attempt: route.query.attempt,
          tab: name === "conversation" ? "" : name,
        }),
      at: (/** @type {number} */ start) =>
        router.address(run, "rollout", route.parts, { ...route.query, turn: "", start: start || "" }),
      repeat(/** @type {number} */ by) {
        const repeats = (data?.repeats ?? []).map((/** @type {any} */ each) => each.rollout),
          index = repeats.indexOf(Number(repeat)) + by;
        return repeats[index] === undefined || index < 0
          ? null
          : router.rollout(run, Number(task), repeats[index], { ...selection, tab: route.query.tab });
      },
    };
  }

  function Dock({ data, links }) {
    const { facts } = data;
    return html`<div class="dock only-phone">${facts.reward === null || facts.reward === undefined ? html`<span class=${`oc ${facts.outcome}`}><${Icon} name=${facts.outcome} /></span>` : html`<${ui.RewardChip} reward=${facts.reward} range=${links.range} />`}<span class="ell grow strong">${gymView.verdictHeadline(gymView.verdictOf(data), facts)}</span><button type="button" class="btn sm" onClick=${() => document.querySelector(".verdict")?.scrollIntoView()}>Verdict</button><${Step} label="Previous rollout" icon="left" target=${links.previous} /><${Step} label="Next rollout" icon="right" target=${links.next} /></div>`;
  }

  function RolloutPage({ route, summary }) {
    const id = idOf(route),
      { query } = route,
      start = Number(query.start ?? 0) || 0,
      tab = query.tab ?? "conversation";
    const { data, error, reload } = useData(
      (signal) => api.rollout(id, { ...router.selection(query), start, count: EVENTS, attempt: query.attempt }, signal),
      [route.run, ...route.parts, query.where, query.words, query.sort, query.down, start, query.attempt],
    );
    const [unfolded, setUnfolded] = useState(0),
      [rendered, setRenderedState] = useState(() => store.get("rendered", true));
    const setRendered = (/** @type {boolean} */ next) => {
      setRenderedState(next);
      store.set("rendered", next);
    };
    const isCurrent = data && data.facts.task === id.task && data.facts.rollout === id.repeat;
    const links = linksOf(route, isCurrent ? data : null, summary),
      failure = isCurrent ? failed.failureOf(data) : null;
    const tabs = isCurrent ? tabsOf(data, failure) : [];
    const go = (/** @type {string | null} */ target, said = "") => {
      if (target) router.go(target);
      else if (said) ui.toast(said);
    };
    useKeys("Rollout", [
      ["j", "Next rollout in the current filter", () => go(links.next, "This is the last rollout of the filter")],
      ["k", "Previous rollout", () => go(links.previous, "This is the first rollout of the filter")],
      ["ArrowLeft", "Previous repeat", () => go(links.repeat(-1), "This is the first repeat")],
      ["ArrowRight", "Next repeat", () => go(links.repeat(1), "This is the last repeat")],
      ["n", "Next turn", () => stepTurn(1)],
      ["p", "Previous turn", () => stepTurn(-1)],
      ["e", "Unfold everything", () => setUnfolded(unfolded + 1)],
      ["f", "Next failed", () => go(links.nextFailed, "No failed rollout follows")],
      ...["Conversation", "Tokens", "Tools", "Raw JSON"].map(
        (label, index) =>
          /** @type {[string, string, () => void]} */ ([
            String(index + 1),
            label,
            () => {
              const name = ["conversation", "tokens", "tools", "json"][index];
              if (tabs.some(([each]) => each === name)) router.go(links.tab(name));
            },
          ]),
      ),
      ["r", "", () => router.go(links.tab(tab === "json" ? "conversation" : "json"))],
      [
        "y",
        "Copy as dataset row",
        async () => ui.copyText(await rowText(id, query.attempt), "Copied as a dataset row"),
      ],
      ["/", "Find in conversation", () => document.getElementById("find")?.focus()],
      ["Escape", "Back to the table", () => router.go(links.table)],
    ]);
    useEffect(() => {
      if (unfolded)
        document.querySelectorAll(".convo details, .verdict details").forEach((details) => {
          /** @type {HTMLDetailsElement} */ (details).open = true;
        });
    }, [unfolded]);
    if (error && !isCurrent)
      return html`<${ui.ErrorState} error=${error.status === 404 ? new gymView.ApiError(`This run has no task ${route.parts[0]}, repeat ${route.parts[1]}.`, 404) : error} retry=${error.status === 404 ? null : reload} back=${{ href: router.address(route.run, "rollouts"), label: "Rollouts of this run" }} />`;
    if (!isCurrent) return html`<${ui.Skeleton} rows=${5} />`;
    const attempt = query.attempt ?? "",
      shared = { id, attempt };
    const pane = html`<${gymView.VerdictPane} data=${data} route=${route} summary=${summary}>${failure ? html`<${failed.FailureFacts} failure=${failure} data=${data} run=${id.run} />` : null}<//>`;
    const beside = (/** @type {any} */ content) =>
      html`<div class="two"><div class="convo">${content}</div>${pane}</div>`;
    return html`<${Head} data=${data} route=${route} id=${id} tab=${tab} tabs=${tabs} links=${links} />
      ${
        tab === "tokens"
          ? html`<${gymView.TokensTab} ...${shared} />`
          : tab === "tools"
            ? beside(html`<${rolloutTabs.ToolsTab} ...${shared} />`)
            : tab === "json"
              ? beside(html`<${rolloutTabs.JsonTab} ...${shared} />`)
              : tab === "traceback" && failure?.traceback
                ? beside(html`<${rolloutTabs.TracebackTab} text=${failure.traceback} />`)
                : html`<${ConversationTab} data=${data} id=${id} route=${route} failure=${failure} summary=${summary} start=${start} links=${links} state=${{ unfolded, setUnfolded, rendered, setRendered }} />`
      }
      <${Dock} data=${data} links=${links} />`;
  }

  gymView.pages.rollout = {
    component: RolloutPage,
    title: (/** @type {any} */ { route }) => `Task ${route.parts[0]}, repeat ${route.parts[1]}`,
  };
})();
