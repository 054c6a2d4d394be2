-- Policies, their versions, and the revision of the controls.

-- name: load_policies
-- Policies by id, those that were deleted among them.
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at
FROM policies AS p WHERE p.policy_id = ANY($1::text[]);

-- name: load_controls
-- The revision of the controls, with every policy and subscription unless the revision is the one that is known.
SELECT c.revision, o.kind, o.id, o.version, o.definition
FROM unnest($1::bigint[]) AS known (revision) CROSS JOIN controls AS c
LEFT JOIN (
    SELECT 'policy' AS kind, policy_id AS id, version, definition FROM policies WHERE definition IS NOT NULL
    UNION ALL
    SELECT 'subscription', subscription_id, 0, definition FROM subscriptions
) AS o ON c.revision <> known.revision;

-- name: put_policies
-- A policy as it is now; without a definition it is deleted.
INSERT INTO policies (policy_id, version, definition, source, changed_by, created_at, updated_at)
SELECT * FROM unnest(
    $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]
)
ON CONFLICT (policy_id) DO UPDATE SET
    version = excluded.version, definition = excluded.definition, source = excluded.source,
    changed_by = excluded.changed_by, updated_at = excluded.updated_at;

-- name: insert_policy_versions
INSERT INTO policy_versions (policy_id, version, definition, source, changed_by, at)
SELECT * FROM unnest(
    $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[]
);

-- name: raise_controls
-- Policies or subscriptions have changed. The batch that writes holds the lock of the row (lock_controls).
UPDATE controls SET revision = revision + change.changes FROM unnest($1::bigint[]) AS change (changes);

-- name: get_policy
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p WHERE p.policy_id = :policy_id AND p.definition IS NOT NULL;

-- name: list_policies
-- By id, behind the one that the last page ended with.
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p
WHERE p.policy_id > coalesce(:after::text, '') AND p.definition IS NOT NULL ORDER BY p.policy_id LIMIT :limit;

-- name: policy_versions
-- Newest first.
SELECT policy_id, version, definition, source, changed_by, at FROM policy_versions
WHERE policy_id = :policy_id ORDER BY version DESC LIMIT :limit;
