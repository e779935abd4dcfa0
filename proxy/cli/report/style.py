"""The style sheet of HTML reports: light and dark by the reader's choice, and on paper."""

STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1c2024; --soft: #5d666f; --line: #d5dade;
  --card: #f4f6f8; --good: #17703c; --bad: #b3261e; --odd: #8a5a00; --bar: #9db4c8; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #14171a; --fg: #e6e9ec; --soft: #9aa4ad; --line: #343b42; --card: #1d2226;
    --good: #6fce93; --bad: #ff8a80; --odd: #f0bf5c; --bar: #4b6478; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; }
h2 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.good dd { color: var(--good); } .bad dd { color: var(--bad); } .odd dd { color: var(--odd); }
.first { border-left: .3rem solid var(--bad); background: var(--card); padding: .2rem 1rem;
  border-radius: .3rem; }
.first h2 { margin-top: .6rem; }
.first.good { border-color: var(--good); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--soft); font-weight: normal; font-size: .85rem; }
.n { white-space: nowrap; }
.first-of-two th, .first-of-two td { border-bottom: 0; padding-bottom: 0; }
.more td { color: var(--soft); padding-top: 0; }
.share { display: inline-block; width: 5rem; height: .6rem; background: var(--line);
  border-radius: .3rem; overflow: hidden; }
.share span { display: block; height: 100%; background: var(--bad); }
code { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
.all { fill: var(--bar); } .slow { fill: var(--bad); }
@media print { :root { --bg: #fff; --fg: #000; } main { max-width: none; padding: 0; }
  section, tr { break-inside: avoid; } }
"""
