-- The definitions of docs/pipeline_reckoning.md in Spark SQL, one view after the other. A line
-- `-- view NAME` begins each. `events` is there before; :names are parameters.

-- view statements
WITH dated AS (
  SELECT *,
    coalesce(outcome, reason, failure_class, route_decision) AS said,
    coalesce(eta_at, created_at + 1000 * eta_seconds) AS promise,
    octet_length(event_id) = 16
      AND created_at - CAST(conv(hex(substring(event_id, 1, 6)), 16, 10) AS BIGINT)
        BETWEEN -86400000 AND :id_age AS is_near,
    coalesce(octet_length(ref_id) = 16
      AND created_at - CAST(conv(hex(substring(ref_id, 1, 6)), 16, 10) AS BIGINT)
        BETWEEN -86400000 AND :id_age, false) AS refers_near,
    kind IN ('dead_letter', 'signal', 'task_cancel') AS is_about_own
  FROM events
), stated AS (
  SELECT *,
    kind IN ('message', 'reply', 'task_create', 'task_cancel') AND is_near AS opens,
    kind NOT IN ('message', 'task_create') AND refers_near AS refers,
    CASE kind
      WHEN 'ack' THEN IF(status IN ('accepted', 'refused', 'processed'), status, NULL)
      WHEN 'reply' THEN 'replied'
      WHEN 'task_complete' THEN 'completed'
      WHEN 'task_failed' THEN 'failed'
      WHEN 'task_cancel' THEN 'cancelled'
      WHEN 'dead_letter' THEN 'dead'
      WHEN 'signal' THEN
        CASE signal WHEN 'confirm' THEN 'confirmed' WHEN 'withdraw' THEN 'withdrawn' END
    END AS what,
    IF(is_about_own, node, coalesce(to_node, node)) AS owner,
    coalesce(IF(is_about_own, to_node, node), '') AS peer
  FROM dated
), made AS (
  SELECT *, filter(array(
    IF(opens, named_struct('what', 'sent', 'owner', node, 'id', event_id,
      'peer', coalesce(to_node, ''), 'at', created_at, 'text', said), NULL),
    IF(refers, named_struct('what', what, 'owner', owner, 'id', ref_id, 'peer', peer,
      'at', created_at, 'text', said), NULL),
    IF(refers AND what = 'processed' AND reason IS NOT NULL AND NOT outcome <=> 'ok',
      named_struct('what', 'undone', 'owner', owner, 'id', ref_id, 'peer', peer,
      'at', created_at, 'text', reason), NULL),
    IF(refers AND promise IS NOT NULL AND kind <> 'ack',
      named_struct('what', 'promised', 'owner', owner, 'id', ref_id, 'peer', peer,
      'at', promise, 'text', said), NULL),
    IF(refers AND progress IS NOT NULL,
      named_struct('what', 'progressed', 'owner', owner, 'id', ref_id, 'peer', peer,
      'at', created_at, 'text', said), NULL)
  ), fact -> fact.what IS NOT NULL) AS facts
  FROM stated
)
SELECT fact.what, fact.owner, fact.id, fact.peer, fact.at, fact.text, attempt, progress,
  IF(fact.what = 'sent', named_struct('sent_at', created_at, 'kind', kind,
    'from_agent', source_agent, 'to_agent', to_agent, 'corr_id', corr_id, 'pair_seq', pair_seq,
    'expires_at', expires_at, 'size', coalesce(blob_size, CAST(payload_size AS BIGINT)),
    'forwarded', origin_id IS NOT NULL,
    'capability_id', IF(kind = 'task_create', capability_id, NULL),
    'capability_version', IF(kind = 'task_create', capability_version, NULL),
    'delegation_version', IF(kind = 'task_create', delegation_version, NULL),
    'executor_version', IF(kind = 'task_create', executor_version, NULL),
    'task_type', IF(kind = 'task_create', task_type, NULL)), NULL) AS message
FROM (SELECT *, explode(facts) AS fact FROM made)

-- view legs
SELECT owner, id, peer,
  min(message) AS message,
  max(struct(attempt, text)) FILTER (WHERE what = 'sent') AS last,
  min(struct(at, text)) FILTER (WHERE what = 'sent') AS sent,
  min(struct(at, text)) FILTER (WHERE what = 'accepted') AS accepted,
  min(struct(at, text)) FILTER (WHERE what = 'refused') AS refused,
  min(struct(at, text)) FILTER (WHERE what = 'processed') AS processed,
  min(struct(at, text)) FILTER (WHERE what = 'replied') AS replied,
  min(struct(at, text)) FILTER (WHERE what = 'dead') AS dead,
  min(struct(at, text)) FILTER (WHERE what = 'confirmed') AS confirmed,
  min(struct(at, text)) FILTER (WHERE what = 'withdrawn') AS withdrawn,
  min(struct(at, text)) FILTER (WHERE what = 'promised') AS promised,
  min(struct(at, text)) FILTER (WHERE what = 'progressed') AS progressed,
  min(struct(at, text)) FILTER (WHERE what = 'completed') AS completed,
  min(struct(at, text)) FILTER (WHERE what = 'failed') AS failed,
  min(struct(at, text)) FILTER (WHERE what = 'cancelled') AS cancelled,
  min(struct(at, text)) FILTER (WHERE what = 'undone') AS undone,
  max(progress) FILTER (WHERE what = 'progressed') AS progress,
  count_if(what = 'accepted') AS accepts,
  count_if(what = 'processed') AS ends,
  count_if(what = 'sent') > 0 AND peer <> '' AS asked
FROM statements GROUP BY owner, id, peer

-- view folded
SELECT owner AS node, id AS event_id,
  min(message) AS message,
  max(struct(last.attempt AS attempt, last.text AS why, peer)) AS last,
  count_if(asked) AS routes,
  min(struct(accepted.at AS at, peer)) FILTER (WHERE asked AND accepted IS NOT NULL) AS accept,
  min(struct(processed.at AS at, processed.text AS text, peer))
    FILTER (WHERE asked AND processed IS NOT NULL) AS turn,
  min(replied.at) FILTER (WHERE asked) AS replied_at,
  min(dead) AS dead,
  min(refused) FILTER (WHERE asked) AS refused,
  min(undone) FILTER (WHERE asked) AS undone,
  sum(greatest(accepts - 1, 0) + greatest(ends - 1, 0)) AS duplicates,
  count_if(NOT asked AND (accepts > 0 OR ends > 0)) AS strangers,
  count_if(asked AND processed.text <=> 'ok') AS turns,
  min(promised.at) AS eta_at,
  max(progress) AS progress,
  min(completed.at) AS completed_at,
  min(failed) AS failed,
  min(cancelled.at) AS cancelled_at,
  count(*) = 1 AND every(asked AND accepts <= 1 AND ends <= 1
    AND refused IS NULL AND dead IS NULL AND undone IS NULL AND confirmed IS NULL
    AND withdrawn IS NULL) AS is_plain,
  every(promised IS NULL AND progressed IS NULL AND completed IS NULL AND failed IS NULL
    AND cancelled IS NULL) AS is_no_task,
  sort_array(collect_list(named_struct('peer', peer, 'facts', filter(array(
    named_struct('what', 'sent', 'fact', named_struct('at', sent.at, 'text', last.text),
      'number', last.attempt, 'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'accepted', 'fact', accepted, 'number', CAST(accepts AS INT),
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'refused', 'fact', refused, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'processed', 'fact', processed, 'number', CAST(ends AS INT),
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'replied', 'fact', replied, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'dead', 'fact', dead, 'number', 1, 'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'confirmed', 'fact', confirmed, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'withdrawn', 'fact', withdrawn, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'promised', 'fact', promised, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'progressed', 'fact', progressed, 'number', 1, 'progress', progress),
    named_struct('what', 'completed', 'fact', completed, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'failed', 'fact', failed, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'cancelled', 'fact', cancelled, 'number', 1,
      'progress', CAST(NULL AS DOUBLE)),
    named_struct('what', 'undone', 'fact', undone, 'number', 1,
      'progress', CAST(NULL AS DOUBLE))
  ), each -> each.fact.at IS NOT NULL)))) AS told
FROM legs GROUP BY owner, id

-- view deliveries
WITH named AS (
  SELECT *, CAST(conv(hex(substring(event_id, 1, 6)), 16, 10) AS BIGINT) DIV 3600000 AS hour,
    message.kind AS kind, message.sent_at AS sent_at, coalesce(message.kind = 'task_create', false) AS is_task,
    accept.at AS accepted_at, turn.at AS processed_at, dead.at AS dead_at
  FROM folded
)
SELECT hour, node, event_id, kind,
  message.from_agent AS from_agent, message.to_agent AS to_agent,
  nullif(coalesce(turn.peer, accept.peer, last.peer), '') AS to_node,
  message.corr_id AS corr_id, message.pair_seq AS pair_seq, sent_at,
  message.expires_at AS expires_at, message.size AS size,
  coalesce(message.forwarded, false) AS forwarded,
  last.attempt AS attempts, CAST(routes AS INT) AS routes, last.why AS decision,
  accepted_at, processed_at, replied_at, dead_at, turn.text AS outcome,
  coalesce(dead.text, undone.text, refused.text) AS reason,
  duplicates, strangers, turns,
  CASE
    WHEN message IS NULL THEN 'orphan'
    WHEN replied_at IS NOT NULL THEN 'replied'
    WHEN processed_at IS NOT NULL THEN 'processed'
    WHEN dead_at IS NOT NULL THEN 'dead_letter'
    WHEN accepted_at IS NOT NULL THEN 'accepted'
    WHEN last.attempt > 1 THEN 'retry_pending'
    ELSE 'emitted'
  END AS state,
  dead_at IS NOT NULL AND (processed_at IS NOT NULL OR replied_at IS NOT NULL) AS amended,
  dead_at IS NOT NULL OR processed_at IS NOT NULL OR replied_at IS NOT NULL AS closed,
  IF(is_task, named_struct('capability_id', message.capability_id,
    'capability_version', message.capability_version,
    'delegation_version', message.delegation_version,
    'executor_version', message.executor_version, 'task_type', message.task_type,
    'eta_at', eta_at, 'progress', progress, 'completed_at', completed_at,
    'failed_at', failed.at, 'failure_class', failed.text, 'cancelled_at', cancelled_at),
    NULL) AS task,
  IF(is_plain AND (is_task OR is_no_task), NULL, flatten(transform(told, leg ->
    transform(leg.facts, each -> named_struct('peer', leg.peer, 'what', each.what,
      'at', each.fact.at, 'text', each.fact.text, 'number', each.number,
      'progress', each.progress))))) AS told
FROM named

-- view timed
SELECT *,
  coalesce(task.completed_at, task.failed_at, task.cancelled_at) AS task_ended_at,
  task.completed_at - sent_at AS took_ms,
  CASE
    WHEN kind <> 'task_create' THEN NULL
    WHEN task.completed_at IS NOT NULL THEN 'completed'
    WHEN task.failed_at IS NOT NULL THEN 'failed'
    WHEN task.cancelled_at IS NOT NULL THEN 'cancelled'
    WHEN processed_at IS NOT NULL OR task.progress IS NOT NULL THEN 'running'
    WHEN dead_at IS NOT NULL THEN 'dead_letter'
    WHEN accepted_at IS NOT NULL THEN 'accepted'
    ELSE 'pending'
  END AS task_state,
  greatest(hour * 3600000, least((hour + 1) * 3600000 - :window_ms,
    sent_at DIV :window_ms * :window_ms)) AS window_start,
  least(processed_at, replied_at) AS ended_at,
  accepted_at - sent_at AS accept,
  IF(coalesce(outcome, '') IN ('dead_letter', 'expired'), NULL,
    least(processed_at, replied_at) - sent_at) AS process,
  (dead_at IS NOT NULL AND NOT amended) OR coalesce(outcome, '') IN ('dead_letter', 'expired')
    AS is_dead
FROM deliveries WHERE kind IS NOT NULL

-- view tasks
SELECT hour, node, event_id, corr_id, from_agent, to_agent, to_node,
  task.capability_id AS capability_id, task.capability_version AS capability_version,
  task.delegation_version AS delegation_version, task.executor_version AS executor_version,
  task.task_type AS task_type, sent_at AS created_at, accepted_at, task.eta_at AS eta_at,
  task.progress AS progress, task_ended_at AS ended_at, took_ms,
  task.failure_class AS failure_class, reason, task_state AS state
FROM timed WHERE kind = 'task_create'

-- view slo
WITH sums AS (
  SELECT hour, window_start, kind, node, task.capability_id AS capability_id, count(*) AS sent,
    count(accepted_at) AS accepted, count(process) AS processed, count_if(is_dead) AS dead,
    count_if(amended) AS amended, count_if(attempts > 1) AS retried,
    sum(duplicates) AS duplicates, count_if(NOT closed) AS open,
    count_if(coalesce(least(accepted_at, dead_at), window_start + :window_ms)
      >= window_start + :window_ms) AS ack_lag,
    coalesce(sum(size), 0) AS bytes,
    sort_array(collect_list(accept)) AS accepts,
    sort_array(collect_list(process)) AS processes,
    sort_array(collect_list(accept) FILTER (WHERE accept <= :online_ms)) AS online
  FROM timed GROUP BY ALL
), levels AS (
  SELECT *,
    get(accepts, CAST(ceil(size(accepts) * 0.50) AS INT) - 1) AS accept_p50,
    get(accepts, CAST(ceil(size(accepts) * 0.95) AS INT) - 1) AS accept_p95,
    get(accepts, CAST(ceil(size(accepts) * 0.99) AS INT) - 1) AS accept_p99,
    get(processes, CAST(ceil(size(processes) * 0.50) AS INT) - 1) AS process_p50,
    get(processes, CAST(ceil(size(processes) * 0.95) AS INT) - 1) AS process_p95,
    get(processes, CAST(ceil(size(processes) * 0.99) AS INT) - 1) AS process_p99,
    get(online, CAST(ceil(size(online) * 0.95) AS INT) - 1) AS online_p95
  FROM sums
)
SELECT hour, window_start, CAST(:window_ms AS BIGINT) AS window_ms, kind, node, capability_id,
  sent, accepted, processed, dead, amended, retried, duplicates, open, ack_lag, bytes,
  sent / (:window_ms / 1000) AS per_second,
  accept_p50, accept_p95, accept_p99, process_p50, process_p95, process_p99,
  retried / sent AS retry_rate, duplicates / sent AS duplicate_rate, dead / sent AS dead_rate,
  online_p95, CAST(:objective_ms AS BIGINT) AS objective_ms, online_p95 < :objective_ms AS met
FROM levels

-- view traffic
SELECT hour, node, from_agent, to_node, to_agent, count(*) AS sent,
  coalesce(sum(size), 0) AS bytes,
  count_if(replied_at IS NOT NULL OR outcome IN ('ok', 'kept')) AS ok,
  count_if(is_dead) AS dead, count_if(NOT closed) AS open,
  avg(accept) AS accept_ms, avg(process) AS process_ms, max(process) AS process_max
FROM timed GROUP BY hour, node, from_agent, to_node, to_agent

-- view cases
SELECT hour, node, to_node, to_agent, corr_id, sent_at, accepted_at,
  coalesce(ended_at, dead_at) AS ended_at, dead_at, reason,
  task.capability_id AS capability_id, task.capability_version AS capability_version,
  task.delegation_version AS delegation_version, task.executor_version AS executor_version,
  task.eta_at AS eta_at, IF(kind = 'task_create', task_ended_at, NULL) AS task_ended_at,
  task_state, task.failure_class AS failure_class
FROM timed
WHERE dead_at IS NOT NULL OR accepted_at IS NULL OR ended_at IS NULL
  OR accepted_at DIV :window_ms > sent_at DIV :window_ms
  OR ended_at - accepted_at > :sla_ms
  OR sent_at - accepted_at > :skew_ms
  OR task.failed_at IS NOT NULL
  OR (task_state IN ('completed', 'running', 'accepted', 'failed', 'cancelled')
    AND (task.eta_at IS NOT NULL AND (task_ended_at IS NULL OR task_ended_at > task.eta_at)))

-- view paces
WITH timed_tasks AS (
  SELECT hour, task.capability_id AS capability_id, task.capability_version AS capability_version,
    task.delegation_version AS delegation_version, task.executor_version AS executor_version,
    took_ms, IF(took_ms IS NULL, NULL, task.eta_at - sent_at) AS promise,
    task_ended_at <= task.eta_at AS is_kept
  FROM timed WHERE kind = 'task_create'
), rounded AS (
  SELECT *,
    IF(took_ms < 1000, greatest(took_ms, 0), CAST(
      ceil(took_ms / pow(10, length(CAST(took_ms AS STRING)) - 3))
        * pow(10, length(CAST(took_ms AS STRING)) - 3) AS BIGINT)) AS took,
    IF(promise < 1000, greatest(promise, 0), CAST(
      ceil(promise / pow(10, length(CAST(promise AS STRING)) - 3))
        * pow(10, length(CAST(promise AS STRING)) - 3) AS BIGINT)) AS promised_ms
  FROM timed_tasks
), by_took AS (
  SELECT hour, capability_id, capability_version, delegation_version, executor_version, took,
    count(*) AS n, count(promise) AS promised, count_if(promise IS NOT NULL AND is_kept) AS kept
  FROM rounded GROUP BY ALL
), by_promise AS (
  SELECT hour, capability_id, capability_version, delegation_version, executor_version,
    promised_ms, count(*) AS n
  FROM rounded WHERE promised_ms IS NOT NULL GROUP BY ALL
), sums AS (
  SELECT hour, capability_id, capability_version, delegation_version, executor_version,
    sum(n) AS tasks, coalesce(sum(n) FILTER (WHERE took IS NOT NULL), 0) AS completed,
    sum(promised) AS promised, sum(kept) AS kept,
    sort_array(collect_list(named_struct('ms', took, 'count', n))
      FILTER (WHERE took IS NOT NULL)) AS took
  FROM by_took
  GROUP BY hour, capability_id, capability_version, delegation_version, executor_version
), promised_times AS (
  SELECT hour, capability_id, capability_version, delegation_version, executor_version,
    sort_array(collect_list(named_struct('ms', promised_ms, 'count', n))) AS promises
  FROM by_promise
  GROUP BY hour, capability_id, capability_version, delegation_version, executor_version
)
SELECT s.*, coalesce(p.promises, filter(s.took, each -> false)) AS promises
FROM sums s LEFT JOIN promised_times p ON s.hour = p.hour
  AND s.capability_id <=> p.capability_id AND s.capability_version <=> p.capability_version
  AND s.delegation_version <=> p.delegation_version
  AND s.executor_version <=> p.executor_version

-- view reviews
WITH known AS (
  SELECT * FROM recent_cases WHERE task_state IS NOT NULL
), misfires AS (
  SELECT 'eta_breach' AS class, * FROM known
    WHERE task_state IN ('accepted', 'running', 'completed', 'failed', 'cancelled')
      AND coalesce(task_ended_at, :as_of) > eta_at
  UNION ALL SELECT 'contract_mismatch', * FROM known
    WHERE task_state = 'failed' AND failure_class <=> 'contract_mismatch'
  UNION ALL SELECT 'terminal_error', * FROM known
    WHERE task_state = 'failed' AND NOT failure_class <=> 'contract_mismatch'
  UNION ALL SELECT 'routing_miss', * FROM known
    WHERE task_state = 'dead_letter' AND reason = 'no_route'
  UNION ALL SELECT 'sla_breach', * FROM known
    WHERE coalesce(ended_at, :as_of) - accepted_at > :sla_ms
), totals AS (
  SELECT capability_id, capability_version, delegation_version, executor_version,
    sum(tasks) AS tasks
  FROM recent_paces GROUP BY ALL
), grouped AS (
  SELECT class, capability_id, capability_version, delegation_version, executor_version,
    count(*) AS count, min(sent_at) AS first_at, max(sent_at) AS last_at,
    transform(slice(sort_array(collect_list(struct(sent_at, corr_id))), 1, 5),
      each -> each.corr_id) AS samples
  FROM misfires GROUP BY ALL
)
SELECT left(sha2(concat_ws(char(31), coalesce(g.capability_id, ''),
    coalesce(g.capability_version, ''), coalesce(g.delegation_version, ''),
    coalesce(g.executor_version, ''), class), 256), 32) AS review_id,
  g.capability_id, g.capability_version, g.delegation_version, g.executor_version,
  class, count, tasks, first_at, last_at, samples
FROM grouped g JOIN totals t
  ON t.capability_id <=> g.capability_id AND t.capability_version <=> g.capability_version
  AND t.delegation_version <=> g.delegation_version
  AND t.executor_version <=> g.executor_version
WHERE class <> 'routing_miss' OR count >= :routing_misses

-- view eta
WITH lists AS (
  SELECT capability_id, capability_version, sum(completed) AS completed,
    sum(promised) AS promised, sum(kept) AS kept,
    sort_array(flatten(collect_list(flatten(transform(took,
      each -> array_repeat(each.ms, CAST(each.count AS INT))))))) AS took,
    sort_array(flatten(collect_list(flatten(transform(promises,
      each -> array_repeat(each.ms, CAST(each.count AS INT))))))) AS promises
  FROM recent_paces GROUP BY capability_id, capability_version
)
SELECT capability_id, capability_version, completed,
  get(took, CAST(ceil(size(took) * 0.50) AS INT) - 1) / 1000 AS p50_seconds,
  get(took, CAST(ceil(size(took) * 0.90) AS INT) - 1) / 1000 AS p90_seconds,
  get(took, CAST(ceil(size(took) * 0.95) AS INT) - 1) / 1000 AS p95_seconds,
  get(took, CAST(ceil(size(took) * 0.99) AS INT) - 1) / 1000 AS p99_seconds,
  get(promises, CAST(ceil(size(promises) * 0.50) AS INT) - 1) / 1000 AS promised_seconds,
  IF(promised > 0, kept / promised, NULL) AS kept_rate,
  CAST(ceil(get(took, CAST(ceil(size(took) * 0.95) AS INT) - 1) / 1000) AS BIGINT)
    AS recommended_eta_seconds
FROM lists WHERE completed > 0

-- view activity
SELECT CAST(:batch AS BIGINT) AS batch, node, created_at DIV :window_ms * :window_ms AS window_start,
  count(*) AS events, min(created_at) AS first_at, max(created_at) AS last_at
FROM events GROUP BY node, created_at DIV :window_ms
