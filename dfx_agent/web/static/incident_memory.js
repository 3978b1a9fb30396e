// Incidents that the judge neither finds nor clears at the moment. Like the agent, the page shows them
// for two more minutes. They are greyed, and evidence that the reader opened stays open.

const UNSURE_SECONDS = 120; // as in dfx_agent/job/incidents/book.py

export class IncidentMemory {
  constructor() {
    this.run = "";
    this.seen = new Map();
  }

  /** Rows {incident, seenSeconds} of the incidents that are in doubt. */
  doubtful(run, now) {
    if (run.run !== this.run) this.seen.clear();
    this.run = run.run;
    for (const past of run.past_incidents ?? []) {
      const isKnown = this.seen.has(past.id) || past.is_until_run_end;
      if (!isKnown) this.seen.set(past.id, { incident: past, seenSeconds: past.end_seconds });
    }
    for (const incident of run.incidents) this.seen.set(incident.id, { incident, seenSeconds: now });
    const current = new Set(run.incidents.map((incident) => incident.id));
    return [...this.seen.values()].filter((row) => {
      const { id } = row.incident;
      return !current.has(id) && this.isInDoubt(run, row, now);
    });
  }

  /** A cleared incident stays cleared, also if its judge is unsure again later. */
  isInDoubt(run, row, now) {
    row.isCleared ||= !isUnsure(run, row.incident);
    return !row.isCleared && now - row.seenSeconds <= UNSURE_SECONDS;
  }
}

/** Whether all verdicts on the incident lack evidence; false for a run that has ended. */
function isUnsure(run, incident) {
  const verdicts = run.verdicts.filter(
    ({ kind, role }) => kind === incident.kind && (!role || !incident.role || role === incident.role),
  );
  const isAll = verdicts.every(({ state }) => state === "insufficient evidence");
  return verdicts.length > 0 && isAll && !run.ending;
}
