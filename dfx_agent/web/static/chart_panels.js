// Which charts a run gets and which scalars each shows.

const MAX_SERIES = 4;

const isMean = (row) => ["mean", "avg", undefined].includes(row.labels.stat);
const byMetric =
  (...names) =>
  (row) =>
    names.includes(row.metric) && isMean(row);
const byKey =
  (...keys) =>
  (row) =>
    row.metric === null && keys.includes(row.key);

/** The scalars of each chart: the first rule that finds a scalar wins. */
const PANELS = [
  {
    title: "Reward",
    signals: ["reward"],
    rules: [
      byMetric("dfx_reward"),
      byMetric("dfx_score"),
      byKey("critic/rewards/mean"),
      byKey("critic/score/mean"),
    ],
  },
  {
    title: "KL",
    signals: ["policy_kl", "ref_kl"],
    hasTwoScales: true, // the KL is 0.001 nats per step, but 1 nat from the reference over a run
    rules: [
      (row) =>
        byMetric("dfx_policy_kl_k1_nats", "dfx_ref_kl_nats")(row) ||
        byKey("actor/ppo_kl", "actor/kl_loss")(row),
    ],
  },
  { title: "Entropy", signals: ["entropy"], rules: [byMetric("dfx_actor_entropy_nats"), byKey("actor/entropy")] },
  {
    title: "Gradient norm",
    signals: ["grad_norm"],
    rules: [
      byMetric("dfx_actor_grad_norm"),
      byKey("actor/grad_norm"),
      byMetric("dfx_critic_grad_norm"),
      byMetric("dfx_grad_norm"),
    ],
  },
];
const NUM_RL_PANELS = 3; // the first panels are for RL; a run without any of these scalars is a plain loop
const PLAIN_PANELS = [
  { title: "Loss", signals: ["loss"], rules: [byMetric("dfx_loss")] },
  PANELS.at(-1),
  { title: "Learning rate", signals: [], rules: [byMetric("dfx_learning_rate")] },
];

/** The scalars of one chart; `meant`: signal -> the key to use if no rule names one. */
export function rowsFor(panel, scalars, meant = {}) {
  for (const rule of panel.rules) {
    const rows = scalars.filter(rule);
    const native = rows.filter((row) => !row.key.startsWith("torch/"));
    // A value that the framework reports and torch's hooks also see is one curve.
    if (rows.length) return (native.length ? native : rows).slice(0, MAX_SERIES);
  }
  const keys = panel.signals.map((signal) => meant[signal]);
  return scalars.filter((row) => keys.includes(row.key)).slice(0, MAX_SERIES);
}

/** The charts of a run: those for RL, or those for a plain training loop. */
export function panelsFor(scalars, meant = {}) {
  const has = (panel) => rowsFor(panel, scalars, meant).length > 0;
  const isPlain = !PANELS.slice(0, NUM_RL_PANELS).some(has) && PLAIN_PANELS.some(has);
  return isPlain && scalars.some((row) => row.key.startsWith("torch/")) ? PLAIN_PANELS : PANELS;
}
