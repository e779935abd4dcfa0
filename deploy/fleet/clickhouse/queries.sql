-- Questions to a fleet. Each looks at the last seven days; change the interval.
-- clickhouse-client --queries-file queries.sql, or one at a time in Grafana.

-- Time lost by cause, over the fleet. What informs only (long-context) is no loss.
SELECT
    cause,
    round(sum(lost_ms) / 1000, 1) AS lost_s,
    round(100 * lost_s / sum(lost_s) OVER (), 1) AS percent,
    uniqExact(id) AS requests,
    uniqExact(host) AS hosts
FROM
(
    SELECT host, id, cause, lost_ms
    FROM slowtok.requests FINAL
    ARRAY JOIN findings.cause AS cause, findings.lost_ms AS lost_ms, findings.informational AS informs
    WHERE ts > now() - INTERVAL 7 DAY AND verdict = 'slow' AND NOT informs
    UNION ALL
    SELECT host, id, 'unexplained', unexplained_ms
    FROM slowtok.requests FINAL
    WHERE ts > now() - INTERVAL 7 DAY AND verdict = 'slow' AND unexplained_ms > 0
)
GROUP BY cause
ORDER BY lost_s DESC;

-- The worst hosts: share of their time that was lost, and to what first.
SELECT
    host,
    count() AS requests,
    round(100 * countIf(verdict = 'slow') / countIf(verdict != 'unknown'), 1) AS slow_percent,
    round(sum(lost_of_request_ms) / 1000, 1) AS lost_s,
    round(100 * sum(lost_of_request_ms) / sum(total_ms), 1) AS lost_percent,
    topKWeightedIf(1)(findings.cause[1], toUInt64(lost_of_request_ms), verdict = 'slow' AND notEmpty(findings.cause))[1] AS first_cause
FROM
(
    SELECT
        *,
        arraySum(arrayMap((ms, informs) -> if(informs, 0, ms), findings.lost_ms, findings.informational))
            + greatest(ifNull(unexplained_ms, 0), 0) AS lost_of_request_ms
    FROM slowtok.requests FINAL
    WHERE ts > now() - INTERVAL 7 DAY AND verdict != ''
)
GROUP BY host
ORDER BY lost_s DESC
LIMIT 20;

-- The worst models: decode rate against what is to be expected of them where they run.
SELECT
    model,
    gpus,
    count() AS requests,
    countIf(verdict = 'slow') AS slow,
    round(quantile(0.5)(decode_tps), 1) AS decode_tps_p50,
    round(quantile(0.5)(decode_tps / ((expected_low_tps + expected_high_tps) / 2)), 2) AS of_expected_p50,
    round(quantile(0.95)(ttft_ms)) AS ttft_p95_ms
FROM slowtok.requests FINAL
WHERE ts > now() - INTERVAL 7 DAY AND verdict != ''
GROUP BY model, gpus
ORDER BY of_expected_p50 ASC NULLS LAST
LIMIT 20;

-- What to do first: host and cause with the most time to win, and the newest advice.
SELECT
    host,
    cause,
    round(sum(lost_ms) / 1000, 1) AS lost_s,
    count() AS requests,
    argMax(remedy, ts) AS advice,
    argMax(id, lost_ms) AS worst_request
FROM slowtok.requests FINAL
ARRAY JOIN
    findings.cause AS cause,
    findings.lost_ms AS lost_ms,
    findings.informational AS informs,
    findings.remedy AS remedy
WHERE ts > now() - INTERVAL 7 DAY AND verdict = 'slow' AND NOT informs
GROUP BY host, cause
ORDER BY lost_s DESC
LIMIT 20;

-- What cannot be seen, where, and how to see it.
SELECT
    fact,
    groupUniqArray(20)(host) AS on_hosts,
    count() AS requests,
    argMax(how_to_enable, ts) AS how
FROM slowtok.requests FINAL
ARRAY JOIN not_visible.fact AS fact, not_visible.how_to_enable AS how_to_enable
WHERE ts > now() - INTERVAL 7 DAY
GROUP BY fact
ORDER BY requests DESC
LIMIT 30;

-- Why nothing can be said.
SELECT reason, count() AS requests, groupUniqArray(10)(model) AS models
FROM slowtok.requests FINAL
WHERE ts > now() - INTERVAL 7 DAY AND verdict = 'unknown'
GROUP BY reason
ORDER BY requests DESC;

-- One model on hosts with the same GPU: who is slower than its peers?
SELECT
    model,
    gpus,
    host,
    count() AS requests,
    round(quantile(0.5)(decode_tps), 1) AS own_tps,
    round(max(own_tps) OVER (PARTITION BY model, gpus), 1) AS best_peer_tps,
    round(own_tps / best_peer_tps, 2) AS of_best
FROM slowtok.requests FINAL
WHERE ts > now() - INTERVAL 7 DAY AND decode_tps IS NOT NULL
GROUP BY model, gpus, host
HAVING requests >= 5
ORDER BY of_best ASC
LIMIT 20;

-- By hour: is it always so, or when all work at once?
SELECT
    toStartOfHour(ts) AS hour,
    count() AS requests,
    round(100 * countIf(verdict = 'slow') / nullIf(countIf(verdict != 'unknown'), 0), 1) AS slow_percent,
    round(quantile(0.95)(queue_ms)) AS queue_p95_ms
FROM slowtok.requests FINAL
WHERE ts > now() - INTERVAL 7 DAY AND verdict != ''
GROUP BY hour
ORDER BY hour;

-- One request in full, by the id that a client got as slowtok-id.
SELECT record
FROM slowtok.requests
WHERE id = {id:String}
LIMIT 1;
