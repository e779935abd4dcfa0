// What the proxy tells: events while it has them, questions again and again where it has not.

// Without the name and key that an address may hold: a browser refuses to fetch from such a one.
const own = (path) => new URL(path, location.origin + location.pathname);

const KEEP = 200;
const POLL_MS = 1000;
const STATUS_MS = 5000; // what no event tells: engines, memory, what was learned
const RETRY_EVENTS_MS = 30000;

export class Source {
  /** `told(what)` is called with "running", "records", "status", "link" or {record} after changes. */
  constructor(told) {
    this.told = told;
    this.records = new Map(); // newest first, by id
    this.running = new Map();
    this.status = null;
    this.link = "connecting";
    this.samples = new Map();
  }

  async start() {
    await this.reload();
    this.listen();
    setInterval(() => document.visibilityState === "visible" && this.loadStatus(), STATUS_MS);
  }

  /** Ask for everything again: at the start, and where events were lost. */
  async reload() {
    await Promise.all([this.loadRecords(), this.loadStatus()]);
  }

  async loadRecords() {
    const records = await ask(`requests?limit=${KEEP}`);
    if (!records) return;
    const known = this.records;
    const fresh = records.filter((record) => !known.has(record.id));
    this.records = new Map(records.map((record) => [record.id, known.get(record.id) ?? record]));
    this.told("records");
    if (known.size && fresh.length) this.told({ record: fresh[0] });
  }

  async loadStatus() {
    const status = await ask("status");
    if (!status) return this.say("offline");
    if (this.link === "offline") this.say("polling");
    this.status = status;
    this.running = new Map((status.running ?? []).map((entry) => [entry.id, dated(entry)]));
    this.told("status");
    this.told("running");
  }

  /** One record in full, from here or from the proxy; null where neither has it. */
  async record(id) {
    return this.records.get(id) ?? (await ask(`requests/${encodeURIComponent(id)}`));
  }

  /** The samples of one request; null where they are no longer kept. */
  async series(id) {
    if (!this.samples.has(id)) {
      const found = await ask(`requests/${encodeURIComponent(id)}/samples`);
      if (!found) return null;
      if (this.samples.size >= 20) this.samples.delete(this.samples.keys().next().value);
      this.samples.set(id, found);
    }
    return this.samples.get(id);
  }

  listen() {
    const events = new EventSource(own("events"));
    events.onopen = () => {
      clearInterval(this.polling);
      if (this.link !== "connecting") this.reload();
      this.say("live");
    };
    events.onerror = () => {
      if (events.readyState === EventSource.CONNECTING) {
        this.say("offline");
        return;
      }
      events.close();
      this.poll();
      setTimeout(() => this.listen(), RETRY_EVENTS_MS);
    };
    for (const step of ["begin", "sent", "first-token", "progress"]) {
      events.addEventListener(step, (event) => this.noteRunning(JSON.parse(event.data)));
    }
    events.addEventListener("end", (event) => {
      this.running.delete(JSON.parse(event.data).id);
      this.told("running");
    });
    events.addEventListener("record", (event) => this.noteRecord(JSON.parse(event.data)));
    events.addEventListener("lost", () => this.reload());
  }

  poll() {
    clearInterval(this.polling);
    this.say("polling");
    this.polling = setInterval(() => this.reload(), POLL_MS);
  }

  noteRunning(entry) {
    this.running.set(entry.id, dated(entry));
    this.told("running");
  }

  noteRecord(record) {
    this.running.delete(record.id);
    this.records = new Map([[record.id, record], ...this.records].slice(0, KEEP));
    this.told("records");
    this.told("running");
    this.told({ record });
  }

  say(link) {
    if (this.link === link) return;
    this.link = link;
    this.told("link");
  }
}

/** The JSON of one of slowtok's paths; null where there is none. */
export async function ask(path) {
  try {
    const reply = await fetch(own(path), { headers: { Accept: "application/json" } });
    return reply.ok ? await reply.json() : null;
  } catch {
    return null;
  }
}

/** An entry with the time it was true at, so that what passes since can be added. */
function dated(entry) {
  return { ...entry, told_at_ms: performance.now() };
}
