-- The tables of the pipeline, written from docs/pipeline_reckoning.md alone.
-- Views `events` and `segments` and the variables `window_ms`, `online_ms`, `objective_ms`, `sla_ms`
-- are there before.

CREATE VIEW attempts AS
SELECT node, event_id AS id, to_node AS peer, *
FROM events
WHERE kind IN ('message', 'reply', 'task_create', 'task_cancel') AND octet_length(event_id) = 16;

-- All statements but attempts. An event may make several.
CREATE VIEW told AS
WITH about AS (
  SELECT
    CASE WHEN kind IN ('dead_letter', 'signal', 'task_cancel') THEN node
         ELSE coalesce(to_node, node) END AS owner,
    CASE WHEN kind IN ('dead_letter', 'signal', 'task_cancel') THEN to_node ELSE node END AS peer,
    coalesce(eta_at, created_at + 1000 * eta_seconds) AS promise,
    *
  FROM events
  WHERE octet_length(ref_id) = 16 AND kind NOT IN ('message', 'task_create')
), stated AS (
  SELECT CASE
      WHEN kind = 'ack' THEN status
      WHEN kind = 'reply' THEN 'replied'
      WHEN kind = 'task_complete' THEN 'completed'
      WHEN kind = 'task_failed' THEN 'failed'
      WHEN kind = 'task_cancel' THEN 'cancelled'
      WHEN kind = 'dead_letter' THEN 'dead'
      WHEN kind = 'signal' AND signal IN ('confirm', 'withdraw') THEN signal
    END AS what, created_at AS stated_at, *
  FROM about
)
SELECT * FROM stated WHERE what IS NOT NULL
UNION ALL BY NAME SELECT 'promised' AS what, promise AS stated_at, * FROM about
  WHERE promise IS NOT NULL AND kind <> 'ack'
UNION ALL BY NAME SELECT 'progressed' AS what, created_at AS stated_at, * FROM about
  WHERE progress IS NOT NULL;

CREATE TABLE asked AS SELECT DISTINCT node, id, peer FROM attempts WHERE peer IS NOT NULL;

CREATE TABLE messages AS
SELECT node, id, kind, source_agent AS from_agent, to_agent, corr_id, pair_seq,
       created_at AS sent_at, expires_at, coalesce(blob_size, payload_size)::BIGINT AS size,
       origin_id IS NOT NULL AS is_forward,
       capability_id, capability_version, delegation_version, executor_version, task_type
FROM attempts
QUALIFY row_number() OVER (PARTITION BY node, id ORDER BY created_at) = 1;

CREATE TABLE last_attempts AS
SELECT node, id, attempt AS attempts, route_decision AS decision, peer
FROM attempts
QUALIFY row_number() OVER (PARTITION BY node, id
  ORDER BY attempt DESC, route_decision DESC NULLS LAST, peer DESC NULLS LAST) = 1;

-- Statements of nodes that were asked.
CREATE TABLE answers AS
SELECT told.* FROM told JOIN asked ON asked.node = owner AND asked.id = ref_id
  AND asked.peer = told.peer;

CREATE TABLE accepts AS
SELECT owner, ref_id, stated_at, peer FROM answers WHERE what = 'accepted'
QUALIFY row_number() OVER (PARTITION BY owner, ref_id ORDER BY stated_at, peer) = 1;

CREATE TABLE ends AS
SELECT owner, ref_id, stated_at, outcome, peer FROM answers WHERE what = 'processed'
QUALIFY row_number() OVER (PARTITION BY owner, ref_id ORDER BY stated_at, outcome, peer) = 1;

CREATE TABLE reasons AS
SELECT owner, ref_id,
  min_by(reason, struct_pack(t := stated_at, reason := reason)) FILTER (what = 'dead') AS dead,
  min_by(reason, struct_pack(t := stated_at, reason := reason))
    FILTER (what = 'undone') AS undone,
  min_by(reason, struct_pack(t := stated_at, reason := reason)) FILTER (what = 'refused') AS refused
FROM (
  SELECT owner, ref_id, stated_at, reason, what FROM told WHERE what = 'dead'
  UNION ALL SELECT owner, ref_id, stated_at, reason, what FROM answers WHERE what = 'refused'
  UNION ALL SELECT owner, ref_id, stated_at, reason, 'undone' FROM answers
    WHERE what = 'processed' AND reason IS NOT NULL AND outcome IS DISTINCT FROM 'ok'
) GROUP BY ALL;

CREATE TABLE turns_of AS
SELECT owner, ref_id, count(*) FILTER (first_outcome = 'ok') AS turns
FROM (SELECT owner, ref_id, peer, min_by(outcome, struct_pack(t := stated_at, o := outcome)) AS first_outcome
      FROM answers WHERE what = 'processed' GROUP BY ALL)
GROUP BY ALL;

CREATE TABLE repeats AS
SELECT owner, ref_id, sum(n - 1)::BIGINT AS duplicates
FROM (SELECT owner, ref_id, peer, what, count(*) AS n FROM told
      WHERE what IN ('accepted', 'processed') GROUP BY ALL)
GROUP BY ALL;

CREATE TABLE unasked AS
SELECT owner, ref_id, count(DISTINCT told.peer) AS strangers
FROM told ANTI JOIN asked ON asked.node = owner AND asked.id = ref_id AND asked.peer = told.peer
WHERE what IN ('accepted', 'processed') GROUP BY ALL;

CREATE TABLE facts_of AS
SELECT owner, ref_id, max(peer) AS greatest_peer,
  min(stated_at) FILTER (what = 'dead') AS dead_at,
  min(stated_at) FILTER (what = 'promised') AS eta_at,
  max(progress) FILTER (what = 'progressed') AS progress,
  min(stated_at) FILTER (what = 'completed') AS completed_at,
  min(stated_at) FILTER (what = 'failed') AS failed_at,
  min_by(failure_class, struct_pack(t := stated_at, c := failure_class))
    FILTER (what = 'failed') AS failure_class,
  min(stated_at) FILTER (what = 'cancelled') AS cancelled_at
FROM told GROUP BY ALL;

CREATE TABLE replies AS
SELECT owner, ref_id, min(stated_at) AS stated_at FROM answers WHERE what = 'replied' GROUP BY ALL;

CREATE TABLE routes_of AS SELECT node, id, count(*) AS routes FROM asked GROUP BY ALL;

CREATE TABLE deliveries AS
WITH keys AS (
  SELECT node, id FROM messages UNION SELECT owner, ref_id FROM facts_of
), columns AS (
  SELECT ('0x' || left(hex(keys.id), 12))::BIGINT // 3600000 AS hour,
    keys.node, keys.id AS event_id, m.* EXCLUDE (node, id, is_forward),
    coalesce(is_forward, false) AS forwarded,
    l.attempts, l.decision, coalesce(routes, 0)::INTEGER AS routes,
    a.stated_at AS accepted_at, e.stated_at AS processed_at, e.outcome, r.stated_at AS replied_at, f.dead_at,
    coalesce(why.dead, why.undone, why.refused) AS reason,
    CASE WHEN e.stated_at IS NOT NULL THEN e.peer WHEN a.stated_at IS NOT NULL THEN a.peer
         WHEN m.id IS NOT NULL THEN l.peer ELSE f.greatest_peer END AS to_node,
    coalesce(duplicates, 0) AS duplicates, coalesce(strangers, 0) AS strangers,
    coalesce(turns, 0) AS turns, m.id IS NULL AS lost,
    f.eta_at, f.progress, f.completed_at, f.failed_at, f.failure_class, f.cancelled_at
  FROM keys
  LEFT JOIN messages m ON m.node = keys.node AND m.id = keys.id
  LEFT JOIN last_attempts l ON l.node = keys.node AND l.id = keys.id
  LEFT JOIN routes_of ON routes_of.node = keys.node AND routes_of.id = keys.id
  LEFT JOIN accepts a ON a.owner = keys.node AND a.ref_id = keys.id
  LEFT JOIN ends e ON e.owner = keys.node AND e.ref_id = keys.id
  LEFT JOIN replies r ON r.owner = keys.node AND r.ref_id = keys.id
  LEFT JOIN facts_of f ON f.owner = keys.node AND f.ref_id = keys.id
  LEFT JOIN reasons why ON why.owner = keys.node AND why.ref_id = keys.id
  LEFT JOIN repeats ON repeats.owner = keys.node AND repeats.ref_id = keys.id
  LEFT JOIN unasked ON unasked.owner = keys.node AND unasked.ref_id = keys.id
  LEFT JOIN turns_of ON turns_of.owner = keys.node AND turns_of.ref_id = keys.id
)
SELECT *,
  dead_at IS NOT NULL AND (processed_at IS NOT NULL OR replied_at IS NOT NULL) AS amended,
  dead_at IS NOT NULL OR processed_at IS NOT NULL OR replied_at IS NOT NULL AS closed,
  CASE WHEN lost THEN 'orphan'
       WHEN replied_at IS NOT NULL THEN 'replied' WHEN processed_at IS NOT NULL THEN 'processed'
       WHEN dead_at IS NOT NULL THEN 'dead_letter'
       WHEN accepted_at IS NOT NULL THEN 'accepted'
       WHEN attempts > 1 THEN 'retry_pending' ELSE 'emitted' END AS state
FROM columns;

CREATE TABLE tasks AS
SELECT hour, node, event_id, corr_id, from_agent, to_agent, to_node,
  capability_id, capability_version, delegation_version, executor_version, task_type,
  sent_at AS created_at, accepted_at, eta_at, progress,
  coalesce(completed_at, failed_at, cancelled_at) AS ended_at,
  completed_at - sent_at AS took_ms, failure_class, reason,
  CASE WHEN completed_at IS NOT NULL THEN 'completed' WHEN failed_at IS NOT NULL THEN 'failed'
       WHEN cancelled_at IS NOT NULL THEN 'cancelled'
       WHEN processed_at IS NOT NULL OR progress IS NOT NULL THEN 'running'
       WHEN dead_at IS NOT NULL THEN 'dead_letter'
       WHEN accepted_at IS NOT NULL THEN 'accepted' ELSE 'pending' END AS state
FROM deliveries WHERE kind = 'task_create';

CREATE TABLE timed AS
SELECT * EXCLUDE (capability_id),
  CASE WHEN kind = 'task_create' THEN capability_id END AS capability_id,
  greatest(hour * 3600000, least((hour + 1) * 3600000 - getvariable('window_ms'),
    sent_at // getvariable('window_ms') * getvariable('window_ms'))) AS window_start,
  coalesce(outcome, '') IN ('dead_letter', 'expired') AS dropped,
  accepted_at - sent_at AS accept,
  CASE WHEN NOT dropped THEN least(processed_at, replied_at) - sent_at END AS process,
  (dead_at IS NOT NULL AND NOT amended) OR dropped AS dead
FROM deliveries WHERE kind IS NOT NULL;

CREATE MACRO percentile(sorted, share) AS
  sorted[ceil(len(sorted) * share)::BIGINT];

CREATE TABLE slo AS
WITH sums AS (
  SELECT hour, window_start, kind, node, capability_id, count(*) AS sent,
    count(accepted_at) AS accepted, count(process) AS processed,
    count(*) FILTER (dead) AS dead,
    count(*) FILTER (amended) AS amended, count(*) FILTER (attempts > 1) AS retried,
    sum(duplicates)::BIGINT AS duplicates, count(*) FILTER (NOT closed) AS open,
    count(*) FILTER (coalesce(least(accepted_at, dead_at),
      window_start + getvariable('window_ms')) >= window_start + getvariable('window_ms')) AS ack_lag,
    coalesce(sum(size), 0)::BIGINT AS bytes,
    list(accept ORDER BY accept) FILTER (accept IS NOT NULL) AS accepts,
    list(process ORDER BY process) FILTER (process IS NOT NULL) AS processes,
    list(accept ORDER BY accept) FILTER (accept <= getvariable('online_ms')) AS online
  FROM timed GROUP BY ALL
)
SELECT * EXCLUDE (accepts, processes, online), getvariable('window_ms') AS window_ms,
  sent / (getvariable('window_ms') / 1000) AS per_second,
  percentile(accepts, 0.5) AS accept_p50, percentile(accepts, 0.95) AS accept_p95,
  percentile(accepts, 0.99) AS accept_p99, percentile(processes, 0.5) AS process_p50,
  percentile(processes, 0.95) AS process_p95, percentile(processes, 0.99) AS process_p99,
  retried / sent AS retry_rate, duplicates / sent AS duplicate_rate, dead / sent AS dead_rate,
  percentile(online, 0.95) AS online_p95, getvariable('objective_ms') AS objective_ms,
  percentile(online, 0.95) < getvariable('objective_ms') AS met
FROM sums;

CREATE TABLE traffic AS
SELECT hour, node, from_agent, to_node, to_agent, count(*) AS sent,
  coalesce(sum(size), 0)::BIGINT AS bytes,
  count(*) FILTER (replied_at IS NOT NULL OR outcome IN ('ok', 'kept')) AS ok,
  count(*) FILTER (dead) AS dead,
  count(*) FILTER (NOT closed) AS open, avg(accept) AS accept_ms, avg(process) AS process_ms,
  max(process) AS process_max
FROM timed GROUP BY ALL;

CREATE TABLE archive_time AS
WITH times AS (
  SELECT node, max(least("maxCreatedAt", "archivedAt")) AS stated_at FROM segments GROUP BY node
), ranked AS (
  SELECT stated_at, row_number() OVER (ORDER BY stated_at DESC) AS place FROM times
  WHERE stated_at <= epoch_ms(now())
)
SELECT least(max(stated_at) FILTER (place = 1),
  coalesce(max(stated_at) FILTER (place = 2) + 86400000, max(stated_at) FILTER (place = 1))) - 120000 AS as_of
FROM ranked;

CREATE TABLE reviews AS
WITH known AS (
  SELECT t.*, d.dead_at, least(d.processed_at, d.replied_at) AS answered_at, as_of
  FROM tasks t JOIN deliveries d USING (node, event_id), archive_time
), misfires AS (
  SELECT 'eta_breach' AS class, * FROM known
    WHERE state IN ('accepted', 'running', 'completed', 'failed', 'cancelled')
      AND coalesce(ended_at, as_of) > eta_at
  UNION ALL SELECT 'contract_mismatch', * FROM known
    WHERE state = 'failed' AND failure_class = 'contract_mismatch'
  UNION ALL SELECT 'terminal_error', * FROM known
    WHERE state = 'failed' AND failure_class IS DISTINCT FROM 'contract_mismatch'
  UNION ALL SELECT 'routing_miss', * FROM known
    WHERE state = 'dead_letter' AND reason = 'no_route'
  UNION ALL SELECT 'sla_breach', * FROM known
    WHERE coalesce(answered_at, dead_at, as_of) - accepted_at > getvariable('sla_ms')
), totals AS (
  SELECT capability_id, capability_version, delegation_version, executor_version,
    count(*) AS tasks FROM tasks GROUP BY ALL
), grouped AS (
  SELECT class, capability_id, capability_version, delegation_version, executor_version,
    count(*) AS count, min(created_at) AS first_at, max(created_at) AS last_at,
    list(corr_id ORDER BY created_at, corr_id)[:5] AS samples
  FROM misfires GROUP BY ALL
)
SELECT g.*, tasks, left(sha256(concat_ws(chr(31), coalesce(g.capability_id, ''),
    coalesce(g.capability_version, ''), coalesce(g.delegation_version, ''),
    coalesce(g.executor_version, ''), class)), 32) AS review_id
FROM grouped g JOIN totals t
  ON t.capability_id IS NOT DISTINCT FROM g.capability_id
  AND t.capability_version IS NOT DISTINCT FROM g.capability_version
  AND t.delegation_version IS NOT DISTINCT FROM g.delegation_version
  AND t.executor_version IS NOT DISTINCT FROM g.executor_version
WHERE class <> 'routing_miss' OR count >= 2;

CREATE MACRO three_digits(ms) AS
  CASE WHEN ms < 1000 THEN greatest(ms, 0)
       ELSE (ceil(ms / pow(10, len(ms::VARCHAR) - 3)) * pow(10, len(ms::VARCHAR) - 3))::BIGINT END;

CREATE TABLE eta AS
WITH done AS (
  SELECT capability_id, capability_version, three_digits(took_ms) AS took,
    three_digits(eta_at - created_at) AS promise, ended_at <= eta_at AS kept
  FROM tasks WHERE took_ms IS NOT NULL
), lists AS (
  SELECT capability_id, capability_version, count(*) AS completed,
    list(took ORDER BY took) AS took,
    list(promise ORDER BY promise) FILTER (promise IS NOT NULL) AS promises,
    avg(kept::INTEGER) AS kept_rate
  FROM done GROUP BY ALL
)
SELECT capability_id, capability_version, completed, kept_rate,
  percentile(took, 0.5) / 1000 AS p50_seconds, percentile(took, 0.9) / 1000 AS p90_seconds,
  percentile(took, 0.95) / 1000 AS p95_seconds, percentile(took, 0.99) / 1000 AS p99_seconds,
  percentile(promises, 0.5) / 1000 AS promised_seconds,
  ceil(percentile(took, 0.95) / 1000)::BIGINT AS recommended_eta_seconds
FROM lists;
