// Package migrations holds the schemas of both databases, CONTROL (Postgres) and LEDGER (ClickHouse), as numbered SQL files, and
// applies them with goose.
//
// postgres/ is applied by Postgres, clickhouse/ by ClickHouse; each says how two instances that start at once are kept apart.
// A released file is never edited: a change is a new number. Files below clickhouse/access are for real servers, run by an
// administrator, never by goose.
//
// What repeats: a migration whose process died between its statements and goose's own note of it runs again at the next start.
// What removes the repeat: on Postgres the transaction; on ClickHouse, which has none, each statement can run twice
// (IF NOT EXISTS, OR REPLACE).
package migrations
