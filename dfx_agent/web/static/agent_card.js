// The agent's own state: what it reads, how long a poll takes, and the nodes of a hub.

import { element } from "./element.js";
import { count, duration, elapsed } from "./format.js";

export class AgentCard {
  constructor() {
    this.facts = document.getElementById("agent-facts");
    this.nodes = document.getElementById("agent-nodes");
    this.said = "";
  }

  update(agent, now) {
    const facts = agentFacts(agent, now);
    const nodes = agent.nodes.map((node) => nodeText(node, now));
    const said = JSON.stringify([facts, nodes]);
    if (said === this.said) return;
    this.said = said;
    this.facts.replaceChildren(
      ...facts.map(([label, text]) =>
        element("div", "", {}, element("dt", "", { textContent: label }), element("dd", "", { textContent: text })),
      ),
    );
    this.nodes.replaceChildren(...nodes.map((text) => element("li", "", { textContent: text })));
  }
}

/** Pairs [label, text]. Pure. */
export function agentFacts(agent, now) {
  return [
    ["Version", agent.version],
    ["Process", `${agent.pid} on ${agent.node}`],
    ["Runs for", elapsed(now - agent.begin_seconds)],
    ["Segments", count(agent.num_segments)],
    ["Records read", count(agent.num_records)],
    ["Records lost", count(agent.num_lost_records)],
    ["Last poll took", duration(agent.poll_elapsed_seconds)],
    ["Exporter errors", count(agent.num_exporter_errors)],
  ];
}

function nodeText({ node, heard_seconds: reportSeconds, has_left: hasLeft, num_refused: refused, message }, now) {
  const state = hasLeft ? "disconnected" : `last report ${elapsed(now - reportSeconds)} ago`;
  const why = refused ? `, ${count(refused)} refused: ${message}` : "";
  return `${node}: ${state}${why}`;
}
