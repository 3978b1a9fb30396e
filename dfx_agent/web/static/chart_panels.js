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

/** What each chart shows: the first rule that finds something wins. */
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
    hasTwoScales: true, // a policy moves 0.001 nats in a step and 1 nat from its reference in a run
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
const NUM_RL_PANELS = 3; // the first ones: without any of them it is a plain loop
const PLAIN_PANELS = [
  { title: "Loss", signals: ["loss"], rules: [byMetric("dfx_loss")] },
  PANELS.at(-1),
  { title: "Learning rate", signals: [], rules: [byMetric("dfx_learning_rate")] },
];

/** The scalars of one chart; `meant`: signal -> the key that means it, where nothing names one. */
export function rowsFor(panel, scalars, meant = {}) {
  for (const rule of panel.rules) {
    const rows = scalars.filter(rule);
    const native = rows.filter((row) => !row.key.startsWith("torch/"));
    // What the framework reports and torch's hooks see again is one curve.
    if (rows.length) return (native.length ? native : rows).slice(0, MAX_SERIES);
  }
  const keys = panel.signals.map((signal) => meant[signal]);
  return scalars.filter((row) => keys.includes(row.key)).slice(0, MAX_SERIES);
}

/** The charts of a run: of RL, or of a plain loop that reports nothing of it. */
export function panelsFor(scalars, meant = {}) {
  const has = (panel) => rowsFor(panel, scalars, meant).length > 0;
  const isPlain = !PANELS.slice(0, NUM_RL_PANELS).some(has) && PLAIN_PANELS.some(has);
  return isPlain && scalars.some((row) => row.key.startsWith("torch/")) ? PLAIN_PANELS : PANELS;
}
