-- Stores changes of orgs' time zones. Input: one row a change, columns in this order. The highest version of an org stands.
INSERT INTO org_zone_rows
    (org_id, time_zone, version, changed_at)
