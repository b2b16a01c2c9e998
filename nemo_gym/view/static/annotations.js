"use strict";
// Annotations of rollouts: was the verdict right? The only thing that the page writes; the server can switch it off.
(() => {
  const { html, api, format, router, ui, useData, useEffect, useState } = gymView;
  const CHOICES = [
    ["good", "Verdict is right"],
    ["wrong_verdict", "Wrong verdict"],
    ["unsure", "Unsure"],
  ];
  const NAMES = Object.fromEntries(CHOICES);
  const LONGEST_NOTE = 4000;

  /** Labels need the token that the server puts into its page; a bundle, and a server with --no-annotations, have none. */
  const isEnabled = () => !api.isBundle && document.querySelector('meta[name="gym-view-token"]') !== null;

  function Panel({ route, data }) {
    const { task, rollout, outcome } = data.facts,
      stored = data.annotation ?? null;
    const [verdict, setVerdict] = useState(stored?.verdict ?? ""),
      [note, setNote] = useState(stored?.note ?? "");
    const [problem, setProblem] = useState(""),
      [isSaving, setSaving] = useState(false),
      [saved, setSaved] = useState(stored);
    useEffect(() => {
      setVerdict(stored?.verdict ?? "");
      setNote(stored?.note ?? "");
      setSaved(stored);
      setProblem("");
    }, [route.run, task, rollout]);
    if (!isEnabled() && !stored) return null;
    if (!isEnabled())
      return html`<section aria-label="Annotation"><h3>Annotation</h3><p>${NAMES[stored.verdict] ?? "Note"}</p>${stored.note ? html`<p class="t2 gap-top">${stored.note}</p>` : null}</section>`;
    const save = async (/** @type {string} */ nextVerdict, /** @type {string} */ nextNote) => {
      setSaving(true);
      try {
        const answer = await api.send("POST", `runs/${route.run}/annotations`, {
          task,
          rollout,
          verdict: nextVerdict,
          note: nextNote,
        });
        setSaved(answer.verdict || answer.note ? answer : null);
        setProblem("");
        ui.toast(answer.verdict || answer.note ? "Annotation saved" : "Annotation removed");
      } catch (error) {
        setProblem(error instanceof Error ? error.message : String(error)); // what was typed stays
      } finally {
        setSaving(false);
      }
    };
    const choose = (/** @type {string} */ choice) => {
      const next = choice === verdict ? "" : choice;
      setVerdict(next);
      save(next, note);
    };
    const isChanged = note !== (saved?.note ?? "");
    return html`<section class="annotation" aria-label="Annotation"><h3>Annotation</h3>${outcome === "scored" || verdict ? html`<${ui.Segments} label="Is the verdict right?" options=${CHOICES} value=${verdict} onChange=${choose} />` : null}
      <textarea class="note-text" rows="2" maxlength=${LONGEST_NOTE} aria-label="Note" placeholder=${outcome === "scored" ? "Note: what is wrong, or why it is right" : "Note: why it ended, or what to try"} value=${note} onInput=${(/** @type {any} */ event) => setNote(event.target.value)}></textarea>
      <div class="row"><button type="button" class="btn sm" disabled=${isSaving || !isChanged} onClick=${() => save(verdict, note)}>Save note</button>${saved?.at ? html`<span class="t3 small">saved ${format.date(saved.at)}</span>` : null}</div>
      ${problem ? html`<p class="oc failed" role="alert">${problem}</p>` : null}</section>`;
  }

  /** How many rollouts of a run have each label, with links to them. */
  function Summary({ run }) {
    const { data } = useData(() => (api.isBundle ? Promise.resolve(null) : api.get(`runs/${run}/annotations`)), [run]);
    const labels = data?.annotations ?? [];
    if (!labels.length) return null;
    const count = (/** @type {string} */ verdict) =>
      labels.filter((/** @type {any} */ label) => label.verdict === verdict).length;
    const used = CHOICES.filter(([verdict]) => count(verdict));
    return html`<${ui.Card} title="Annotations" note=${`${format.plural(labels.length, "rollout")}, for the calibration of verifiers and judges`}><div class="row wraps">${used.map(([verdict, title]) => html`<a key=${verdict} class="chip" href=${router.address(run, "rollouts", [], { where: `annotation == "${verdict}"` })}>${title}<span class="c">${format.count(count(verdict))}</span></a>`)}</div><div class="gap-top"><${ui.CommandLine} command=${data.command} /></div><//>`;
  }

  gymView.annotations = { Panel, Summary, isEnabled };
})();
