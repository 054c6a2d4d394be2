-- Nodes, their leases, and the secrets with which they sign. Only a store of several nodes needs them.

-- name: check_leases
-- Which of some nodes may send what they claim: those whose lease has not lapsed.
SELECT n.node_id FROM nodes AS n WHERE n.node_id = ANY($1::text[]) AND n.lease_until > clock_timestamp();

-- name: join_nodes
-- A lease for a new node; forgets nodes that have been gone for a day.
WITH forgotten AS (DELETE FROM nodes WHERE lease_until < clock_timestamp() - INTERVAL '1 day')
INSERT INTO nodes (node_id, joined_at, lease_until)
VALUES ($1, clock_timestamp(), clock_timestamp() + $2::bigint * INTERVAL '1 millisecond');

-- name: renew_lease
-- Prolong a lease that has not lapsed yet; no row: it has, and stays so. The time is asked after the row was locked:
-- a node that found the lease expired (find_orphaned) had that lock before.
WITH mine AS MATERIALIZED (SELECT n.node_id FROM nodes AS n WHERE n.node_id = $1 FOR UPDATE),
asked AS MATERIALIZED (SELECT mine.node_id, clock_timestamp() AS at FROM mine)
UPDATE nodes SET lease_until = asked.at + $2::bigint * INTERVAL '1 millisecond'
FROM asked WHERE nodes.node_id = asked.node_id AND nodes.lease_until > asked.at
RETURNING (SELECT count(*) FROM nodes AS n WHERE n.node_id <> $1 AND n.lease_until > clock_timestamp());

-- name: probe_write
-- A write that says nothing new: PostgreSQL makes a new version of the row and flushes its log all the same.
UPDATE nodes SET joined_at = joined_at WHERE node_id = $1 RETURNING node_id;

-- name: leave_nodes
-- Give a lease back: other nodes may reclaim the attempts of its holder at once.
UPDATE nodes SET lease_until = clock_timestamp() WHERE node_id = $1 AND lease_until > clock_timestamp();

-- name: begin_signing
-- The first secret that is ever noted has signed what a database of an earlier version holds.
INSERT INTO receipt_checks (check_value, signs_from, signs_until)
VALUES ($1, CASE WHEN EXISTS (SELECT 1 FROM receipt_checks) THEN $2::bigint ELSE 0 END, $3)
ON CONFLICT (check_value) DO UPDATE
SET signs_until = greatest(receipt_checks.signs_until, excluded.signs_until);

-- name: end_signing
-- Secrets that nodes no longer accept, and, of a copied database, the one of the engine that was stopped for it.
WITH dropped AS (DELETE FROM receipt_checks WHERE check_value = ANY($1::text[]))
UPDATE receipt_checks SET signs_until = $2 WHERE signs_until IS NULL AND check_value <> ALL($1::text[]);

-- name: go_on_signing
UPDATE receipt_checks SET signs_until = greatest(signs_until, $2) WHERE check_value = $1;
