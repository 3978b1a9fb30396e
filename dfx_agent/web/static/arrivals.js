// Who arrived last at a wait for other ranks: the rank that waited least while the others waited.

const SHARED_WAITS = new Set(["collective", "barrier", "sync_coordination"]);
const LEAST_SHARE = 0.5;

/**
 * {last, waiting} as indices of lanes for the wait `piece`; null if it is no wait for other ranks, or
 * if several ranks waited about equally little. `piecesByLane` are the pieces of each lane. Pure.
 */
export function arrivalOf(piece, piecesByLane) {
  if (piece.kind !== "wait" || !SHARED_WAITS.has(piece.name)) return null;
  const seconds = piece.end_seconds - piece.begin_seconds;
  const waited = piecesByLane.map((pieces) => waitedWithin(pieces, piece) / seconds);
  const waiting = indicesOf(waited, (share) => share >= LEAST_SHARE);
  const absent = indicesOf(waited, (share) => share < LEAST_SHARE);
  return absent.length === 1 ? { last: absent[0], waiting } : null;
}

function waitedWithin(pieces, { begin_seconds: begin, end_seconds: end }) {
  const overlap = (piece) => Math.min(end, piece.end_seconds) - Math.max(begin, piece.begin_seconds);
  const waits = pieces.filter((piece) => piece.kind === "wait");
  return waits.reduce((sum, piece) => sum + Math.max(0, overlap(piece)), 0);
}

function indicesOf(values, condition) {
  return values.flatMap((value, index) => (condition(value) ? [index] : []));
}
