-- CONTROL: what a POST with an Idempotency-Key was answered, for a day, so that the same call again makes nothing and gets the same answer.
-- The answer may hold a secret. It is encrypted under a key that follows from the caller's token and the Idempotency-Key, neither of which is stored.

-- +goose Up
CREATE TABLE idempotent_answers (
    key_hash     bytea       PRIMARY KEY CHECK (length(key_hash) = 32),   -- SHA-256 of who, the operation and the Idempotency-Key
    request_hash bytea       NOT NULL CHECK (length(request_hash) = 32),  -- SHA-256 of the path, If-Match and the body
    answer       bytea       NOT NULL,
    created_at   timestamptz NOT NULL
);

CREATE INDEX idempotent_answers_by_age ON idempotent_answers (created_at);

-- +goose Down
DROP TABLE idempotent_answers;
