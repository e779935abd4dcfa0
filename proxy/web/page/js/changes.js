// What changed where the rate stepped: lanes that have another level after it than before. Pure.

const AROUND_S = 3; // on either side: some readings are a driver's means over a second. Heuristic
const BESIDE_S = 1; // a brake that began or ended this near to the step. Heuristic
const LEAST_RATIO = 0.1; // of the larger level; a smaller change explains no step. Heuristic

/** Each change beside `at_s` in words, of the lanes in `kinds` and the brakes of one GPU or the host. */
export function changesAt(at_s, kinds, holder, { phases }) {
  const decode = phases.find((phase) => phase.phase === "decode") ?? { from_s: 0, to_s: Infinity };
  const before = between(holder.at_s, Math.max(at_s - AROUND_S, decode.from_s), at_s);
  const after = between(holder.at_s, at_s, Math.min(at_s + AROUND_S, decode.to_s));
  const moved = kinds.flatMap((kind) => kind.lanes.flatMap(([name, label]) => {
    const levels = [before, after].map((places) => level(places.map((i) => holder.lanes[name]?.[i])));
    return isChange(...levels, kind.least) ? `${kind.title}, ${label}: from ${kind.format(levels[0].median)} to ${kind.format(levels[1].median)}` : [];
  }));
  const near = (s) => Math.abs(s - at_s) <= BESIDE_S;
  const brakes = (holder.brakes ?? []).flatMap(({ reason, from_s, to_s }) => {
    if (near(from_s)) return `clocks held down by ${reason}, from there on`;
    return near(to_s) ? `clocks held down by ${reason}, until there` : [];
  });
  return [...moved, ...new Set(brakes)];
}

const between = (at, from_s, to_s) => at.flatMap((s, i) => (s >= from_s && s <= to_s ? i : []));

/** Where the middle half of the values lies; null where there are too few. */
function level(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  if (known.length < 2) return null;
  const at = (share) => known[Math.round(share * (known.length - 1))];
  return { low: at(0.25), median: at(0.5), high: at(0.75) };
}

function isChange(before, after, least) {
  if (!before || !after) return false;
  const apart = before.high < after.low || before.low > after.high;
  const moved = Math.abs(after.median - before.median);
  return apart && moved >= Math.max(least, LEAST_RATIO * Math.max(Math.abs(after.median), Math.abs(before.median)));
}
