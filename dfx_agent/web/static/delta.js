// Applies a patch of the stream to a document. dfx_agent/web/stream.py describes the patch format.
// Keys come from the job and may be "__proto__", so objects are built from entries, never by assignment.

/** Returns the new document. Does not change `old`; both share the unchanged parts. */
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
