"use strict";
// The first look at a large run: how much of it is read; what has been read can be used.
(() => {
  const { html, format, useState, useEffect } = gymView;

  /** Estimate the time left from the progress since this page was opened. */
  function useTimeLeft(/** @type {any} */ reading) {
    const [first, setFirst] = useState(/** @type {any} */ (null));
    useEffect(() => {
      if (reading && !first) setFirst({ done: reading.done, at: Date.now() });
    }, [reading]);
    if (!first || !reading || reading.done <= first.done) return null;
    return ((reading.size - reading.done) * (Date.now() - first.at)) / (reading.done - first.done) / 1000;
  }

  function Reading({ summary }) {
    const behind =
      summary.size && summary.indexed < summary.size ? { done: summary.indexed, size: summary.size } : null;
    const reading = summary.reading ?? behind,
      left = useTimeLeft(reading);
    if (!reading) return null;
    const share = reading.done / Math.max(1, reading.size),
      rows = summary.rollouts ?? null;
    return html`<section class="card reading" aria-label="Reading" aria-busy="true"><div class="row"><b>Reading ${summary.title ?? summary.name}</b><span class="grow"></span><span class="num t2">${rows === null ? "" : `${format.count(rows)} of about ${format.short(rows / Math.max(share, 0.001))} rollouts, `}${format.percent(share, 0)}</span></div>
      <div class="prog thin" role="progressbar" aria-label="Read so far" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.floor(share * 100)}><i class="accent" style=${{ flexGrow: String(share) }}></i><i style=${{ flexGrow: String(1 - share) }}></i></div><p class="t3 note">What has been read can be used now.${left === null ? "" : ` ${format.duration(left)} left;`} Next time it opens at once.</p></section>`;
  }

  gymView.Reading = Reading;
})();
