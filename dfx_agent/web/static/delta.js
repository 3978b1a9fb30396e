// What changed between two documents of the stream: the same as dfx_agent/web/stream.py, which says
// how a patch looks. Keys come from the job ("__proto__" too), so none is ever assigned to.

/** `old` stays as it is; what did not change is shared with it. */
export function patched(old, patch) {
  if ("v" in patch) return patch.v;
  return Array.isArray(old) ? patchedRows(old, patch) : patchedObject(old, patch);
}

function patchedObject(old, patch) {
  const entries = new Map(Object.entries(old));
  for (const key of patch.d ?? []) entries.delete(key);
  for (const [key, value] of Object.entries(patch.s ?? {})) entries.set(key, value);
  for (const [key, inner] of Object.entries(patch.p ?? {})) {
    entries.set(key, patched(entries.get(key), inner));
  }
  return Object.fromEntries(entries);
}

function patchedRows(old, patch) {
  const rows = patch.o
    ? patch.o.flatMap((part) => (Array.isArray(part) ? old.slice(part[0], part[1]) : part.v))
    : [...old];
  for (const [place, inner] of Object.entries(patch.p ?? {})) {
    rows[place] = patched(rows[place], inner);
  }
  return rows;
}
