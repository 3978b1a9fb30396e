// Builds and updates elements. Names come from the job, so text is never interpreted as HTML.

/** <tag class="..."> with properties and children (elements or strings). */
export function element(tag, className = "", properties = {}, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

/** Sets the text only if it differs, so that an unchanged page needs no new layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Like `setText`, but text between backticks becomes code. */
export function setCodeText(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  const parts = text.split("`");
  // a backtick without a partner stays text
  const isPaired = parts.length % 2 === 1;
  node.replaceChildren(
    ...(isPaired
      ? parts.map((part, index) => (index % 2 ? element("code", "", { textContent: part }) : part))
      : [text]),
  );
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/**
 * Makes `parent` hold exactly the nodes of `keys`, in that order, and reuses existing nodes.
 * `known` is a Map key -> value with a `.node`; `make(key)` builds a missing one.
 */
export function reconcile(parent, known, keys, make) {
  const wanted = new Set(keys);
  for (const [key, value] of known) {
    if (!wanted.has(key)) {
      value.node.remove();
      known.delete(key);
    }
  }
  keys.forEach((key, index) => {
    if (!known.has(key)) known.set(key, make(key));
    const node = known.get(key).node;
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
}
