"use strict";
// Components that every page uses: outcome and reward, cards, buttons that copy, empty and error states.
(() => {
  const { html, Icon, format, router, useState, useLayoutEffect, useRef, useWidth } = gymView;
  const TOAST_MS = 1800;
  const LABEL_CHARACTER = 6.6,
    LABEL_MARGIN = 10;

  /** Return the step of the reward scale, 0 to 6; rewards outside 0 to 1 are scaled to the range of the run. */
  function rewardStep(/** @type {number} */ reward, /** @type {[number, number]} */ range = [0, 1]) {
    const [low, high] = range;
    const share = high > low ? (reward - low) / (high - low) : 0;
    return share <= 0 ? 0 : share >= 1 ? 6 : 1 + Math.min(4, Math.floor(share * 5));
  }

  function RewardChip({ reward, range, cell = false, digits = 2 }) {
    if (reward === null || reward === undefined) return html`<span class="rw none">–</span>`;
    return html`<span class=${`${cell ? "cell" : "rw"} r${rewardStep(reward, range)}`}>${format.number(reward, digits)}</span>`;
  }

  function OutcomeBadge({ outcome, kind = "", tag = false }) {
    return html`<span class=${`oc ${outcome} ${tag ? "tag" : ""}`}><${Icon} name=${outcome} small />${outcome}${
      kind ? html`<span class="kind t3 ell">${kind}</span>` : null
    }</span>`;
  }

  function Delta({ value, digits = 2, unit = "" }) {
    if (value === null || value === undefined) return html`<span class="dl same">–</span>`;
    const way = value > 0 ? "up" : value < 0 ? "down" : "same";
    return html`<span class=${`dl ${way}`}>${{ up: "▲ ", down: "▼ ", same: "" }[way]}${format.signed(value, digits)}${unit}</span>`;
  }

  function Card({ title, note = "", flush = false, actions = null, extra = "", children }) {
    return html`<section class=${`card ${extra}`}>
      <header><h2>${title}</h2>${note ? html`<span class="note">${note}</span>` : null}${actions ? html`<span class="grow"></span>${actions}` : null}</header>
      ${flush ? children : html`<div class="body">${children}</div>`}
    </section>`;
  }

  let toastTimer = 0;
  /** Show a short message at the bottom; it is announced to screen readers. */
  function toast(/** @type {string} */ text) {
    const element = document.getElementById("toast");
    if (!element) return;
    element.textContent = gymView.plain(text);
    element.classList.add("on");
    clearTimeout(toastTimer);
    toastTimer = window.setTimeout(() => element.classList.remove("on"), TOAST_MS);
  }

  /** Copy a text; where the browser forbids it, show the text in a dialog to be copied by hand. */
  async function copyText(/** @type {string} */ text, said = "Copied") {
    try {
      await navigator.clipboard.writeText(text);
      toast(said);
    } catch {
      gymView.dispatchCopy(text);
    }
  }

  /** `text` is a string, or a function that returns one or a promise of one. */
  function CopyButton({ text, label = "", said = "Copied", small = true, tip = "Copy", look = "ghost" }) {
    const copy = async () => {
      try {
        await copyText(typeof text === "function" ? await text() : text, said);
      } catch (error) {
        toast(error instanceof Error ? error.message : String(error));
      }
    };
    return html`<button type="button" class=${`btn ${look} ${small ? "sm" : ""} ${label ? "" : "icon"}`} aria-label=${label ? undefined : tip} data-tip=${label ? undefined : tip} onClick=${copy}>
      <${Icon} name="copy" small=${small} />${label}</button>`;
  }

  function CommandLine({ command, solo = false }) {
    const split = /^(gym(?: [a-z][\w-]*)*)(.*)$/s.exec(command);
    return html`<div class=${`cmd ${solo ? "solo" : ""}`}><code tabindex="0" role="group" aria-label="Command">${split ? html`<b>${split[1]}</b>${split[2]}` : command}</code><${CopyButton} text=${() => command} tip="Copy the command" /></div>`;
  }

  function repeatTip(/** @type {any} */ repeat) {
    const result =
      repeat.reward === null || repeat.reward === undefined
        ? [repeat.outcome, repeat.kind].filter(Boolean).join(", ")
        : `reward ${format.number(repeat.reward, 2)}`;
    return `repeat ${repeat.rollout}: ${result}`;
  }

  /** The repeats of a task in one line: reward chips, and an icon for what was not scored. */
  function RepeatStrip({
    run,
    task,
    repeats,
    current = null,
    query = {},
    range = undefined,
    more = 0,
    label = `Repeats of task ${task}`,
    addressOf = (/** @type {number} */ repeat) => router.rollout(run, task, repeat, query),
  }) {
    return html`<div class="strip" role="group" aria-label=${label}>${repeats.map((/** @type {any} */ repeat) => {
      const isScored = repeat.reward !== null && repeat.reward !== undefined;
      return html`<a key=${repeat.rollout} href=${addressOf(repeat.rollout)} class=${isScored ? `r${rewardStep(repeat.reward, range)}` : `oc-${repeat.outcome}`}
        aria-current=${repeat.rollout === current ? "true" : undefined} aria-label=${repeatTip(repeat)} data-tip=${repeatTip(repeat)}>${isScored ? format.number(repeat.reward, 2) : html`<${Icon} name=${repeat.outcome} small />`}</a>`;
    })}${more ? html`<span class="t3 more-repeats">and ${format.count(more)} more</span>` : null}</div>`;
  }

  function Segments({ options, value, onChange, label }) {
    return html`<div class="seg" role="group" aria-label=${label}>${options.map(
      (/** @type {any[]} */ [key, text, count]) =>
        html`<button type="button" key=${key} aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}${
          count === undefined ? null : html`<span class="c"> ${format.count(count)}</span>`
        }</button>`,
    )}</div>`;
  }

  const RunTag = ({ letter }) => html`<span class=${`runtag ${letter.toLowerCase()}`}>${letter.toUpperCase()}</span>`;

  const ART = {
    bars: "M8 56h80M18 40h12v16h-12zM42 26h12v30h-12zM66 10h12v46h-12z",
    lines: "M8 8h80v12h-80zM8 26h80v12h-80zM8 44h80v12h-80z",
  };
  function Empty({ title, art = "lines", children }) {
    return html`<div class="empty"><svg class="art" viewBox="0 0 96 64" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true"><path d=${ART[/** @type {keyof ART} */ (art)]} /></svg><h2>${title}</h2>${children}</div>`;
  }

  function ErrorState({ error, retry = null, back = /** @type {any} */ (null) }) {
    const title =
      error.status === 404
        ? "Not found"
        : error.status === 0
          ? "No answer from the viewer"
          : "This could not be loaded";
    return html`<div class="page"><section class="card fail" role="alert"><div class="row"><span class="sev e"><${Icon} name="failed" /></span><h1>${title}</h1></div>
      <p class="t2 gap-top">${error.message}</p>
      <div class="row gap-top">${retry ? html`<button type="button" class="btn" onClick=${retry}>Try again</button>` : null}${back ? html`<a class="btn" href=${back.href}>${back.label}</a>` : null}<a class="btn ghost" href="#/runs">All runs</a></div></section></div>`;
  }

  function Skeleton({ rows = 7 }) {
    return html`<div class="page stack skeleton" aria-busy="true"><p class="sr" role="status">Loading</p><div class="card skeleton-card"><div class="skel w45"></div><div class="skel tall w70"></div></div><div class="grid g4">${[1, 2, 3, 4].map((each) => html`<div class="card skeleton-card" key=${each}><div class="skel w45"></div><div class="skel tall w70"></div></div>`)}</div>
      <div class="card skeleton-card">${Array.from({ length: rows }, (_, index) => html`<div class=${`skel w${[90, 70, 45][index % 3]}`} key=${index}></div>`)}</div></div>`;
  }

  /** A box of options below a button; it closes with Escape and by a click elsewhere. */
  function Menu({ label, icon, extra = "", children }) {
    const [isOpen, setOpen] = useState(false);
    const box = useRef(null);
    // A layout effect: the menu must not be visible before its keys work.
    useLayoutEffect(() => {
      if (!isOpen) return undefined;
      const close = (/** @type {Event} */ event) => {
        const isKey = event instanceof KeyboardEvent;
        if (!box.current?.querySelector(".menu")) return; // closed already, the listener goes with the next frame
        if (isKey ? event.key !== "Escape" : box.current?.contains(/** @type {Node} */ (event.target))) return;
        if (isKey) event.preventDefault(); // it closes the menu and does not leave the page
        setOpen(false);
      };
      addEventListener("pointerdown", close);
      addEventListener("keydown", close, true);
      return () => {
        removeEventListener("pointerdown", close);
        removeEventListener("keydown", close, true);
      };
    }, [isOpen]);
    return html`<div class="wrapm" ref=${box}><button type="button" class=${`btn ${extra}`} aria-expanded=${String(isOpen)} aria-label=${label} onClick=${() => setOpen(!isOpen)}><${Icon} name=${icon} /><span class="lbl">${label}</span></button>
      ${isOpen ? html`<div class="menu">${children}</div>` : null}</div>`;
  }

  /** Return a label if it fits into that width of a bar, else nothing: half a word says less than none. */
  const fitting = (/** @type {string} */ label, /** @type {number} */ pixels) =>
    label.length * LABEL_CHARACTER + LABEL_MARGIN <= pixels ? label : "";

  /** A bar of phases, as long as their seconds. */
  function TimeBar({ phases, label, total = null }) {
    const bar = useRef(null),
      width = useWidth(bar);
    const sum = phases.reduce((/** @type {number} */ all, /** @type {any} */ phase) => all + phase.seconds, 0);
    if (!sum) return null;
    return html`<span class="timebar" ref=${bar} role="img" aria-label=${`${label}: ${phases.map((/** @type {any} */ phase) => `${phaseName(phase)} ${format.seconds(phase.seconds)}`).join(", ")}${total === null ? "" : `, in all ${format.seconds(total)}`}`}>${phases.map((/** @type {any} */ phase, /** @type {number} */ index) => html`<i key=${index} class=${`ph-${phase.phase === "seed_session" ? "seed" : phase.phase}`} style=${{ flexGrow: String(phase.seconds / sum) }} data-tip=${`${phaseName(phase)}: ${format.seconds(phase.seconds)}`}>${fitting(phase.turn && phase.phase === "model" ? `turn ${phase.turn}` : phaseTitle(phase), (width * phase.seconds) / sum)}</i>`)}</span>`;
  }
  const PHASES = {
    all: "whole rollout",
    queue: "queue",
    seed_session: "seed",
    model: "model",
    tools: "tools",
    verify: "verify",
    agent: "agent",
  };
  const phaseTitle = (/** @type {any} */ phase) => PHASES[/** @type {keyof PHASES} */ (phase.phase)] ?? phase.phase;
  const phaseName = (/** @type {any} */ phase) => `${phaseTitle(phase)}${phase.turn ? `, turn ${phase.turn}` : ""}`;

  gymView.ui = {
    Icon,
    RewardChip,
    OutcomeBadge,
    Delta,
    Card,
    CopyButton,
    CommandLine,
    RepeatStrip,
    Segments,
    RunTag,
    Empty,
    ErrorState,
    Skeleton,
    Menu,
    TimeBar,
    toast,
    copyText,
    rewardStep,
    fitting,
    phaseName,
  };
})();
