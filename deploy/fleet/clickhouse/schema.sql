-- Where the fleet's records are kept: one row a request, columns for what is asked for often, and
-- the whole record beside them. Fields: docs/headers-and-records.md. ClickHouse 24.8 or newer.
--
--   clickhouse-client --queries-file schema.sql

CREATE DATABASE IF NOT EXISTS slowtok;

-- What the Collector's exporter writes to (its columns, create_schema: false). It keeps nothing:
-- the view below takes what is a record.
CREATE TABLE IF NOT EXISTS slowtok.lines
(
    Timestamp DateTime64(9),
    TraceId String,
    SpanId String,
    TraceFlags UInt8,
    SeverityText LowCardinality(String),
    SeverityNumber UInt8,
    ServiceName LowCardinality(String),
    Body String,
    ResourceSchemaUrl LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String),
    ScopeSchemaUrl LowCardinality(String),
    ScopeName String,
    ScopeVersion LowCardinality(String),
    ScopeAttributes Map(LowCardinality(String), String),
    LogAttributes Map(LowCardinality(String), String),
    EventName String
)
ENGINE = Null;

-- A Collector may send a line twice: rows with one id are one request, so read with FINAL.
-- NULL is not known. Empty text is absent.
CREATE TABLE IF NOT EXISTS slowtok.requests
(
    ts DateTime64(3, 'UTC'),
    host LowCardinality(String),
    id String,
    model LowCardinality(String),
    engine LowCardinality(String),
    kind LowCardinality(String),
    engine_version LowCardinality(String),
    path LowCardinality(String),
    status Nullable(UInt16),
    ended LowCardinality(String),
    verdict LowCardinality(String),
    phase LowCardinality(String),
    reason LowCardinality(String),
    total_ms Float64,
    queue_ms Nullable(Float64),
    load_ms Nullable(Float64),
    prefill_ms Nullable(Float64),
    decode_ms Nullable(Float64),
    delivery_ms Nullable(Float64),
    ttft_ms Nullable(Float64),
    proxy_ms Nullable(Float64),
    source LowCardinality(String),
    prompt_tokens Nullable(UInt32),
    cached_tokens Nullable(UInt32),
    completion_tokens Nullable(UInt32),
    prefill_tps Nullable(Float64),
    decode_tps Nullable(Float64),
    expected_low_tps Nullable(Float64),
    expected_high_tps Nullable(Float64),
    findings Nested
    (
        cause LowCardinality(String),
        phase LowCardinality(String),
        confidence Float64,
        lost_ms Float64,
        informational UInt8,
        summary String,
        remedy String
    ),
    unexplained_ms Nullable(Float64) COMMENT 'NULL also where the engine told no token count',
    not_visible Nested (fact LowCardinality(String), how_to_enable String),
    gpus Array(LowCardinality(String)),
    record String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (host, model, ts, id)
TTL toDateTime(ts) + INTERVAL 90 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS slowtok.lines_to_requests TO slowtok.requests AS
WITH
    JSONExtract(Body, 'findings', 'Array(Tuple(cause String, phase String, confidence Float64, lost_ms Float64, informational Bool, summary String, remedy String))') AS found,
    JSONExtract(Body, 'not_visible', 'Array(Tuple(fact String, how_to_enable String))') AS unseen,
    JSONExtract(Body, 'gpu', 'Array(Tuple(name String))') AS cards
SELECT
    parseDateTime64BestEffort(JSONExtractString(Body, 'ts'), 3, 'UTC') AS ts,
    ResourceAttributes['host.name'] AS host,
    JSONExtractString(Body, 'id') AS id,
    JSONExtractString(Body, 'model') AS model,
    JSONExtractString(Body, 'upstream', 'name') AS engine,
    JSONExtractString(Body, 'upstream', 'kind') AS kind,
    JSONExtractString(Body, 'upstream', 'version') AS engine_version,
    JSONExtractString(Body, 'path') AS path,
    JSONExtract(Body, 'status', 'Nullable(UInt16)') AS status,
    JSONExtractString(Body, 'ended') AS ended,
    JSONExtractString(Body, 'verdict') AS verdict,
    JSONExtractString(Body, 'phase') AS phase,
    JSONExtractString(Body, 'reason') AS reason,
    JSONExtractFloat(Body, 'timing', 'total_ms') AS total_ms,
    JSONExtract(Body, 'timing', 'queue_ms', 'Nullable(Float64)') AS queue_ms,
    JSONExtract(Body, 'timing', 'load_ms', 'Nullable(Float64)') AS load_ms,
    JSONExtract(Body, 'timing', 'prefill_ms', 'Nullable(Float64)') AS prefill_ms,
    JSONExtract(Body, 'timing', 'decode_ms', 'Nullable(Float64)') AS decode_ms,
    JSONExtract(Body, 'timing', 'delivery_ms', 'Nullable(Float64)') AS delivery_ms,
    JSONExtract(Body, 'timing', 'ttft_ms', 'Nullable(Float64)') AS ttft_ms,
    JSONExtract(Body, 'timing', 'proxy_ms', 'Nullable(Float64)') AS proxy_ms,
    JSONExtractString(Body, 'timing', 'source') AS source,
    JSONExtract(Body, 'tokens', 'prompt', 'Nullable(UInt32)') AS prompt_tokens,
    JSONExtract(Body, 'tokens', 'cached', 'Nullable(UInt32)') AS cached_tokens,
    JSONExtract(Body, 'tokens', 'completion', 'Nullable(UInt32)') AS completion_tokens,
    JSONExtract(Body, 'rate', 'prefill_tps', 'Nullable(Float64)') AS prefill_tps,
    JSONExtract(Body, 'rate', 'decode_tps', 'Nullable(Float64)') AS decode_tps,
    JSONExtract(Body, 'expected', 'decode_low_tps', 'Nullable(Float64)') AS expected_low_tps,
    JSONExtract(Body, 'expected', 'decode_high_tps', 'Nullable(Float64)') AS expected_high_tps,
    found.cause AS `findings.cause`,
    found.phase AS `findings.phase`,
    found.confidence AS `findings.confidence`,
    found.lost_ms AS `findings.lost_ms`,
    found.informational AS `findings.informational`,
    found.summary AS `findings.summary`,
    found.remedy AS `findings.remedy`,
    JSONExtract(Body, 'budget_ms_per_token', 'unexplained', 'Nullable(Float64)') * completion_tokens AS unexplained_ms,
    unseen.fact AS `not_visible.fact`,
    unseen.how_to_enable AS `not_visible.how_to_enable`,
    arrayDistinct(cards.name) AS gpus,
    Body AS record
FROM slowtok.lines
WHERE JSONExtractString(Body, 'event') = 'request';
