-- Whoever may read a view need not be allowed to read what lies below it: views read with the rights of the user that made them.
--
-- Input:   every view that finance may read (access/finance.sql has the same list).
-- Output:  the same views, SQL SECURITY DEFINER. The definer is the user that runs this migration, the consumer's; a view stops working
--          if that user is dropped or may no longer read the tables below.
-- A later migration that replaces a view must say so again: CREATE OR REPLACE forgets it, and a test notices.

-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE usage_events MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE rejections_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- +goose Down
ALTER TABLE rejections_hourly MODIFY SQL SECURITY INVOKER;
ALTER TABLE usage_daily MODIFY SQL SECURITY INVOKER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY INVOKER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY INVOKER;
ALTER TABLE usage_events MODIFY SQL SECURITY INVOKER;
