-- Which of our views do not read for their readers, though they should.
-- Input:   1 the names of our views. Others are their owners' matter.
-- Output:  name.
SELECT name
FROM system.tables
WHERE database = currentDatabase() AND engine = 'View' AND has($1, name) AND create_table_query NOT LIKE '%SQL SECURITY DEFINER%'
